"""Out-of-band 1.x (RFC 0434), role sender: an agent that is connected shows another invitation.

The invitation itself travels outside DIDComm (``didcomm.invitations``). What arrives here is
``handshake-reuse``: the agent would rather go on with the connection that it has. A stranger that
says so, and an invitation that is over, get a problem report at once, because agents wait for an
answer before they start a handshake instead.
"""

from __future__ import annotations

from typing import Final

from actors.clock import NewId
from actors.refusals import Refusal
from http_edge.didcomm.admission import Admission, NotAdmitted
from http_edge.didcomm.handling import NOTHING, Asked, Family, Outcome
from http_edge.didcomm.handshake import PROBLEM_REPORT, Objection, answer, described
from http_edge.didcomm.messages import Json
from http_edge.didcomm.problems import Problem, problem_report

MINORS: Final = (0, 1)
_OVER: Final = described("expired-invitation", "The invitation has expired.")
"""RFC 0434, "Errors". It says the same of expired, used, foreign and unknown invitations."""
_STRANGER: Final = described("no_existing_connection", "There is no connection to reuse.")
"""The code that ACA-Py knows; the RFC has none."""


class OutOfBand:
    """Answers the messages of out-of-band 1.x."""

    def __init__(self, admission: Admission, *, new_id: NewId) -> None:
        """The family of one mediator."""
        self._admission = admission
        self._new_id = new_id

    def family(self) -> Family:
        """The family, with the mediator as sender of invitations."""
        return Family(
            name="out-of-band",
            major=1,
            minors=MINORS,
            roles=("sender",),
            handlers={"handshake-reuse": self._reuse, PROBLEM_REPORT: _reported},
        )

    async def _reuse(self, asked: Asked) -> Outcome:
        known = await self._admission.connection_of(asked)
        if known is Refusal.TEMPORARILY_UNAVAILABLE:
            return self._try_again(asked)
        if isinstance(known, Refusal):
            # A stranger has no queue: the report goes back at once or not at all.
            report = self._report(asked, _STRANGER)
            return Outcome(reply=report, may_wait=False, refused=Problem.NOT_CONNECTED.refused)
        match await self._admission.use(asked, asked.message.parent_thread_id):
            case None:
                return Outcome(reply=self._answer(asked, "handshake-reuse-accepted"))
            case NotAdmitted.UNAVAILABLE:
                return self._try_again(asked)
            case NotAdmitted() as objection:
                report = self._report(asked, _OVER)
                return Outcome(reply=report, refused=Objection[objection.name].refused)

    def _report(self, asked: Asked, description: Json) -> Json:
        return self._answer(asked, PROBLEM_REPORT, description=description, impact="thread")

    def _try_again(self, asked: Asked) -> Outcome:
        report = problem_report(asked.message, Problem.TRY_AGAIN, self._new_id())
        return Outcome(reply=report, may_wait=False)

    def _answer(self, asked: Asked, name: str, **members: object) -> Json:
        return answer(asked, name, self._new_id(), minor_max=MINORS[-1], **members)


async def _reported(asked: Asked) -> Outcome:  # noqa: ARG001 - whatever went wrong over there
    """A problem report is never answered (RFC 0035)."""
    return NOTHING
