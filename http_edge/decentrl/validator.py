"""Validate a command without state: who signed it, what it does, and to which identity.

This module uses no state, no clock and no network. The checks have the order of DCTRL-0004 6.2 and
7.2 (resolve → key → signature → payload → authorization), so the first failure determines the code.
Checks that depend on registrations, contracts or queues are left to the identity.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, TypeAlias

import msgspec

from actors.core.commands import Command, Page
from actors.core.refusals import Refusal
from http_edge.crypto.encoding import b64decode_exactly
from http_edge.crypto.invitation_ids import InvitationIds, InvitationTerms
from http_edge.crypto.mediator_keys import MediatorKeys, service_seed
from http_edge.crypto.signatures import SIGNATURE_BYTES, verify
from http_edge.decentrl.answers import Answering, Rejected, invalid
from http_edge.decentrl.envelope import CommandEnvelope
from http_edge.decentrl.payloads import PayloadInvalid, read_payload
from http_edge.dids import contract_profile
from http_edge.dids.resolver import Resolver
from http_edge.settings.settings import Settings

_NOT_OPEN = Rejected(
    Refusal.UNAUTHORIZED_COMMAND, "header.sender_did: may not register with this mediator"
)
_UNKNOWN = Rejected(
    Refusal.UNAUTHORIZED_COMMAND, "payload.invitation: is missing, or was not made by this mediator"
)
_EXPIRED = Rejected(Refusal.UNAUTHORIZED_COMMAND, "payload.invitation: has expired")
INVITATION_USED = Rejected(
    Refusal.UNAUTHORIZED_COMMAND,
    "payload.invitation: is for one use, and another identity has used it",
)


class Addressee(Enum):
    """Which recipient the header of a command must name."""

    ANY = "any DID"
    RESOLVED = "a DID that resolves"
    MEDIATOR = "this mediator"


class ValidatedCommand(msgspec.Struct, frozen=True):
    """A command that passed, and the target identity, which decides on it.

    ``answer`` makes the answer of the reply if it is accepted; ``page`` is what a query asks for.
    ``registered_first`` names an identity, other than the target, that must be registered before
    the command counts (6.2 step 4). ``rejection`` stands in the command itself and counts only
    after authorization, or the identity finds its reason; the details are here.
    ``invitation_id`` names an invitation for one use that the sender has to use up before, unless
    it is registered.
    ``unregistered`` is said of a target that is not registered and that the header does not name.
    """

    target_did: str
    command: Command
    answer: Answering
    page: Page | None = None
    registered_first: str | None = None
    rejection: Rejected | None = None
    invitation_id: str = ""
    unregistered: Rejected | None = None


class CommandRequest(msgspec.Struct, frozen=True):
    """A command with a valid signature, as ``CommandRow.validate`` gets it.

    ``signed`` is what the signature covers: the canonical JSON of header and payload.
    """

    envelope: CommandEnvelope
    signed: bytes
    public_key: bytes
    now_s: float
    answer: Answering
    validator: CommandValidator

    @property
    def settings(self) -> Settings:
        """The settings of this mediator."""
        return self.validator.settings

    def own(
        self,
        command: Command,
        *,
        page: Page | None = None,
        rejection: Rejected | None = None,
    ) -> ValidatedCommand:
        """The command for the sender's own identity."""
        return ValidatedCommand(
            self.envelope.sender_did, command, self.answer, page, rejection=rejection
        )


Validate: TypeAlias = Callable[[CommandRequest, Any], ValidatedCommand | Rejected]


class CommandRow(msgspec.Struct, frozen=True):
    """One command of the protocol: its payload, whom it is for, what it does, its answer.

    ``validate`` turns the payload into the command and may raise ``PayloadInvalid``. Who may send
    the command is a rule of the identity that it is for (``actors.core.decide``).
    """

    payload: type[Any]
    addressee: Addressee
    validate: Validate
    answer: Answering


CommandTable: TypeAlias = Mapping[str, CommandRow | Mapping[str, CommandRow]]
"""Rows by channel; by channel and payload type if a channel has several commands."""


