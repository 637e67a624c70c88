"""Trust ping 1.0 (RFC 0048) and 2.0: is the other side there, and does the key fit?

Wallets of the first generation ping to open a return route: what waits may go back on it
(RFC 0092). Agents speak 1.0 in messages of both generations.
"""

from __future__ import annotations

from typing import Final

from http_edge.didcomm.envelopes.messages import Reply
from http_edge.didcomm.protocols.protocol import Family, Outcome, Request, no_answer

_RESPONSES: Final = {1: "ping_response", 2: "ping-response"}


def families() -> tuple[Family, Family]:
    """Both versions, with the mediator as receiver of pings; they differ in spelling alone."""
    return (
        Family("trust_ping", 1, (0,), ("receiver",), {"ping": _ping, _RESPONSES[1]: no_answer}),
        Family("trust-ping", 2, (0,), ("receiver",), {"ping": _ping, _RESPONSES[2]: no_answer}),
    )


async def _ping(request: Request) -> Outcome:
    # Whatever is not the boolean false leaves the default, which is true: agents misspell the
    # member and still wait for the answer.
    if request.message.body.get("response_requested") is False:
        return Outcome(implicit=True)
    return Outcome(reply=Reply(_RESPONSES[request.message.type.major]), implicit=True)
