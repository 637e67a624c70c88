from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.unit.outbound.agent_host import AgentHost, agent_host
from tests.unit.outbound.delivery_network import DeliveryNetwork, delivery_network, errors


@pytest.fixture
async def agents() -> AsyncIterator[AgentHost]:
    """Agents on this machine, under any name."""
    async with agent_host() as host:
        yield host


@pytest.fixture
async def network(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> AsyncIterator[DeliveryNetwork]:
    """Queues and delivery workers, none of which fails."""
    async with delivery_network(tmp_path) as running:
        yield running
    assert errors(caplog) == []
