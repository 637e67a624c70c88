from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.unit.outbound.agent_host import AgentHost, agent_host
from tests.unit.outbound.office import PostOffice, post_office


@pytest.fixture
async def agents() -> AsyncIterator[AgentHost]:
    """Agents on this machine, under any name."""
    async with agent_host() as host:
        yield host


@pytest.fixture
async def office(tmp_path: Path) -> AsyncIterator[PostOffice]:
    """Queues and couriers."""
    async with post_office(tmp_path) as running:
        yield running
