"""Posting lists: the one table behind the read models of saved events and of public events.

A posting says that one event of a stream belongs to one list: all saved events of an owner, those
with a certain tag, those of a participant with that tag, and so on. Each filter that a query can
name has its own list, in the order of the answer, so that a page and its exact total are one
range scan of one list (measured with 1,000,000 events: under 50 ms on SQLite).

A list is named by 20 bytes: 8 of the owner's stream, so that all lists of a small owner lie on
the same few pages of the table, and 12 of a hash keyed with the whole stream id, so that any
string of a client (U+0000, 10 KB) is a key on both stores and no client can hit another's list.

Payloads stay in the log; a posting refers to them by version. Versions of one stream grow with
the log's positions, so (timestamp, version) is the order of (timestamp, position).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from eventstore.log.codec import decode, decode_whole
from eventstore.log.errors import PageTooLarge
from eventstore.log.event_log import PageBounds, StoredRecord
from eventstore.log.events import Event, Seconds
from eventstore.log.session import Session, StoredPosting

INSERT: Final = (
    "INSERT INTO postings (list, timestamp_s, version, revision, own)"
    " VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
)
_SHARED_MAX: Final = 512
"""Cached hashes: the lists of the events of one command or erasure share most of their names. A
name may have 10 KB."""
_ROWS_AT_ONCE: Final = 32
"""Rows of a page that are read together: their size is known only once they are in memory."""
PUT: Final = INSERT.replace(
    "DO NOTHING", "(list, timestamp_s, version) DO UPDATE SET revision = excluded.revision"
)

ListKey: TypeAlias = bytes
_Conditions: TypeAlias = list[tuple[str, float]]

_OFFSET_MAX: Final = 2**62
_SELECT: Final = "SELECT list, timestamp_s, version, revision, own FROM postings"
_IN_RANGE: Final = " WHERE list >= ? AND list < ? ORDER BY list, timestamp_s, version"
_AT: Final = (
    "SELECT timestamp_s, version, revision, own FROM postings"
    " WHERE list = ? AND timestamp_s = ? AND version = ?"
)
_DELETE_TO: Final = (
    "DELETE FROM postings WHERE list >= ? AND (list, timestamp_s, version) <= (?, ?, ?)"
)
_PLACE_BYTES: Final = 8
_KEY_BYTES: Final = 12
_LISTS_PER_QUERY: Final = 250
_MERGED_LISTS_MAX: Final = 4
"""Up to this number, lists are merged in index order; beyond it, sorting removes duplicates."""


class Posting(NamedTuple):
    """One event of a list.

    ``timestamp_s`` orders it, as the nearest double (the event keeps what the client wrote).
    ``revision`` is the version of the event that last replaced the tags, 0 if none did.
    ``own`` says that the owner of the list takes part in the event.
    """

    timestamp_s: float
    version: int
    revision: int = 0
    own: bool = False


class Narrowing(NamedTuple):
    """The filters of a list; None and False mean: no filter. Bounds are exclusive."""

    after_timestamp_s: Seconds | None = None
    before_timestamp_s: Seconds | None = None
    own: bool = False


def list_key(owner: UUID, *names: str) -> ListKey:
    """The key of the owner's list of these names."""
    return list_keys(owner, names[:-1], names[-1:])[0]


def list_keys(owner: UUID, names: Sequence[str], each: Iterable[str]) -> list[ListKey]:
    """``list_key(owner, *names, last)`` for ``each`` last name: what they share is hashed once.

    One tag then costs 1 instead of 5 us, and a command may have a thousand on four lists each.
    """
    stream = owner.bytes
    place = stream[:_PLACE_BYTES]
    shared = _shared(stream, tuple(names))
    keys = []
    for last in each:
        digest = shared.copy()
        digest.update(_with_length(last))
        keys.append(place + digest.digest())
    return keys


def tag_lists(owner: UUID, names: Sequence[str], tags: Iterable[str]) -> list[ListKey]:
    """The keys of the lists of these names with each of these tags."""
    return list_keys(owner, (*names, "tag"), dict.fromkeys(tags))


@lru_cache(maxsize=_SHARED_MAX)
def _shared(stream: bytes, names: tuple[str, ...]) -> hashlib.blake2b:
    """The hash of the names that keys have in common, to be copied."""
    shared = hashlib.blake2b(digest_size=_KEY_BYTES, key=stream)
    for name in names:
        shared.update(_with_length(name))
    return shared


