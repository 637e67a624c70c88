"""Which rows at the beginning of an archive nothing needs any more.

The rows that leave for ever are the traffic that leaves the log (``actors.archive.leaving_rows``):
removed messages with their expiries and what happened to them, counts of refusals, signs of life of
agents but the newest, old seals. All rows stay from which the states of identities follow: a state
folded from the rows that stay, each at its version, equals the state folded from all rows, in the
layout of any release. This is checked for each stream, and if its state would differ, all its rows
stay. So restoring a log, building tables and folding states need no row that left.

A message's row never stays when the row that removed the message leaves. The first and the last row
of a stream never leave, nor do the seals that a new owner reads for its nonces.

What a stream can lose follows from its rows alone. So a stream without a row after the part that
was pruned before has lost all it could, and is not planned again: what the rules of that time kept,
but those of today do not, stays until the stream has a new row.

Memory: the states of ``STREAMS_AT_ONCE`` identities, one bit for each position of the parts of the
log that rows leave, and some 150 bytes for each stream with rows after the part pruned before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeAlias

from actors.core.evolve import evolve
from actors.core.identity import Identity
from actors.core.limits import TIMESTAMP_WINDOW_MS_MAX
from actors.host.owned_partition import is_too_old
from eventstore.log.codec import decode, decode_seal
from eventstore.log.errors import RowsStay
from eventstore.log.event_log import LogRow
from eventstore.log.events import (
    SEAL_TOPIC,
    AgentSeen,
    AnyMessageQueued,
    AnyMessagesRemoved,
    Event,
    MessageExpirySet,
    MessagesDelivered,
    QueueRefused,
    RefusalsCounted,
)
from eventstore.log.signs_of_life import is_sign_of_life
from eventstore.parquet.write.pruning import Positions

STREAMS_AT_ONCE: Final = 20_000
"""States in memory, usually some kilobytes each; the rows are read twice for each such group."""
_FIRST: Final = 1

ReadRows: TypeAlias = Callable[[], Iterable[Sequence[LogRow]]]
"""Reads the same rows again from the start, in the order of the log."""


def not_needed(
    read: ReadRows,
    pruned_up_to: int,
    *,
    window_ms: int = TIMESTAMP_WINDOW_MS_MAX,
    streams_at_once: int = STREAMS_AT_ONCE,
) -> Positions:
    """Find the rows that nothing needs.

    Rows up to ``pruned_up_to`` may be missing already. Seals stay that are needed under
    ``window_ms``, the widest timestamp window of the settings.

    Raises:
        RowsStay: a row after ``pruned_up_to`` is missing.
        UnknownTopic, CorruptRow: a row cannot be understood.
    """
    unneeded = Positions()
    ends: dict[bytes, int] = {}
    newest_ms: dict[bytes, int] = {}
    for row in _each(read):
        if row.topic == SEAL_TOPIC:
            newest_ms[row.stream] = decode_seal(row.state).at_ms
        # A stream without a later row has the state, and lost the rows, that it had at that time.
        if row.topic == SEAL_TOPIC or row.position > pruned_up_to:
            ends[row.stream] = row.version
    _seals(read, ends, newest_ms, window_ms, unneeded)
    streams = [stream for stream in ends if stream not in newest_ms]
    for start in range(0, len(streams), streams_at_once):
        some = {stream: ends[stream] for stream in streams[start : start + streams_at_once]}
        for one in _planned(read, some, pruned_up_to):
            for position in one.leaving if one.is_same else ():
                unneeded.add(position)
    return unneeded


def fold_rest(state: Identity, row: LogRow, pruned_up_to: int) -> None:
    """Apply the next remaining row of a stream to its state.

    Raises:
        RowsStay: a row before it is missing that was not pruned.
        UnknownTopic, CorruptRow: the row cannot be understood.
    """
    _go_on(state, row, decode(row.topic, row.state), pruned_up_to)


def _go_on(state: Identity, row: LogRow, event: Event, pruned_up_to: int) -> None:
    if row.position <= pruned_up_to:
        state.version = max(state.version, row.version - 1)
    if row.version != state.version + 1:
        raise RowsStay(f"the archive lacks a row before position {row.position}")
    evolve(state, event)


def _each(read: ReadRows) -> Iterator[LogRow]:
    for rows in read():
        yield from rows


def _seals(
    read: ReadRows,
    ends: dict[bytes, int],
    newest_ms: dict[bytes, int],
    window_ms: int,
    unneeded: Positions,
) -> None:
    """Add all seals of each partition but the first, the newest, and those that an owner reads.

    An owner also reads the newest seal that is too old to hold a nonce in force
    (``actors.host.owned_partition.load``).
    """
    last_old: dict[bytes, LogRow] = {}
    for row in _each(read):
        if row.topic != SEAL_TOPIC or row.version in {_FIRST, ends[row.stream]}:
            continue
        if is_too_old(decode_seal(row.state), newest_ms[row.stream], window_ms):
            if row.stream in last_old:
                unneeded.add(last_old[row.stream].position)
            last_old[row.stream] = row


def _planned(read: ReadRows, ends: dict[bytes, int], pruned_up_to: int) -> Iterator[_Plan]:
    """Plan which rows leave these streams; ``ends`` has their last versions."""
    states = {stream: Identity() for stream in ends}
    for row, event in _events(read, ends):
        _go_on(states[row.stream], row, event, pruned_up_to)
    plans = {stream: _Plan(state) for stream, state in states.items()}
    for row, event in _events(read, ends):
        plans[row.stream].take(row, event)
    yield from plans.values()


def _events(read: ReadRows, streams: dict[bytes, int]) -> Iterator[tuple[LogRow, Event]]:
    for row in _each(read):
        if row.stream in streams:
            yield row, decode(row.topic, row.state)


class _Plan:
    """The rows that leave one stream; ``take`` gets its rows in their order.

    Attributes:
        leaving: the positions of the rows that leave.
    """

    def __init__(self, state: Identity) -> None:
        """A plan without rows; ``state`` is the fold of all rows."""
        self.leaving: list[int] = []
        self._state = state
        self._rest = Identity()
        self._removed: set[str] = set()
        """Removed messages named by rows that stay: the rows that removed them stay too."""

    @property
    def is_same(self) -> bool:
        """Whether the rows that stay fold to the same state, including the order of its records."""
        rest, state = self._rest, self._state
        return rest == state and all(
            list(one) == list(other)
            for one, other in (
                (rest.messages, state.messages),
                (rest.requests, state.requests),
                (rest.recent, state.recent),
            )
        )

    def take(self, row: LogRow, event: Event) -> None:
        """Decide whether the next row leaves."""
        is_end = row.version in {_FIRST, self._state.version}
        if not (is_end or self._is_needed(event, row.version)):
            self.leaving.append(row.position)
            return
        if isinstance(event, AnyMessageQueued):
            self._removed |= {event.message_id} - self._state.messages.keys()
        elif isinstance(event, MessageExpirySet):
            self._removed |= set(event.message_ids) - self._state.messages.keys()
        self._rest.version = row.version - 1
        evolve(self._rest, event)

    def _is_needed(self, event: Event, version: int) -> bool:
        state = self._state
        if is_sign_of_life(event) and event.at_ms == state.seen_ms:
            return True
        match event:
            case AnyMessageQueued():
                waiting = state.messages.get(event.message_id)
                return (
                    (waiting is not None and waiting.version == version)
                    or state.recent.get(event.command) == event.message_id
                    or event.at_ms == state.last_added_ms
                )
            case MessagesDelivered():
                is_last = event.at_ms == state.last_delivered_ms
                return is_last or not state.messages.keys().isdisjoint(event.message_ids)
            case AnyMessagesRemoved():
                is_last = event.at_ms == state.last_removed_ms
                return is_last or not self._removed.isdisjoint(event.message_ids)
            case MessageExpirySet():
                return not state.messages.keys().isdisjoint(event.message_ids)
            case QueueRefused():
                return state.refusing
            case RefusalsCounted():
                return event.command in state.recent
            case AgentSeen():
                return False
            case _:
                return True
