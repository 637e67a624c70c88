"""A disk that is nearly full, as senders of forwards and wallets see it."""

from __future__ import annotations

import pytest

from tests.edge.conftest import Disk
from tests.edge.didcomm.wallet_network import Bob, WalletNetwork
from tests.edge.mediator import HandClock


@pytest.fixture(autouse=True)
def _disk_first(disk: Disk) -> None:
    """The disk stands before the mediator does."""


async def test_a_forward_to_a_short_disk_is_refused_and_what_waits_is_handed_out(
    disk: Disk, network: WalletNetwork, bob: Bob, clock: HandClock
) -> None:
    await network.write(bob, "one")
    disk.free_bytes = 0
    clock.advance(2)
    refused = await network.forward_text(bob.key, "two")
    assert (refused.status, refused.json) == (503, {"error": "insufficient-storage"})
    assert refused.headers["Retry-After"] == "60"
    assert await bob.drained() == ["one"]
