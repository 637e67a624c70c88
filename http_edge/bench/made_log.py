"""A made-up log of any length: realistic, sealed as the mediator does it, the same for a seed.

Half of the people are Decentrl identities, half DIDComm agents. One in a hundred events brings
somebody new; who came early does the most (activity falls with the rank to the power of -2/3);
one in ten never fetches what waits for it. A transaction holds what came within a moment, eight
events to a seal on average. Ten events a second make a day of 864,000 events.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final, TypeAlias
from uuid import UUID

from eventsourcing.persistence import StoredEvent

from eventstore.codec import encode, partition_stream
from eventstore.open_log import open_log
from eventstore.seal import GENESIS, pack_nonces, seal
from http_edge.bench import made_decentrl, made_didcomm
from http_edge.bench.made_people import SHARDS, WINDOW_MS, Draft, Part, Person

_FIRST_MS: Final = 1_893_456_000_000
"""2030-01-01; a constant, so that the same seed gives the same log."""
_EVENT_MS: Final = 100
_EVENTS_PER_PERSON: Final = 100
_EVENTS_PER_SEAL: Final = 8
_GONE: Final = 0.1
_RANK_POWER: Final = 3
"""A rank drawn as the cube of a uniform number has the density of a rank to the power -2/3."""
_ROWS_AT_ONCE: Final = 20_000
_CACHE_KIB: Final = 1_048_576
_INSERT: Final = "INSERT INTO stored_events VALUES (?, ?, ?, ?)"

_Act: TypeAlias = Callable[[Draft, Person], bool]


def write_log(
    path: Path,
    events: int,
    *,
    payload_bytes: int,
    seed: int = 0,
    progress: Callable[[int], None] = lambda _: None,
) -> int:
    """Make a log of at least this many events in a new SQLite file; how many it has.

    Only the log is written, for those who read it by position: no read models. Nothing is durable
    before the end. The cache takes up to 1 GiB of memory.

    Raises:
        OSError, sqlite3.Error: the file cannot be written.
    """
    open_log(f"sqlite:{path}").close()
    made = transactions(seed, payload_bytes)
    written = 0
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        connection.execute("BEGIN")
        while written < events:
            rows: list[StoredEvent] = []
            while len(rows) < min(_ROWS_AT_ONCE, events - written):
                rows += next(made)
            connection.executemany(_INSERT, map(_columns, rows))
            written += len(rows)
            progress(written)
        connection.execute("COMMIT")
        connection.execute("PRAGMA journal_mode = WAL")
    return written


def transactions(seed: int, payload_bytes: int) -> Iterator[list[StoredEvent]]:
    """The rows of one transaction after the other, without end."""
    return _World(random.Random(seed), payload_bytes).transactions()  # noqa: S311 - a made-up log


class _World:
    """All people, by shard and in the order in which they came."""

    def __init__(self, chance: random.Random, payload_bytes: int) -> None:
        self._chance = chance
        self._draft = Draft(chance, payload_bytes, self._somebody)
        self._people: dict[str, list[Person]] = {}
        self._shards: list[str] = []
        self._came = 0
        self._seals: dict[str, tuple[int, bytes]] = {}
        self._acts = (_hundred(made_decentrl.SHARES), _hundred(made_didcomm.SHARES))

    def transactions(self) -> Iterator[list[StoredEvent]]:
        events, chance, draft = 0, self._chance, self._draft
        while True:
            draft.begin(_FIRST_MS + events * _EVENT_MS)
            while self._came < SHARDS or self._came * _EVENTS_PER_PERSON < events:
                self._arrive()
            people = self._people[chance.choice(self._shards)]
            for _ in range(1 + int(chance.expovariate(1 / _EVENTS_PER_SEAL))):
                person = people[int(len(people) * chance.random() ** _RANK_POWER)]
                act = self._acts[person.is_agent][int(chance.random() * 100)]
                if not act(draft, person):
                    self._acts[person.is_agent][0](draft, person)
            rows = [row for shard, part in draft.parts.items() for row in self._sealed(shard, part)]
            events += len(rows)
            yield rows

    def _arrive(self) -> None:
        draft = self._draft
        is_agent = self._came % 2 == 1
        method = "key:z6Mk" if is_agent else "decentrl:"
        did = f"did:{method}{draft.new_id()}{draft.new_id()}"
        person = Person(did, is_agent=is_agent, is_gone=self._chance.random() < _GONE)
        if person.shard not in self._people:
            self._shards.append(person.shard)
        self._people.setdefault(person.shard, []).append(person)
        self._came += 1
        (made_decentrl, made_didcomm)[is_agent].arrive(draft, person)

    def _somebody(self, shard: str) -> Person:
        people = self._people[shard]
        return people[int(len(people) * self._chance.random() ** _RANK_POWER)]

    def _sealed(self, shard: str, part: Part) -> list[StoredEvent]:
        version, previous = self._seals.get(shard, (0, GENESIS))
        sealed = seal(
            part.rows,
            partition=shard,
            epoch=1,
            at_ms=self._draft.at_ms,
            window_ms=WINDOW_MS,
            nonces=pack_nonces(part.nonces),
            previous=previous,
        )
        self._seals[shard] = (version + 1, sealed.digest)
        return [*part.rows, encode(partition_stream(shard), version + 1, sealed)]


def _hundred(shares: Sequence[tuple[int, _Act]]) -> list[_Act]:
    """A hundred acts to draw from; the first one is what is done when another cannot be."""
    acts = [act for share, act in shares for _ in range(share)]
    assert len(acts) == 100  # noqa: PLR2004 - shares are percentages
    return acts


def _columns(row: StoredEvent) -> tuple[str, int, str, bytes]:
    stream = row.originator_id
    assert isinstance(stream, UUID)
    return stream.hex, row.originator_version, row.topic, row.state
