"""Messages for agents' endpoints are found by sweeps, if no worker delivers them."""

from __future__ import annotations

import pytest

from http_edge.didcomm.envelopes.v2.version import MEDIA_TYPE
from tests.edge.didcomm.newer_wallets import ask_of, connected
from tests.edge.didcomm.wallet_network import WalletNetwork
from tests.unit.outbound.agent_host import agent_host


@pytest.mark.parametrize(
    "settings",
    [
        {
            "outbound": {
                "allowed_networks": ["127.0.0.0/8"],
                "agents_max": 2,
                "retry_s_min": 60,
                "sweep_s": 0.02,
            }
        }
    ],
)
async def test_after_a_restart_agents_whose_endpoints_are_dead_do_not_keep_others_from_delivery(
    network: WalletNetwork,
) -> None:
    async with agent_host(running=False) as dead, agent_host(running=False) as healthy:
        for endpoint in (dead, dead, dead, healthy):
            url = endpoint.url(host="127.0.0.1")
            wallet = await connected(network, did_method="peer2", endpoint=url)
            ping = wallet.connection.pack(ask_of("trust-ping/2.0/ping", response_requested=True))
            assert (await network.post(ping, content_type=MEDIA_TYPE)).status == 202
            network.mediator.clock.advance(1)
        await network.mediator.stop()
        await healthy.start()
        await network.mediator.start()
        await healthy.has(1)
