"""Trust ping 1.0 (RFC 0048) and 2.0: a test of reachability and keys.

Wallets of the first generation ping to open a return route, on which waiting messages may go back
(RFC 0092). Agents send 1.0 in messages of both generations.
"""

from __future__ import annotations

from typing import Final

from actors.core.commands import QueryQueue
from actors.core.replies import QueueState
from http_edge.didcomm.envelopes.messages import Reply
from http_edge.didcomm.protocols.protocol import (
    Family,
    Outcome,
    PeerState,
    Request,
    no_answer,
)

_RESPONSES: Final = {1: "ping_response", 2: "ping-response"}


def families() -> tuple[Family, Family]:
    """Return both versions, with the mediator as receiver; they differ only in spelling."""
    return (
        Family("trust_ping", 1, (0,), ("receiver",), {"ping": _ping, _RESPONSES[1]: no_answer}),
        Family("trust-ping", 2, (0,), ("receiver",), {"ping": _ping, _RESPONSES[2]: no_answer}),
    )


async def _ping(request: Request) -> Outcome:
    # Any value but the boolean false means the default, true: agents misspell the member and still
    # wait for the answer.
    is_silent = request.message.body.get("response_requested") is False
    if _begins_implicit(request.peer, is_silent=is_silent):
        # The reply does not matter. Its refusal shows, before messages are sent, that the sender
        # speaks for the account of another DID.
        await request.ask_account(QueryQueue(), QueueState)
    if is_silent:
        return Outcome(implicit=True)
    return Outcome(reply=Reply(_RESPONSES[request.message.type.major]), implicit=True)


def _begins_implicit(peer: PeerState, *, is_silent: bool) -> bool:
    """Say whether waiting messages may begin to go back because of a ping."""
    if peer.pump is None:
        return peer.open_route and is_silent  # over HTTP a response takes the place of a message
    return not (peer.live or peer.pump.is_implicit)
