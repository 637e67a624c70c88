"""The bytes of the messages on a socket, which count from their arrival until they are handled."""

from __future__ import annotations

import pytest

from tests.edge.didcomm.wallet_network import Bob, WalletNetwork, opened, routed, sealed

MIB = 1_024**2
NARROW = {"limits": dict.fromkeys(("bodies_bytes_max", "bodies_bytes_per_address_max"), MIB)}
PING = "trust_ping/1.0/ping"


@pytest.mark.parametrize("settings", [NARROW])
async def test_a_socket_carries_more_in_time_than_an_edge_holds_at_once(
    network: WalletNetwork, bob: Bob
) -> None:
    filling = "x" * (MIB // 4)
    async with network.socket() as socket:
        for _ in range(6):
            await socket.raw.send_bytes(sealed(bob.connection, PING, comment=filling, **routed()))
            assert opened(bob.connection, await socket.data())["@type"].endswith("ping_response")