def _with_length(name: str) -> bytes:
    text = name.encode("utf-8", "surrogatepass")
    return len(text).to_bytes(8, "big") + text


def on_lists(lists: Iterable[ListKey], posting: Posting) -> list[StoredPosting]:
    """The rows that put an event on lists."""
    timestamp_s, version, revision, own = posting
    return [(key, timestamp_s, version, revision, int(own)) for key in lists]


def add(session: Session, postings: Iterable[StoredPosting]) -> None:
    """Put events on lists; an event that is already on a list gets the new revision there.

    Rows are added in the order of the table, which is its index: a row takes 6 instead of 11 us
    (SQLite, 16,000 rows, each on a list of its own).
    """
    session.run_many(PUT, sorted(postings))


def remove(session: Session, postings: Iterable[StoredPosting]) -> None:
    """Remove events from lists."""
    session.run_many(
        "DELETE FROM postings WHERE list = ? AND timestamp_s = ? AND version = ?",
        sorted(posting[:3] for posting in postings),
    )


def newest(session: Session, lists: Sequence[ListKey]) -> dict[ListKey, Posting]:
    """The posting with the highest version of each list that is not empty."""
    found: dict[ListKey, Posting] = {}
    for start in range(0, len(lists), _LISTS_PER_QUERY):
        keys = lists[start : start + _LISTS_PER_QUERY]
        places = ", ".join("?" * len(keys))
        for key, timestamp_s, version, revision, own in session.rows(
            f"{_SELECT} WHERE list IN ({places}) ORDER BY version", keys
        ):
            found[bytes(key)] = Posting(timestamp_s, version, revision, bool(own))
    return found


def at(session: Session, key: ListKey, places: Sequence[tuple[float, int]]) -> list[Posting]:
    """The postings, if any, of one list at these timestamps and versions."""
    found: list[Posting] = []
    for start in range(0, len(places), _LISTS_PER_QUERY):
        some = places[start : start + _LISTS_PER_QUERY]
        select = " UNION ALL ".join([_AT] * len(some))
        found += [
            Posting(timestamp_s, version, revision, bool(own))
            for timestamp_s, version, revision, own in session.rows(
                select, [part for place in some for part in (key, *place)]
            )
        ]
    return found


def place_of(owner: UUID) -> tuple[ListKey, ListKey]:
    """The bounds of the keys of all lists of an owner."""
    place = owner.bytes[:_PLACE_BYTES]
    return place, place + b"\xff" * (_KEY_BYTES + 1)


def first_of(session: Session, low: ListKey, high: ListKey, most: int) -> list[StoredPosting]:
    """The first postings from one key up to another, in the order of the table."""
    return [
        (bytes(key), *posting)
        for key, *posting in session.rows(f"{_SELECT}{_IN_RANGE} LIMIT ?", (low, high, most))
    ]


def remove_range(session: Session, low: ListKey, high: ListKey, most: int) -> tuple[int, ListKey]:
    """Remove the first postings from one key up to another, at most ``most`` of them.

    Returns how many it removed, and the key from which on there may be more.
    """
    last = session.rows(f"{_SELECT}{_IN_RANGE} LIMIT 1 OFFSET ?", (low, high, most - 1))
    if last:
        session.run_many(_DELETE_TO, [(low, *last[0][:3])])
        return most, bytes(last[0][0])
    ((count,),) = session.rows(
        "SELECT count(*) FROM postings WHERE list >= ? AND list < ?", (low, high)
    )
    if count:
        session.run_many("DELETE FROM postings WHERE list >= ? AND list < ?", [(low, high)])
    return int(count), high


def is_empty(session: Session, key: ListKey) -> bool:
    """Whether nothing is on a list."""
    # In the order of the index: else PostgreSQL reads the table up to the first match.
    find = "SELECT 1 FROM postings WHERE list = ? ORDER BY timestamp_s LIMIT 1"
    return not session.rows(find, (key,))


def page(
    session: Session,
    lists: Sequence[ListKey],
    narrowing: Narrowing,
    bounds: PageBounds,
    *,
    newest_first: bool,
) -> tuple[list[Posting], int]:
    """A page of the union of lists by (timestamp, version), and the total.

    The scan for the page passes over the entries before it; after that only the entries behind the
    page are counted. So page and total together read every entry once.
    """
    offset, limit, _ = bounds
    select, parameters = _select(lists, _conditions(narrowing))
    direction = "DESC" if newest_first else "ASC"
    postings = [
        Posting(*row)
        for row in session.rows(
            f"{select} ORDER BY 1 {direction}, 2 {direction} LIMIT ? OFFSET ?",
            [*parameters, limit, min(offset, _OFFSET_MAX)],
        )
    ]
    if len(postings) < limit and (postings or offset == 0):
        return postings, offset + len(postings)
    if not postings:
        return postings, _count(session, lists, _conditions(narrowing))
    total = offset + len(postings)
    for beyond in _beyond(postings[-1], narrowing, newest_first=newest_first):
        total += _count(session, lists, beyond)
    return postings, total


