"""Registration control: who may connect as a DIDComm agent.

``DidComm.registration`` says whom the mediator admits. An agent that is already connected may
always connect again, even if the setting has changed: a wallet that repeats its handshake loses
nothing. Our own invitations are checked in every mode: one that has expired, or that another agent
has used up, admits no agent. Invitations are not stored; their ids carry a MAC
(``protocols.invitations``), and an invitation that this mediator did not make counts as none.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, Self

from actors.core.agents import invitation_target
from actors.core.commands import QueryConnection, UseInvitation
from actors.core.refusals import Refusal
from actors.core.replies import Connected, Done
from actors.host.clock import Clock
from http_edge.crypto.invitation_ids import InvitationTerms
from http_edge.didcomm.envelopes.recipient_names import canonical_name
from http_edge.didcomm.protocols.invitations import Invitations
from http_edge.didcomm.protocols.problems import Problem, problem_of
from http_edge.didcomm.protocols.protocol import Request
from http_edge.listener.address_charge import (
    charge_unproven,
    registration_wait_s,
    uncount_registration,
)
from http_edge.settings.settings import DidComm


class NotAdmitted(Enum):
    """Why an agent may not connect, or may not use an invitation: the ``explain`` for persons.

    The ``problem-code`` and ``explain`` are those of RFC 0160 and RFC 0023. The text names the
    wrong member and the rule, never a value. ``problem`` is what the transport says if no report
    can go back (``Outcome.problem``); that of most is about the request's document.
    """

    problem: Problem

    def __new__(cls, explain: str, problem: Problem = Problem.INVALID_MESSAGE) -> Self:
        """A member, with its problem beside its text."""
        member = object.__new__(cls)
        member._value_, member.problem = explain, problem
        return member

    NO_DID = "The request names no DID (did, connection.DID)."
    UNKNOWN_DID = (
        "The DID is of no supported kind: did:peer 0, 1, 2 or 4, did:key, did:sov, or no method."
    )
    NO_DOCUMENT = (
        "The document of the request's DID (in the DID, the attachment did_doc, or "
        "connection.DIDDoc) is missing, is of another DID, or has no usable key or service."
    )
    NOT_SIGNED = "The attachment did_doc is malformed, or not signed by a key of its document."
    NOT_PACKED = "The request is not packed by a key of the DID document."
    LEADS_BACK = "The DID document leads messages back to this mediator."
    NOT_OPEN = "This mediator does not take new connections from you.", Problem.NOT_CONNECTED
    """The mediator admits no new agents, or not this one; the answer does not say which."""
    INVITATION_UNKNOWN = (
        "An invitation of this mediator is needed, and its id as parent thread (pthid).",
        Problem.NOT_CONNECTED,
    )
    INVITATION_EXPIRED = "The invitation has expired.", Problem.NOT_CONNECTED
    INVITATION_USED = "The invitation was for one use, and is used.", Problem.NOT_CONNECTED
    DID_ROTATED = Problem.ROTATED.sentence + ".", Problem.ROTATED
    TOO_MANY = (
        "Too many connect at the moment: send the request again after some seconds.",
        Problem.RATE_LIMITED,
    )
    INSUFFICIENT_STORAGE = (
        Problem.INSUFFICIENT_STORAGE.sentence + ": send the request again later.",
        Problem.INSUFFICIENT_STORAGE,
    )
    UNAVAILABLE = "Out of service for now: send the request again.", Problem.TRY_AGAIN

    @property
    def code(self) -> str:
        """The ``problem-code``."""
        return "request_not_accepted" if self.to_retry is None else "request_processing_error"

    @property
    def refused(self) -> str:
        """Its name for the operator (``Outcome.refused``), more specific than the agent's code."""
        is_unknown = self is NotAdmitted.UNAVAILABLE
        return "" if is_unknown else self.name.lower().replace("_", "-")

    @property
    def to_retry(self) -> Problem | None:
        """The problem to report if the same request may be admitted later, else None."""
        return self.problem if self.problem.who_retries == "you" else None


