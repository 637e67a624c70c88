"""Registration control: who may connect as a DIDComm agent.

``DidComm.registration`` says whom the mediator takes. An agent that is connected already may always
connect again, whatever the setting has become: a wallet that repeats its handshake loses nothing.
An invitation of ours binds in every mode: one that has expired, or that another agent has used up,
admits none. Invitations are not stored; their ids carry a MAC (``protocols.invitations``), and
what is not made by this mediator is no invitation at all.
"""

from __future__ import annotations

from enum import Enum, auto

import msgspec

from actors.core.commands import QueryConnection, UseInvitation
from actors.core.refusals import Refusal
from actors.core.replies import Connected, Done
from actors.host.clock import Clock
from http_edge.crypto.invitation_ids import InvitationTerms
from http_edge.didcomm.envelopes.recipient_names import canonical_name
from http_edge.didcomm.identities import Identities, invitation_target
from http_edge.didcomm.protocols.invitations import Invitations
from http_edge.didcomm.protocols.protocol import Request
from http_edge.listener.address_charge import registration_wait_s
from http_edge.settings.settings import DidComm


class NotAdmitted(Enum):
    """Why an agent may not connect, or may not use an invitation."""

    NOT_OPEN = auto()
    """The mediator does not take new agents, or not this one; the answer does not say which."""
    INVITATION_UNKNOWN = auto()
    """It was not made by this mediator, or there is none."""
    INVITATION_EXPIRED = auto()
    INVITATION_USED = auto()
    """It was for one use, and another agent has used it."""
    TOO_MANY = auto()
    """More agents connect than may at a time; the same request may be sent again."""
    UNAVAILABLE = auto()
    """The owner could not be asked; the same request may be sent again."""


class Admitted(msgspec.Struct, frozen=True):
    """The agent may connect; ``invitation_id`` is empty where it needed no invitation of ours."""

    invitation_id: str


class Admission:
    """Decides who may connect, before anything of it is stored."""

    def __init__(
        self, settings: DidComm, invitations: Invitations, identities: Identities, *, clock: Clock
    ) -> None:
        self._registration = settings.registration
        self._allowed = frozenset(map(canonical_name, settings.allowed_keys)) - {None}
        self._invitations = invitations
        self._identities = identities
        self._clock = clock

    async def admit(self, request: Request, invitation_id: str) -> Admitted | NotAdmitted:
        """May the sender connect with this invitation (empty for none)?

        A single-use invitation is used up by a sender that is admitted; the same sender may use it
        again, so a repeated request gets the same answer. Each try counts, and costs the sender's
        address: the next identity costs a stranger a key.
        """
        is_early = registration_wait_s() is not None
        rejection: NotAdmitted | None = NotAdmitted.TOO_MANY
        if not is_early:
            rejection = await self._rejection(request, invitation_id)
        if rejection is NotAdmitted.UNAVAILABLE:
            return rejection
        if rejection is None:
            is_ours = self._invitations.read_id(invitation_id) is not None
            return Admitted(invitation_id if is_ours else "")
        known = await self.connection_of(request)
        if isinstance(known, Connected):
            return Admitted(known.connection.invitation_id)
        is_unavailable = known is Refusal.TEMPORARILY_UNAVAILABLE
        return NotAdmitted.UNAVAILABLE if is_unavailable else rejection

    async def use(self, request: Request, invitation_id: str) -> NotAdmitted | None:
        """Use an invitation; what is against it, or None."""
        terms = self._invitations.read_id(invitation_id)
        if terms is None:
            return NotAdmitted.INVITATION_UNKNOWN
        return await self._use(request, terms)

    async def connection_of(self, request: Request) -> Connected | Refusal:
        """The sender as an agent that has connected, or why nothing is known of it."""
        return await self._identities.ask(
            request.sender.did, QueryConnection(), request.command, Connected
        )

    async def _rejection(self, request: Request, invitation_id: str) -> NotAdmitted | None:
        match self._registration:
            case "closed":
                return NotAdmitted.NOT_OPEN
            case "allow_list" if self._allowed.isdisjoint(_names(request)):
                return NotAdmitted.NOT_OPEN
            case "invitation":
                return await self.use(request, invitation_id)
            case _:
                terms = self._invitations.read_id(invitation_id)
                # A DID, or the id of another kind of invitation: it promises nothing of ours.
                return None if terms is None else await self._use(request, terms)

    async def _use(self, request: Request, terms: InvitationTerms) -> NotAdmitted | None:
        if terms.has_expired(self._clock()):
            return NotAdmitted.INVITATION_EXPIRED
        if not terms.single_use:
            return None
        used = await self._identities.ask(
            invitation_target(terms.id),
            UseInvitation(by_did=request.sender.did),
            request.command,
            Done,
        )
        if not isinstance(used, Refusal):
            return None
        taken = used is Refusal.INVITATION_USED
        return NotAdmitted.INVITATION_USED if taken else NotAdmitted.UNAVAILABLE


def _names(request: Request) -> set[str | None]:
    """What the sender is known by: its account, and the DID that it proves to send from."""
    return {canonical_name(request.sender.did), canonical_name(request.message.sender_did)} - {None}
