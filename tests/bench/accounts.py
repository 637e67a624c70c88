"""New accounts of DIDComm v2 in a second: their messages are packed before, and posted as they are.

A wallet of the client library spends more CPU on its own keys, DIDs and envelopes than the mediator
on its account, on the same cores. So what the mediator takes is measured without: each account is
a request for mediation and an update of its keylist with one DID.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import aiohttp

from http_edge.cli.output import ProgressBar
from http_edge.clients.didcomm import Recipient2, fetch_invitation_2
from http_edge.clients.didcomm.connection import QUEUE, Connection2, endpoints_of
from http_edge.clients.didcomm.invitation import Invitation2
from http_edge.clients.didcomm.protocol_session import prepared
from http_edge.clients.load.didcomm_agents import DidComm2Agents
from http_edge.didcomm.envelopes.keys import KeyPair
from http_edge.didcomm.envelopes.messages import NEW_PREFIX, Json
from tests.bench.load import Run, run_apart
from tests.bench.report import Measurement, of_load, timed
from tests.bench.server import MeasuredServer

_CONNECTIONS: Final = 64
_SECONDS_MAX: Final = 300.0
_PROTOCOL: Final = NEW_PREFIX + "coordinate-mediation/2.0"


class AccountMessages(NamedTuple):
    """What new agents send: each asks for mediation, then registers one DID."""

    endpoint: str
    requests: Sequence[bytes]
    updates: Sequence[bytes]


def account_messages(invitation: Invitation2, count: int) -> AccountMessages:
    """The messages of so many agents with keys of their own, packed."""
    endpoint, socket = endpoints_of(invitation.did)
    made = [
        _packed(Connection2(KeyPair.new(), "peer4", QUEUE, invitation.did, endpoint, socket), each)
        for each in [invitation.id] * count
    ]
    return AccountMessages(endpoint, [one for one, _ in made], [other for _, other in made])


def _packed(agent: Connection2, invitation_id: str) -> tuple[bytes, bytes]:
    recipient = Recipient2(KeyPair.new(), agent.mediator_did)
    request: Json = {
        "@type": f"{_PROTOCOL}/mediate-request",
        "~thread": {"pthid": invitation_id},
    }
    update: Json = {
        "@type": f"{_PROTOCOL}/keylist-update",
        "updates": [{"recipient_did": recipient.did, "action": "add"}],
    }
    # Once it was granted, an agent is known by the short form of its DID.
    return (
        agent.pack(prepared(request, "all")),
        replace(agent, is_known=True).pack(prepared(update, "all")),
    )


async def new_accounts(server: MeasuredServer, count: int, bar: ProgressBar) -> Measurement:
    """So many new accounts, each request answered before the first update is sent.

    Raises:
        RuntimeError: one was refused, or the load failed.
        WalletError: the mediator has no invitation.
    """
    async with aiohttp.ClientSession() as session:
        invitation = await fetch_invitation_2(session, f"{server.url}/invitation")
    found = account_messages(invitation, count)
    lines = []
    with server.spending() as costs:
        for name, bodies in (("requests", found.requests), ("updates", found.updates)):
            result = await asyncio.to_thread(
                run_apart,
                DidComm2Agents(()),
                bodies,
                Run(_CONNECTIONS, count, _SECONDS_MAX),
                endpoints=[found.endpoint],
                progress=bar(f"new v2 accounts: {name}", count),
            )
            if result.accepted != count:
                raise RuntimeError(f"{count} {name} were sent, refused: {result.refused}")
            lines.append(of_load(name, result))
    return timed(
        "new v2 accounts",
        count,
        sum(line.seconds for line in lines),
        server_cpu_s_per_1000=costs.cpu_s / count * 1000,
        **{f"{line.name}_per_s": line.per_s for line in lines},
    )
