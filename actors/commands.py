"""Everything that can be asked of an identity: one closed family of commands.

Rules of this file: commands are frozen records of primitive fields, free of any wire format;
``Command`` is the whole family, so a missing case in ``actors.decisions`` fails type checking.

Units: ``*_s`` Unix seconds, ``*_ms`` Unix milliseconds. ``target`` of a ``Submission`` names
the identity that decides; the command itself names the others.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from actors.refusals import Refusal
from eventstore.events import Seconds
from eventstore.log import PublicEventsFilter, SavedEventsFilter


class _Command(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of all commands: a tagged array on the wire between edge and host."""


class Page(msgspec.Struct, frozen=True, array_like=True):
    """Zero-based page and its size (DCTRL-0004 9.1)."""

    number: int
    size: int

    @property
    def offset(self) -> int:
        """Records before the page."""
        return self.number * self.size


class Contract(msgspec.Struct, frozen=True, array_like=True):
    """A signed contract whose signatures the edge has verified.

    ``signed`` is the received object in canonical JSON, ``digest`` its SHA-256.
    """

    requestor_did: str
    recipient_did: str
    expires_at_s: Seconds
    digest: bytes
    signed: bytes


class Register(_Command, frozen=True):
    """Store a contract between the target and the mediator (8.1, registration)."""

    contract: Contract


class RequestContract(_Command, frozen=True):
    """Store an encrypted contract request for the target (8.1, forwarded)."""

    sender_did: str
    encrypted_contract_request: str
    requestor_ephemeral_public_key: str


class StoreContract(_Command, frozen=True):
    """Store a contract that another party answered for the target (8.2).

    ``contract`` is the edge's verdict: a refusal counts only after authorization.
    """

    contract: Contract | Refusal


class SaveContract(_Command, frozen=True):
    """Store a contract that the target itself saves (8.5).

    ``contract`` is the edge's verdict: a refusal counts only after authorization.
    """

    contract: Contract | Refusal


class QueryContractRequests(_Command, frozen=True):
    """A page of the target's waiting contract requests (8.3)."""

    page: Page


class AcknowledgeContractRequests(_Command, frozen=True):
    """Drop waiting contract requests; unknown ids are ignored (8.4)."""

    request_ids: list[str]


class QueryContracts(_Command, frozen=True):
    """A page of the target's contracts (8.6). Bounds are exclusive; None is no filter."""

    page: Page
    did: str | None = None
    expires_before_s: Seconds | None = None
    expires_after_s: Seconds | None = None


class QueueMessage(_Command, frozen=True):
    """Queue an opaque message from ``sender_did`` for the target (7.2)."""

    sender_did: str
    payload: bytes


class QueryMessages(_Command, frozen=True):
    """A page of the target's waiting messages, oldest first (8.7)."""

    page: Page
    sender_did: str | None = None


class AcknowledgeMessages(_Command, frozen=True):
    """Remove waiting messages; unknown ids are ignored (8.8)."""

    message_ids: list[str]


class NewSavedEvent(msgspec.Struct, frozen=True, array_like=True):
    """One event to save (8.9)."""

    sender_did: str
    recipient_did: str
    contract_id: str | None
    timestamp_s: Seconds
    payload: str
    encrypted_tags: list[str]


class SaveEvents(_Command, frozen=True):
    """Save storage-encrypted events, all or none (8.9)."""

    events: list[NewSavedEvent]


class QuerySavedEvents(_Command, frozen=True):
    """Ask for leave to read a page of saved events (8.10); the read model answers."""

    page: Page
    where: SavedEventsFilter


class TagUpdate(msgspec.Struct, frozen=True, array_like=True):
    """The new tags of one saved event (8.11)."""

    event_id: str
    encrypted_tags: list[str]


class UpdateEventTags(_Command, frozen=True):
    """Replace the tags of saved events; foreign and unknown ids are skipped (8.11)."""

    updates: list[TagUpdate]


class PublishPublicEvent(_Command, frozen=True):
    """Publish an event (DCTRL-0007); ``signature_valid`` is the edge's verdict on it."""

    channel_id: str
    event: str
    tags: list[str]
    timestamp_s: Seconds
    event_signature: str
    signature_valid: bool


class DeletePublicEvents(_Command, frozen=True):
    """Withdraw public events; unknown and foreign ids are ignored (DCTRL-0007)."""

    event_ids: list[str]
    channel_id: str | None = None


class CheckRegistered(_Command, frozen=True):
    """Is the target registered? Refused with RECIPIENT_NOT_REGISTERED if not (6.2 step 4)."""


class OpenSession(_Command, frozen=True):
    """Start pushing the target's notifications to ``edge`` (10.2 step 7, 10.5)."""

    edge: str


class CloseSession(_Command, frozen=True):
    """Stop pushing the target's notifications to ``edge``: its last socket there closed."""

    edge: str


Command: TypeAlias = (
    Register
    | RequestContract
    | StoreContract
    | SaveContract
    | QueryContractRequests
    | AcknowledgeContractRequests
    | QueryContracts
    | QueueMessage
    | QueryMessages
    | AcknowledgeMessages
    | SaveEvents
    | QuerySavedEvents
    | UpdateEventTags
    | PublishPublicEvent
    | DeletePublicEvents
    | CheckRegistered
    | OpenSession
    | CloseSession
)


class NonceClaim(msgspec.Struct, frozen=True, array_like=True):
    """The sender's nonce, to be claimed before anything else (5.4).

    ``key`` is ``eventstore.seal.command_key``; ``timestamp_ms`` is the header's.
    """

    partition: str
    key: bytes
    timestamp_ms: float


class Submission(msgspec.Struct, frozen=True, array_like=True):
    """One item of a batch from an edge to a host.

    Processed in the order of DCTRL-0004 5.4 and 6.2: first ``claim`` (if any), then ``refusal``
    (the edge's stateless verdict: resolution, key, signature, payload), then ``command``.
    A claim alone (no command) answers ``Done``. ``command_key`` is repeated in the events.
    """

    partition: str
    target_did: str
    command_key: bytes
    claim: NonceClaim | None = None
    refusal: Refusal | None = None
    command: Command | None = None


class Read(msgspec.Struct, frozen=True, array_like=True):
    """A read of a read model that needs no leave, or for which leave was given."""

    owner_did: str
    page: Page
    where: SavedEventsFilter | PublicEventsFilter
