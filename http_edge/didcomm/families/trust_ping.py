"""Trust ping 1.0 (RFC 0048): is the other side there, and does the key fit?

Wallets of the first generation ping to open a return route: what waits may go back on it
(RFC 0092).
"""

from __future__ import annotations

from actors.clock import NewId
from http_edge.didcomm.handling import NOTHING, Asked, Family, Outcome
from http_edge.didcomm.messages import reply


class TrustPing:
    """Answers pings."""

    def __init__(self, new_id: NewId) -> None:
        self._new_id = new_id

    def family(self) -> Family:
        """The protocol, for the table of families."""
        handlers = {"ping": self._ping, "ping_response": _ignore}
        return Family("trust_ping", 1, (0,), ("receiver",), handlers)

    async def _ping(self, asked: Asked) -> Outcome:
        # Whatever is not the boolean false leaves the default, which is true: agents misspell the
        # member and still wait for the answer.
        if asked.message.body.get("response_requested") is False:
            return Outcome(implicit=True)
        answer = reply(asked.message, "ping_response", self._new_id())
        return Outcome(reply=answer, implicit=True)


async def _ignore(_asked: Asked) -> Outcome:
    return NOTHING