class CommandValidator:
    """Validates commands for one mediator."""

    def __init__(
        self, settings: Settings, keys: MediatorKeys, resolver: Resolver, table: CommandTable
    ) -> None:
        """A validator of the commands of ``table``; the keys open registration requests."""
        self.settings = settings
        self.keys = keys
        self.resolver = resolver
        self._allowed = frozenset(settings.protocol.allowed_dids)
        self._invitations = InvitationIds(service_seed(keys), public=False)
        self._table = table

    def admit(
        self, sender_did: str, invitation: str | None, now_s: float
    ) -> InvitationTerms | Rejected | None:
        """Decide whether the sender may register: its invitation, None without one, or why not.

        ``Protocol.registration`` selects who may, with the values of ``DidComm.registration``:
        DCTRL-0004 8.1 is silent. An identity that has registered once may always renew: its own
        state decides that (``Register``). An invitation by this mediator binds in every mode; any
        other text counts as no invitation. The caller must still use up an invitation for one use,
        unless the sender is registered.
        """
        terms = None if invitation is None else self._invitations.read(invitation)
        mode = self.settings.protocol.registration
        if mode == "closed" or (mode == "allow_list" and sender_did not in self._allowed):
            return _NOT_OPEN
        if terms is None:
            return _UNKNOWN if mode == "invitation" else None
        return _EXPIRED if terms.has_expired(now_s * 1000) else terms

    def dids_to_resolve(self, command: CommandEnvelope) -> list[str]:
        """The DIDs that ``validate`` will resolve; the caller fetches those that need the network.

        Unverified: an attacker may name any DID here, so fetches must be bounded.
        """
        dids = [command.sender_did]
        if command.channel == "TWO_WAY_PRIVATE":
            dids.append(command.recipient_did)
        elif isinstance(command.payload, dict):
            signed = command.payload.get("signed_communication_contract")
            dids += contract_profile.participants(signed) or ()
        return dids

    def validate(self, command: CommandEnvelope, now_s: float) -> ValidatedCommand | Rejected:
        """Validate a command, except for its timestamp and nonce, which are checked elsewhere."""
        resolver = self.resolver
        document = resolver.known(command.sender_did)
        if document is None:
            rule = resolver.why_unknown(command.sender_did)
            return Rejected(Refusal.SENDER_NOT_FOUND, f"header.sender_did: {rule}")
        public_key = document.signing_keys.get(command.sender_signing_key_id)
        if public_key is None:
            return Rejected(Refusal.SENDER_SIGNING_KEY_NOT_FOUND)
        # The cheap check first: the sender has proven nothing yet.
        signature = b64decode_exactly(command.signature, SIGNATURE_BYTES)
        if signature is None:
            return Rejected(
                Refusal.INVALID_SIGNATURE, f"signature: is not base64 of {SIGNATURE_BYTES} bytes"
            )
        signed = command.signed_bytes()
        if not verify(public_key, signed, signature):
            return Rejected(Refusal.INVALID_SIGNATURE)
        try:
            row = self._row(command)
            payload = read_payload(row.payload, command.payload, self.settings.limits)
            if row.addressee is Addressee.RESOLVED and (
                resolver.known(command.recipient_did) is None
            ):
                rule = resolver.why_unknown(command.recipient_did)
                return Rejected(Refusal.RECIPIENT_NOT_FOUND, f"header.recipient_did: {rule}")
            request = CommandRequest(command, signed, public_key, now_s, row.answer, self)
            # All rules of the payload come before authorization, those of the row's own included.
            result = row.validate(request, payload)
        except PayloadInvalid as broken:
            return invalid(broken.detail)
        if row.addressee is Addressee.MEDIATOR and (
            command.recipient_did != self.settings.mediator_did
        ):
            return Rejected(
                Refusal.UNAUTHORIZED_COMMAND, "header.recipient_did: is not this mediator"
            )
        return result

    def _row(self, command: CommandEnvelope) -> CommandRow:
        rows = self._table[command.channel]
        if isinstance(rows, CommandRow):
            return rows
        if not isinstance(command.payload, dict):
            raise PayloadInvalid("payload: is not an object")
        kind = command.payload.get("type")
        row = rows.get(kind) if isinstance(kind, str) else None
        if row is None:
            raise PayloadInvalid("payload.type: is not a command of this channel")
        return row
