from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.unit.didcomm.queue_holder import ALICE, BOB, Holder, running_holder


@pytest.fixture
async def holder(tmp_path: Path) -> AsyncIterator[Holder]:
    """The queues of two agents that are mediated."""
    async with running_holder(tmp_path) as holder:
        await holder.connect(ALICE, BOB)
        yield holder
