"""People of a made-up log, and the transactions in which they do something.

Streams, versions, partitions and nonces are as the mediator would have stored them; payloads are
random bytes, as encrypted ones are. Chance is seeded: the same seed gives the same log.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Callable
from random import Random
from typing import Final
from uuid import UUID

from eventsourcing.persistence import StoredEvent

from actors.nonces import expiry_ms
from actors.partitions import shard_of
from eventstore.codec import encode, identity_stream
from eventstore.events import Event, MessagesRemoved

SHARDS: Final = 16
WINDOW_MS: Final = 300_000
_IDS_KEPT: Final = 32
_TAGS: Final = 1_000
_ID_LENGTH: Final = 22
"""128 bits in base64url, as the mediator's ids."""


class Person:
    """One stream: an identity, a key or an invitation; and what its owner remembers."""

    __slots__ = (
        *("did", "shard", "stream", "version", "is_agent", "is_gone"),
        *("waiting", "requests", "saved", "published", "keys"),
    )

    def __init__(self, did: str, *, is_agent: bool = False, is_gone: bool = False) -> None:
        """Somebody without a past; who ``is_gone`` never fetches anything."""
        self.did = did
        self.shard = shard_of(did, SHARDS)
        self.stream: UUID = identity_stream(did)
        self.version = 0
        self.is_agent = is_agent
        self.is_gone = is_gone
        self.waiting: list[str] = []
        self.requests: list[str] = []
        self.saved: list[str] = []
        self.published: list[str] = []
        self.keys: list[Person] = []


class Part:
    """What a transaction has for one partition: rows, and nonces with their expiry in Unix ms."""

    __slots__ = ("nonces", "rows")

    def __init__(self) -> None:
        self.rows: list[StoredEvent] = []
        self.nonces: list[tuple[bytes, int]] = []


class Draft:
    """Transactions in the making, one after the other.

    Attributes:
        at_ms: When the transaction is decided, Unix milliseconds.
        parts: What it has for each partition.
        chance: Decides everything.
        payload_bytes: Size of messages and saved events.
        somebody: Somebody of a shard, the busy ones more often than others.
    """

    def __init__(
        self, chance: Random, payload_bytes: int, somebody: Callable[[str], Person]
    ) -> None:
        self.at_ms = 0
        self.parts: dict[str, Part] = {}
        self.chance = chance
        self.payload_bytes = payload_bytes
        self.somebody = somebody
        self._tags = [self.new_id() + self.new_id() for _ in range(_TAGS)]

    def begin(self, at_ms: int) -> None:
        """An empty transaction."""
        self.at_ms, self.parts = at_ms, {}

    def add(self, person: Person, event: Event) -> None:
        """The next event of a stream."""
        person.version += 1
        self._part(person.shard).rows.append(encode(person.stream, person.version, event))

    def command(self) -> bytes:
        """The key of a command without a nonce."""
        return self.chance.randbytes(16)

    def command_of(self, sender: Person) -> bytes:
        """The key of a command whose nonce the sender's shard keeps."""
        key = self.chance.randbytes(16)
        nonce = (key, expiry_ms(self.at_ms, self.at_ms, WINDOW_MS))
        self._part(sender.shard).nonces.append(nonce)
        return key

    def new_id(self) -> str:
        """A fresh id."""
        return urlsafe_b64encode(self.chance.randbytes(16))[:_ID_LENGTH].decode()

    def text(self, length: int) -> str:
        """Base64 of random bytes."""
        return urlsafe_b64encode(self.chance.randbytes(length * 3 // 4)).decode()

    def tags(self, count: int) -> list[str]:
        """Different tags of the thousand that there are."""
        return self.chance.sample(self._tags, count)

    def remove(self, person: Person, count: int, reason: str) -> None:
        """The oldest messages leave the queue."""
        gone, person.waiting = person.waiting[:count], person.waiting[count:]
        self.add(
            person,
            MessagesRemoved(
                at_ms=self.at_ms, command=self.command(), message_ids=gone, reason=reason
            ),
        )

    def _part(self, shard: str) -> Part:
        part = self.parts.get(shard)
        if part is None:
            part = self.parts[shard] = Part()
        return part


def remember(ids: list[str], new: str) -> None:
    """Keep the newest few ids, to change or withdraw what they name."""
    ids.append(new)
    if len(ids) > _IDS_KEPT:
        del ids[0]
