"""What a decision is: data that says what to store and what to answer."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from hashlib import blake2b
from typing import Final, TypeAlias

import msgspec

from actors.core.leases import Lease
from actors.core.limits import IdentityLimits
from actors.core.refusals import Refusal
from actors.core.replies import Notice, QueueState, Reply
from actors.core.sessions import NO_LIVE_MODE, LiveMode
from eventstore.log.content import SALT_BYTES, Content
from eventstore.log.event_log import Listed
from eventstore.log.events import Event


class DecisionContext(msgspec.Struct, frozen=True, gc=False):
    """All that a decision may know beyond state and command.

    ``target`` is the identity that decides, as in ``Submission.target_did``. ``command`` is the key
    of the command in the log; ``fresh_id`` is new for every command, and a command that needs
    several ids derives them from it; so it does salts of contents, from ``secret``, too, which is
    stored nowhere. ``leases`` are those in force on the identity's messages;
    ``listening``: a session waits for them; ``live`` holds the live mode, and the session
    ``implicit`` holds implicit pickup, none if empty. ``speaker`` is the DID whose message the
    command comes of, empty for the mediator itself. ``listed`` is where saved
    events of the target are listed; it is looked up when these are to be erased. ``saved`` are
    those ids of its saved events that the command names.
    """

    target: str
    now_ms: int
    command: bytes
    fresh_id: str
    secret: bytes
    limits: IdentityLimits
    leases: Mapping[str, Lease] = {}
    listening: bool = False
    live: LiveMode = NO_LIVE_MODE
    implicit: str = ""
    speaker: str = ""
    listed: Listed = Listed.NOT
    saved: Collection[str] = ()

    @property
    def now_s(self) -> float:
        """Unix seconds, the unit of expiries."""
        return self.now_ms / 1000

    def content(self, data: bytes, number: int = 0) -> Content:
        """A content that the command brings, one of several by its number."""
        place = (f"{self.fresh_id}.{number}" if number else self.fresh_id).encode()
        return Content.of(data, blake2b(place, digest_size=SALT_BYTES, key=self.secret).digest())


_RECORD_BYTES: Final = 4_096
"""Roughly what one contract or contract request takes."""


class MessageRefs(msgspec.Struct, frozen=True):
    """A page of waiting messages before it is read: versions in the log, total, payload bytes."""

    versions: list[int]
    total: int
    size_bytes: int


class RequestRefs(msgspec.Struct, frozen=True):
    """A page of waiting contract requests before it is read: versions, and the total."""

    versions: list[int]
    total: int

    @property
    def size_bytes(self) -> int:
        """Roughly what the page takes."""
        return _RECORD_BYTES * len(self.versions)


class ContractRefs(msgspec.Struct, frozen=True):
    """A page of contracts before it is read: versions in the log, and the total."""

    versions: list[int]
    total: int

    @property
    def size_bytes(self) -> int:
        """Roughly what the page takes."""
        return _RECORD_BYTES * len(self.versions)


class DeliveryRefs(msgspec.Struct, frozen=True):
    """A delivery before it is read: versions in the log, payload bytes, and the queue's state."""

    versions: list[int]
    size_bytes: int
    state: QueueState


Refs: TypeAlias = MessageRefs | RequestRefs | ContractRefs | DeliveryRefs


class Leasing(msgspec.Struct, frozen=True):
    """Messages to lease to a session, until then in Unix ms."""

    message_ids: Sequence[str]
    lease: Lease


class Accepted(msgspec.Struct, frozen=True, gc=False):
    """Accepted: store ``events``, then answer ``reply``, then push ``notice`` to the identity.

    A reply of ``Refs`` is filled from the log after the commit. ``leasing`` holds from now on.
    """

    reply: Reply | Refs
    events: list[Event] = []
    notice: Notice | None = None
    leasing: Leasing | None = None


Decision: TypeAlias = Accepted | Refusal