def _conditions(narrowing: Narrowing) -> _Conditions:
    conditions: _Conditions = []
    if narrowing.after_timestamp_s is not None:
        conditions.append(("timestamp_s > ?", float(narrowing.after_timestamp_s)))
    if narrowing.before_timestamp_s is not None:
        conditions.append(("timestamp_s < ?", float(narrowing.before_timestamp_s)))
    if narrowing.own:
        conditions.append(("own = ?", 1))
    return conditions


def _beyond(last: Posting, narrowing: Narrowing, *, newest_first: bool) -> Iterator[_Conditions]:
    """The entries after ``last``, as two ranges of the index: its own timestamp, and the rest.

    The new bound of the rest replaces the old one: of two bounds on one side, SQLite may scan by
    the wider one (measured: 70 instead of 15 ms).
    """
    tie = ("version < ?" if newest_first else "version > ?", last.version)
    same = _conditions(Narrowing(own=narrowing.own))
    yield [("timestamp_s = ?", last.timestamp_s), tie, *same]
    if newest_first:
        yield _conditions(narrowing._replace(before_timestamp_s=last.timestamp_s))
    else:
        yield _conditions(narrowing._replace(after_timestamp_s=last.timestamp_s))


def _count(session: Session, lists: Sequence[ListKey], conditions: _Conditions) -> int:
    select, parameters = _select(lists, conditions)
    # The order makes SQLite merge the lists by index instead of sorting their union.
    ordered = f"{select} ORDER BY 1, 2" if len(lists) > 1 else select
    found = session.rows(f"SELECT count(*) FROM ({ordered}) AS matches", parameters)  # noqa: S608 - own text
    total: int = found[0][0]
    return total


def _select(lists: Sequence[ListKey], conditions: _Conditions) -> tuple[str, list[object]]:
    """The postings of the union of lists, each event once."""
    columns = "timestamp_s, version, revision"
    narrowed = "".join(f" AND {condition}" for condition, _ in conditions)
    bounds = [bound for _, bound in conditions]
    if len(lists) > _MERGED_LISTS_MAX:
        places = ", ".join("?" * len(lists))
        select = f"SELECT DISTINCT {columns} FROM postings WHERE list IN ({places}){narrowed}"  # noqa: S608 - own text
        return select, [*lists, *bounds]
    select = f"SELECT {columns} FROM postings WHERE list = ?{narrowed}"  # noqa: S608 - own text
    return " UNION ".join([select] * len(lists)), [p for key in lists for p in (key, *bounds)]


def facts_of(session: Session, stream: UUID, versions: Collection[int]) -> dict[int, Event]:
    """The events of a stream by version, without contents, and so whatever became of these.

    Raises:
        UnknownTopic, CorruptRow: a row cannot be understood.
    """
    stored = session.stored(stream, versions)
    return {version: decode(row.topic, row.state) for version, row in stored.items()}


def events_of_page(
    session: Session, stream: UUID, versions: Collection[int], bytes_max: int | None
) -> dict[int, Event]:
    """The events of a stream for a page, with contents, by version; None means no bound.

    Raises:
        PageTooLarge: they are more than ``bytes_max``. Little more than that is read.
        UnknownTopic, CorruptRow: a row cannot be understood, or its content does not fit it.
    """
    records: dict[int, StoredRecord] = {}
    ordered, left_bytes = sorted(versions), bytes_max or math.inf
    at_once = len(ordered) if bytes_max is None else _ROWS_AT_ONCE
    for start in range(0, len(ordered), at_once or 1):
        found = session.records(stream, ordered[start : start + at_once])
        left_bytes -= sum(len(row.state) + len(kept or b"") for row, kept in found.values())
        if left_bytes < 0:
            raise PageTooLarge(f"more than {bytes_max} bytes")
        records.update(found)
    return {
        version: decode_whole(row.topic, row.state, kept)
        for version, (row, kept) in records.items()
    }
