"""What a decision is: data that says what to store and what to answer."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from hashlib import blake2b
from typing import TypeAlias

import msgspec

from actors.core.commands import Page
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


class MessageRefs(msgspec.Struct, frozen=True):
    """A page of waiting messages before it is read: versions in the log, total, payload bytes."""

    versions: list[int]
    total: int
    size_bytes: int


class RequestRefs(msgspec.Struct, frozen=True):
    """The same of waiting contract requests; bytes as in ``actors.core.stored_bytes``."""

    versions: list[int]
    total: int
    size_bytes: int


class ContractRefs(msgspec.Struct, frozen=True):
    """The same of contracts, of which ``looked_at`` were held against a filter."""

    versions: list[int]
    total: int
    size_bytes: int
    looked_at: int = 0


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


def exceeds(page: Page, records: int, size_bytes: int) -> bool:
    """Has a page more bytes than it may have? It is refused then and not cut short.

    Clients count on its size. One record alone is always a page, or it could not be read at all.
    """
    return page.bytes_max is not None and size_bytes > page.bytes_max and records > 1
