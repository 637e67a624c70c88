"""Takes contents and names out of exported rows that the log has erased since.

The log says what is erased. A content that the log still has stays. If the log has a row without
its content, the exported content goes only if another row says that it was erased: a damaged log
takes nothing out of its export. A row that has left the log has no content
(``eventstore.log.event_log``): that of a message goes, that of another row also only if a row of
the log says that it was erased; without such a row the other one is a loss.

A row loses the names that the log's row has lost (``eventstore.log.name_erasure``). A row that has
left the log loses the names of erased identities, if its seal covers its redacted state.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import repeat
from types import MappingProxyType
from typing import Final, NamedTuple
from uuid import UUID

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from eventstore.log.codec import decode, decode_seal
from eventstore.log.content import BEGINS_WITH_CONTENT, without_content
from eventstore.log.event_contents import ERASING
from eventstore.log.event_declaration import type_name
from eventstore.log.event_log import LogReader, LogRow
from eventstore.log.events import (
    SEAL_TOPIC,
    SEAL_TYPE,
    TYPE_BY_TOPIC,
    KeylistUpdated,
    MessageQueued,
    topics_of,
)
from eventstore.log.name_erasure import ALWAYS, without_names_of
from eventstore.log.redaction import (
    digest_of,
    erased_names,
    redacted_state,
    renamed_state,
)
from eventstore.log.row_check import covers_redacted
from eventstore.log.seam import seam_position
from eventstore.log.streams import ERASED, STREAM_BYTES, erased_name, stream_of
from eventstore.parquet.columns import to_table
from eventstore.parquet.rows import log_rows
from eventstore.parquet.schema import SCHEMA

_TOPICS: Final = topics_of(*ERASING)
_MESSAGE: Final = type_name(MessageQueued)
"""The type with a content that leaves the log with all that says that it was erased
(``actors.archive.leaving_rows``)."""
_KEYLIST: Final = type_name(KeylistUpdated)
_PAGE_ROWS: Final = 4_096
_PAGE_BYTES: Final = 8 * 1024 * 1024
_STATE: Final = SCHEMA.get_field_index("state")


def contents_in(table: pa.Table) -> int:
    """The number of exported rows that have their content."""
    count: int = pc.sum(_have_content(table["state"].combine_chunks())).as_py()
    return count


def _have_content(states: pa.BinaryArray) -> pa.BooleanArray:
    begins = pc.binary_slice(states, 0, 1)
    return pc.equal(begins, pa.scalar(BEGINS_WITH_CONTENT, begins.type))


def without_erased(log: LogReader, table: pa.Table) -> tuple[pa.Table, int]:
    """Take contents that the log has erased out of exported rows; return the rows and the count.

    Args:
        log: the log of the export.
        table: rows with all columns, by position.

    Raises:
        LogUnavailable: the log cannot be read now.
        SeamRefused, UnknownTopic, CorruptRow: its seam or a row of it cannot be understood.
    """
    states = table["state"].combine_chunks()
    numbers = pc.indices_nonzero(_have_content(states))
    rows = table.select(["position", "stream", "version", "type"]).take(numbers)
    messages = rows.filter(pc.equal(rows["type"], _MESSAGE))["position"].to_pylist()
    exported = dict(zip(rows["position"].to_pylist(), _places(rows), strict=True))
    erased = _erased(log, exported, messages)
    if not erased:
        return table, 0
    gone = pc.is_in(table["position"], value_set=pa.array(sorted(erased), pa.int64()))
    values = [
        without_content(state)[0] if is_gone else state
        for state, is_gone in zip(states.to_pylist(), gone.to_pylist(), strict=True)
    ]
    field = SCHEMA.field(_STATE)
    return table.set_column(_STATE, field, pa.array(values, field.type)), len(erased)


def _places(rows: pa.Table) -> Iterator[tuple[bytes, int]]:
    return zip(rows["stream"].to_pylist(), rows["version"].to_pylist(), strict=True)


def _erased(
    log: LogReader, exported: Mapping[int, tuple[bytes, int]], messages: Iterable[int]
) -> set[int]:
    """The positions of those rows, exported with a content, whose content was erased since.

    ``messages``: the positions of those among them that are messages.
    """
    if not exported:
        return set()
    seam = seam_position(log)
    # Those that have left, or have no content in the log.
    without = {position for position in exported if position <= seam}
    left = without.intersection(messages)
    named: set[tuple[bytes, int]] = set()
    reached, last = min(exported) - 1, max(exported)
    while reached < last:
        page = log.read_rows(after=reached, rows_max=_PAGE_ROWS, bytes_max=_PAGE_BYTES)
        for row in page:
            if row.topic in _TOPICS:
                named |= {(row.stream, version) for version in _versions(row.topic, row.state)}
            if row.position in exported:
                left.discard(row.position)
                if row.content is None:
                    without.add(row.position)
                else:
                    without.discard(row.position)
        reached = page[-1].position if page else last
    # Most contents are erased soon, by rows of the pages above; for others, read their streams.
    later = {exported[position] for position in without - left} - named
    for stream in {stream for stream, _ in later}:
        found = log.stream_rows(UUID(bytes=stream), topics=_TOPICS)
        named |= {(stream, version) for row in found for version in _versions(row.topic, row.state)}
    return left | {position for position in without if exported[position] in named}


def _versions(topic: str, state: bytes) -> Iterable[int]:
    event = decode(topic, state)
    assert isinstance(event, ERASING)
    return event.versions


class GoneNames(NamedTuple):
    """The streams, 16 bytes each, of identities whose names leave the export.

    ``identities``: the streams of all erased identities, each with the position up to which rows
    lose the name. ``streams``: the streams that have lost their name in this export's log: of such
    identities, and of the keys and invitations they took.
    """

    identities: Mapping[bytes, int] = MappingProxyType({})
    streams: frozenset[bytes] = frozenset()

    def is_gone(self, position: int, stream: bytes) -> bool:
        """Whether a row at this position loses the name of this identity."""
        return self.identities.get(stream, -1) >= position

    def is_nameless(self, position: int, stream: bytes) -> bool:
        """Whether a row at this position, of this stream, no longer names its identity."""
        return stream in self.streams and self.identities.get(stream, ALWAYS) >= position


_NAMED: Final = (
    *("sender_did", "recipient_did", "requestor_did", "owner_did", "by_did", "did"),
    *("recipient_key", "channel_id"),
)
_LISTING: Final = ("keys_added", "keys_removed", "tags")
COLUMNS_OF_NAMES: Final = (
    *("position", "stream", "identity", "version", "type", "type_version", "state"),
    *(*_NAMED, *_LISTING, "refusals"),
)
"""The columns that say which names rows have, and which the new states are made from."""


def rows_of(table: pa.Table, gone: GoneNames) -> set[int]:
    """The numbers of the rows, with ``COLUMNS_OF_NAMES``, that are to be of a nameless stream."""
    own = pa.array(sorted(gone.identities.keys() | gone.streams), pa.binary(STREAM_BYTES))
    is_own = pc.is_in(table["stream"], value_set=own)
    is_seal = pc.equal(table["type"], SEAL_TYPE)
    found = pc.indices_nonzero(pc.and_not(is_own, is_seal))
    rows = table.select(["position", "stream"]).take(found)
    places = zip(*(column.to_pylist() for column in rows.columns), strict=True)
    return {
        number
        for number, (position, stream) in zip(found.to_pylist(), places, strict=True)
        if gone.identities.get(stream, ALWAYS) >= position
    }


def rows_naming(table: pa.Table, gone: GoneNames) -> set[int]:
    """The numbers of the rows, with ``COLUMNS_OF_NAMES``, that name one of the identities."""
    numbers: set[int] = set()
    # A keylist may have lost a name in rows at any position (``eventstore.log.name_erasure``).
    is_keylist = pc.equal(table["type"], _KEYLIST)
    positions = pc.if_else(is_keylist, 0, table["position"]).to_pylist()

    def note(rows: Iterable[int], names: Iterable[str | None]) -> None:
        some = zip(rows, names, strict=True)
        numbers.update(n for n, name in some if _is_named(name, positions[n], gone))

    for column in _NAMED:
        names = [name for name in table[column].unique().to_pylist() if _is_named(name, 0, gone)]
        found = pc.indices_nonzero(pc.is_in(table[column], value_set=pa.array(names, pa.string())))
        note(found.to_pylist(), table[column].take(found).to_pylist())
    for column in _LISTING:
        listed = table[column].combine_chunks()
        note(pc.list_parent_indices(listed).to_pylist(), pc.list_flatten(listed).to_pylist())
    refusals = table["refusals"]
    for number in pc.indices_nonzero(refusals.is_valid()).to_pylist():
        counted = refusals[number].as_py()
        note([number] * len(counted), [one["sender_did"] for one in counted])
    return numbers


def _is_named(name: str | None, position: int, gone: GoneNames) -> bool:
    return bool(name and not name.startswith(ERASED) and gone.is_gone(position, stream_of(name)))


def names_erased(
    log: LogReader,
    rows: Sequence[LogRow],
    numbers: Sequence[int],
    gone: GoneNames,
    *,
    is_part: bool,
) -> dict[int, bytes]:
    """The new states of rows that lose a name, by position.

    Args:
        log: the log of the export.
        rows: the rows of a manifest, in the order of the log.
        numbers: the numbers of the rows that may lose a name.
        gone: the identities whose names leave.
        is_part: rows between them were pruned, so they cannot be compared with seals.

    Raises:
        LogUnavailable: the log cannot be read now.
    """
    seam = seam_position(log)
    wanted: defaultdict[bytes, list[int]] = defaultdict(list)
    for number in numbers:
        wanted[rows[number].stream].append(rows[number].version)
    stored = {
        (stream, version): row.state
        for stream, versions in wanted.items()
        for version, row in log.read_versions(UUID(bytes=stream), versions).items()
    }
    changed: dict[int, bytes] = {}
    is_redactable = _redactable(rows)
    for number in numbers:
        row = rows[number]
        now = stored.get((row.stream, row.version))
        if now is None and row.position <= seam:
            kind = TYPE_BY_TOPIC[row.topic]
            is_gone = partial(gone.is_gone, row.position)
            if is_gone(row.stream):
                now = renamed_state(kind, row.state, digest_of)
            else:
                now = without_names_of(is_gone, kind, row.state)
        if now is None or not _has_fewer_names(row, now):
            continue
        if is_part or is_redactable(number):
            changed[row.position] = now
    return changed


def _has_fewer_names(row: LogRow, state: bytes) -> bool:
    before, after = (
        sum(map(len, erased_names(row.topic, one).values())) for one in (row.state, state)
    )
    return after > before and redacted_state(row.topic, state) == redacted_state(
        row.topic, row.state
    )


def _redactable(rows: Sequence[LogRow]) -> Callable[[int], bool]:
    """The function that says whether the seal of a row, by its number, covers redacted states."""
    ends = [number for number, row in enumerate(rows) if row.topic == SEAL_TOPIC]

    @cache
    def covers(end: int) -> bool:
        sealed = decode_seal(rows[end].state)
        return covers_redacted(rows[max(0, end - sealed.rows) : end], sealed, repeat(None))

    def is_redactable(number: int) -> bool:
        after = bisect_left(ends, number)
        return after < len(ends) and covers(ends[after])

    return is_redactable


def positions_named(table: pa.Table, gone: GoneNames) -> list[int]:
    """The positions of rows in nameless streams that still name their identity."""
    columns = (table[name].to_pylist() for name in ("position", "stream", "identity"))
    return [
        position
        for position, stream, name in zip(*columns, strict=True)
        if gone.is_nameless(position, stream) and name and erased_name(name) != name
    ]


def with_states(table: pa.Table, states: Mapping[int, bytes], gone: GoneNames) -> pa.Table:
    """Replace states of exported rows (with all columns), and names of ``gone`` streams."""
    is_changed = pc.is_in(table["position"], value_set=pa.array(sorted(states), pa.int64()))
    changed = table.filter(is_changed)
    if changed.num_rows:
        parts = [table.filter(pc.invert(is_changed)), _with_states(changed, states)]
        table = pa.concat_tables(parts).sort_by("position").combine_chunks()
    number = SCHEMA.get_field_index("identity")
    columns = (table[name].to_pylist() for name in ("identity", "position", "stream"))
    names = [
        erased_name(name) if name and gone.is_nameless(position, stream) else name
        for name, position, stream in zip(*columns, strict=True)
    ]
    field = SCHEMA.field(number)
    return table.set_column(number, field, pa.array(names, field.type))


def _with_states(table: pa.Table, states: Mapping[int, bytes]) -> pa.Table:
    rows = [msgspec.structs.replace(row, state=states[row.position]) for row in log_rows(table)]
    named = dict(zip(table["stream"].to_pylist(), table["identity"].to_pylist(), strict=True))
    number = SCHEMA.get_field_index("shard")
    made = to_table(rows, lambda _streams: named)
    return made.add_column(number, SCHEMA.field(number), table["shard"].combine_chunks())