_BY_PROBLEM: Final = {
    each.problem: each
    for each in (NotAdmitted.TOO_MANY, NotAdmitted.INSUFFICIENT_STORAGE, NotAdmitted.DID_ROTATED)
}


def not_admitted(refusal: Refusal) -> NotAdmitted:
    """Return why an agent may not connect, or use an invitation, after an identity's refusal."""
    if refusal is Refusal.INVITATION_USED:
        return NotAdmitted.INVITATION_USED
    return _BY_PROBLEM.get(problem_of(refusal), NotAdmitted.UNAVAILABLE)


class Admission:
    """Decides which agents may connect, before anything of them is stored."""

    def __init__(self, settings: DidComm, invitations: Invitations, *, clock: Clock) -> None:
        self._registration = settings.registration
        self._allowed = frozenset(map(canonical_name, settings.allowed_keys)) - {None}
        self._invitations = invitations
        self._clock = clock

    async def admit(self, request: Request, invitation_id: str) -> str | NotAdmitted:
        """Decide whether the sender may connect with this invitation (empty for none).

        Return the id of the invitation that it came with, empty if that is none of ours. An
        admitted sender uses up a single-use invitation, unless it is connected already; the same
        sender may use it again, so a repeated request gets the same answer. Each try that settings
        and invitation allow counts against the registration rate of the sender's address, because a
        new identity costs a stranger only a key. Any other takes nothing from the rate that the
        admitted ones share, nor does one with an invitation that another agent has used up.
        """
        terms = self._invitations.ids.read(invitation_id)
        rejection = self._rejection(request, terms)
        if rejection is not None:
            charge_unproven(0)
        elif registration_wait_s() is not None:
            rejection = NotAdmitted.TOO_MANY
        is_for_one = terms is not None and terms.single_use
        if is_for_one or rejection is not None:
            known = await self.connection_of(request)
            if isinstance(known, Connected):
                return known.connection.invitation_id
            if known is not Refusal.NOT_CONNECTED:
                # If it speaks for another account, the same request is handled next for that one.
                return not_admitted(known)
        if rejection is None and terms is not None:
            rejection = await self._use(request, terms)
            if rejection is NotAdmitted.INVITATION_USED:
                uncount_registration()
        return rejection or ("" if terms is None else terms.id)

    async def use(self, request: Request, invitation_id: str) -> NotAdmitted | None:
        """Use an invitation; return None, or the reason why the sender may not use it."""
        terms = self._invitations.ids.read(invitation_id)
        if terms is None:
            return NotAdmitted.INVITATION_UNKNOWN
        if terms.has_expired(self._clock()):
            return NotAdmitted.INVITATION_EXPIRED
        return await self._use(request, terms)

    async def connection_of(self, request: Request) -> Connected | Refusal:
        """Return the sender's connection, or a refusal if none is known."""
        return await request.ask(request.sender.did, QueryConnection(), Connected)

    def _rejection(self, request: Request, terms: InvitationTerms | None) -> NotAdmitted | None:
        """Return why settings and invitation alone refuse the sender, or None."""
        if self._registration == "closed":
            return NotAdmitted.NOT_OPEN
        if self._registration == "allow_list" and self._allowed.isdisjoint(_names(request)):
            return NotAdmitted.NOT_OPEN
        if terms is None:
            # Any other parent thread is a DID or the id of someone else's invitation.
            is_needed = self._registration == "invitation"
            return NotAdmitted.INVITATION_UNKNOWN if is_needed else None
        return NotAdmitted.INVITATION_EXPIRED if terms.has_expired(self._clock()) else None

    async def _use(self, request: Request, terms: InvitationTerms) -> NotAdmitted | None:
        if not terms.single_use:
            return None
        use = UseInvitation(by_did=request.sender.did)
        used = await request.ask(invitation_target(terms.id), use, Done)
        return not_admitted(used) if isinstance(used, Refusal) else None


def _names(request: Request) -> set[str | None]:
    """Return the sender's names: its account's, and that of the DID that it proves to send from."""
    return {canonical_name(request.sender.did), canonical_name(request.message.sender_did)} - {None}
