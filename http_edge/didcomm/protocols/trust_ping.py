"""Trust ping 1.0 (RFC 0048): is the other side there, and does the key fit?

Wallets of the first generation ping to open a return route: what waits may go back on it
(RFC 0092).
"""

from __future__ import annotations

from http_edge.didcomm.envelopes.messages import Reply
from http_edge.didcomm.protocols.protocol import Family, Outcome, Request, no_answer


def family() -> Family:
    """The protocol, with the mediator as receiver of pings."""
    handlers = {"ping": _ping, "ping_response": no_answer}
    return Family("trust_ping", 1, (0,), ("receiver",), handlers)


async def _ping(request: Request) -> Outcome:
    # Whatever is not the boolean false leaves the default, which is true: agents misspell the
    # member and still wait for the answer.
    if request.message.body.get("response_requested") is False:
        return Outcome(implicit=True)
    return Outcome(reply=Reply("ping_response"), implicit=True)
