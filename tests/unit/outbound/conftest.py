from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.unit.outbound.agent_host import AgentHost, agent_host
from tests.unit.outbound.delivery_network import DeliveryNetwork, delivery_network


@pytest.fixture
async def agents() -> AsyncIterator[AgentHost]:
    """Agents on this machine, under any name."""
    async with agent_host() as host:
        yield host


@pytest.fixture
async def network(tmp_path: Path) -> AsyncIterator[DeliveryNetwork]:
    """Queues and delivery workers."""
    async with delivery_network(tmp_path) as running:
        yield running
