from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.edge.mediator import HandClock
from tests.unit.outbound.agent_host import AgentHost, agent_host


@pytest.fixture
async def host() -> AsyncIterator[AgentHost]:
    """A push service on this machine."""
    async with agent_host() as running:
        yield running


@pytest.fixture
def clock() -> HandClock:
    return HandClock()
