"""Out-of-band 1.x (RFC 0434), role sender: a connected agent answers another invitation.

The invitation itself travels outside DIDComm (``protocols.invitations``). The only message handled
here is ``handshake-reuse``: the agent asks to keep its existing connection. An unconnected sender,
or an invalid invitation, gets a problem report at once, because agents wait for an answer before
they start a handshake instead.
"""

from __future__ import annotations

from typing import Final

from actors.core.refusals import Refusal
from http_edge.didcomm.envelopes.messages import Json, Reply
from http_edge.didcomm.protocols.admission import Admission
from http_edge.didcomm.protocols.handshake import PROBLEM_REPORT, described
from http_edge.didcomm.protocols.problems import Problem
from http_edge.didcomm.protocols.protocol import Family, Outcome, Request, no_answer, refusal

_OVER: Final = described(
    "expired-invitation", "The invitation (pthid) is missing, unknown, used or expired."
)
"""RFC 0434, "Errors": one code for expired, used, foreign and unknown invitations."""
_STRANGER: Final = described("no_existing_connection", "There is no connection to reuse.")
"""The code that ACA-Py understands; the RFC defines none."""


OUT_OF_BAND_2: Final = Family("out-of-band", 2, (0,), ("sender",), {})
"""Out-of-band 2.0: agents find that our invitations are of it, and have no message of it to send.
"""


class OutOfBand:
    """Answers the messages of out-of-band 1.x."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission

    def family(self) -> Family:
        """Return the protocol, with the mediator as sender of invitations."""
        return Family(
            name="out-of-band",
            major=1,
            minors=(0, 1),
            roles=("sender",),
            handlers={"handshake-reuse": self._reuse, PROBLEM_REPORT: no_answer},
        )

    async def _reuse(self, request: Request) -> Outcome:
        known = await self._admission.connection_of(request)
        if known is Refusal.TEMPORARILY_UNAVAILABLE:
            return refusal(Problem.TRY_AGAIN, may_wait=False)
        if isinstance(known, Refusal):
            # A stranger has no queue: the report goes back at once or not at all.
            refused = Problem.NOT_CONNECTED.refused
            return Outcome(reply=_report(_STRANGER), may_wait=False, refused=refused)
        rejection = await self._admission.use(request, request.message.parent_thread_id)
        if rejection is None:
            return Outcome(reply=Reply("handshake-reuse-accepted", names_parent=True))
        if rejection.to_retry is not None:
            return refusal(rejection.to_retry, may_wait=False)
        return Outcome(reply=_report(_OVER), refused=rejection.refused)


def _report(description: Json) -> Reply:
    body: Json = {"description": description, "impact": "thread"}
    return Reply(PROBLEM_REPORT, body, names_parent=True)
