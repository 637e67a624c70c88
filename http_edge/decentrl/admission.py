"""Registration control: who may register as a Decentrl identity (DCTRL-0004 8.1 is silent).

``Protocol.registration`` selects who may register, with the values of ``DidComm.registration``. An
identity that has registered once may always renew: its own state decides that (``Register``). An
invitation by this mediator binds in every mode; any other text counts as no invitation.
"""

from __future__ import annotations

from actors.core.refusals import Refusal
from http_edge.crypto.invitation_ids import InvitationIds, InvitationTerms
from http_edge.crypto.mediator_keys import MediatorKeys, service_seed
from http_edge.decentrl.answers import Rejected
from http_edge.settings.settings import Protocol

NOT_OPEN = Rejected(
    Refusal.UNAUTHORIZED_COMMAND, "header.sender_did: may not register with this mediator"
)
UNKNOWN = Rejected(
    Refusal.UNAUTHORIZED_COMMAND, "payload.invitation: is missing, or was not made by this mediator"
)
EXPIRED = Rejected(Refusal.UNAUTHORIZED_COMMAND, "payload.invitation: has expired")
USED = Rejected(
    Refusal.UNAUTHORIZED_COMMAND,
    "payload.invitation: is for one use, and another identity has used it",
)


class RegistrationControl:
    """Decides who may register, before anything is stored."""

    def __init__(self, settings: Protocol, keys: MediatorKeys) -> None:
        self._registration = settings.registration
        self._allowed = frozenset(settings.allowed_dids)
        self._ids = InvitationIds(service_seed(keys), public=False)

    def admit(
        self, sender_did: str, invitation: str | None, now_s: float
    ) -> InvitationTerms | Rejected | None:
        """Decide whether the sender may register: its invitation, None without one, or why not.

        The caller must still use up an invitation for one use, unless the sender is registered.
        """
        terms = None if invitation is None else self._ids.read(invitation)
        if self._registration == "closed":
            return NOT_OPEN
        if self._registration == "allow_list" and sender_did not in self._allowed:
            return NOT_OPEN
        if terms is None:
            return UNKNOWN if self._registration == "invitation" else None
        return EXPIRED if terms.has_expired(now_s * 1000) else terms
