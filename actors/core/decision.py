"""Decisions as data: what to store and what to answer."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from hashlib import blake2b
from typing import Final, TypeAlias

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

TOGETHER_BYTES_MAX: Final = 1_048_576
"""Pages of messages that one transaction reads, which they delay by 3 ms for each MiB; further ones
are read outside of it. Small pages of several identities are read with one query up to this
size."""


class DecisionContext(msgspec.Struct, frozen=True, gc=False):
    """All that a decision may know beyond state and command.

    ``target`` is the identity that decides, as in ``Submission.target_did``. ``command`` is the key
    of the command in the log. ``fresh_id`` is new for every command; a command that needs several
    ids derives them from it, and derives the salts of contents from it and ``secret``, which is
    stored nowhere. ``leases`` are those in force on the identity's messages; ``listening``: a
    session waits for messages; ``live`` is the live mode and its session; ``implicit`` is the
    session that holds implicit pickup, or empty. ``speaker`` is the DID that sent the command's
    message, empty for the mediator itself. ``listed`` says where the target's saved events are
    listed; the host looks it up only for an erasure. ``saved`` are the ids, among those that the
    command names, of saved events that the target has. ``page_bytes_max`` is the size up to which
    the transaction reads a delivery itself. ``ahead_ms`` is by how much the clock has gone ahead,
    if nothing expires by that yet.
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
    page_bytes_max: int = TOGETHER_BYTES_MAX
    ahead_ms: int = 0

    @property
    def now_s(self) -> float:
        """Unix seconds, the unit of expiries."""
        return self.now_ms / 1000

    @property
    def expiring_ms(self) -> int:
        """The time by which records expire and are removed for good, in Unix milliseconds."""
        return self.now_ms - self.ahead_ms

    @property
    def expiring_s(self) -> float:
        """The same in Unix seconds."""
        return self.expiring_ms / 1000

    def content(self, data: bytes, number: int = 0) -> Content:
        """Make a content of the command; ``number`` tells several contents apart."""
        place = (f"{self.fresh_id}.{number}" if number else self.fresh_id).encode()
        return Content.of(data, blake2b(place, digest_size=SALT_BYTES, key=self.secret).digest())


class PageRefs(msgspec.Struct, frozen=True):
    """A page of records not yet read: versions in the log, how many match, and bytes."""

    versions: list[int]
    total: int
    size_bytes: int


class MessageRefs(PageRefs, frozen=True):
    """A page of waiting messages; bytes of their payloads."""


class RequestRefs(PageRefs, frozen=True):
    """A page of waiting contract requests; bytes as in ``actors.core.stored_bytes``."""


class ContractRefs(PageRefs, frozen=True):
    """A page of contracts; bytes as in ``actors.core.stored_bytes``."""


class DeliveryRefs(msgspec.Struct, frozen=True):
    """A delivery not yet read: versions in the log, payload bytes, and the queue's state."""

    versions: list[int]
    size_bytes: int
    state: QueueState


Refs: TypeAlias = MessageRefs | RequestRefs | ContractRefs | DeliveryRefs


class Leasing(msgspec.Struct, frozen=True):
    """Messages to lease, and the lease: its session and its end."""

    message_ids: Sequence[str]
    lease: Lease


class Accepted(msgspec.Struct, frozen=True, gc=False):
    """Accepted: store ``events``, then answer ``reply``, then push ``notice`` to the identity.

    The host fills a reply of ``Refs`` from the log after the commit. ``leasing`` starts at once.
    ``looked_at``: records that were tested one by one to find those of the reply, at most.
    """

    reply: Reply | Refs
    events: list[Event] = []
    notice: Notice | None = None
    leasing: Leasing | None = None
    looked_at: int = 0


Decision: TypeAlias = Accepted | Refusal


def answered_page(
    kind: type[MessageRefs | RequestRefs | ContractRefs],
    page: Page,
    records: Sequence[tuple[int, int]],
    total: int,
    *,
    looked_at: int = 0,
) -> Decision:
    """Answer with a page of records, each a version and its bytes, unless it exceeds its bound."""
    size_bytes = sum(size for _, size in records)
    if exceeds(page, len(records), size_bytes):
        return Refusal.INVALID_COMMAND
    refs = kind([version for version, _ in records], total, size_bytes)
    return Accepted(refs, looked_at=looked_at)


def exceeds(page: Page, records: int, size_bytes: int) -> bool:
    """Is a page larger than its bound? It is then refused, not cut short.

    Clients rely on the page size. A page of one record is always allowed: otherwise a large record
    could never be read.
    """
    return page.bytes_max is not None and size_bytes > page.bytes_max and records > 1
