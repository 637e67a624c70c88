"""Lets rows of the log leave for its archive, in small steps, each whole or not at all.

A row may leave when the archive has it, a seal and the seam stand for it, and nothing that lives
refers to it. What leaves is traffic: messages with what happened to them, counts of refusals, signs
of life of agents, and seals. What stays:

- a row that the state of its identity refers to: a message that waits;
- events that the read models are made of (saved and public events, registrations, connections);
- the first row of each stream, by which it is known, and the newest one that the archived state
  has, so that a state which is too old meets a gap and is never taken for the present one;
- the newest seal of each partition, and those that a new owner reads for its nonces.

So the read models can be made anew from what stays: a message never stays when the row that removed
it has left. The order of the steps of a section sees to that:

1. the states of the identities are stored that rows leave from, folded from sealed rows alone, and
   of those that were erased since rows left: what they had has names;
2. rows before the seam leave that lived until now;
3. the seam advances, and takes out the rows that it passes and that do not live.

Each step is one transaction with a newly signed seam. A process that is killed between two of them
leaves a log that is whole and verifies; the next run does what is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from operator import attrgetter
from typing import Final, NamedTuple, TypeVar
from uuid import UUID

import msgspec

from actors.core.evolve import to_snapshot
from actors.core.identity import FOLD, Identity
from actors.host.state_cache import state_at
from eventstore.log.codec import decode
from eventstore.log.event_contents import ERASING
from eventstore.log.event_log import Departure, EventLog, LogRow, Snapshot
from eventstore.log.events import (
    SEAL_TOPIC,
    TOPIC_BY_TYPE,
    AgentSeen,
    BatchSealed,
    IdentityErased,
    MessageQueued,
    MessageQueued1,
    MessagesDelivered,
    MessagesRemoved,
    MessagesRemoved1,
    QueueRefused,
    RefusalsCounted,
)
from eventstore.log.faults import Head
from eventstore.log.seam import Seam, row_entry, sign_seam, state_entry
from eventstore.log.streams import partition_stream

LEAVING: Final = frozenset(
    TOPIC_BY_TYPE[kind]
    for kind in (
        *(MessageQueued, MessageQueued1, MessagesDelivered, MessagesRemoved, MessagesRemoved1),
        *(QueueRefused, RefusalsCounted, AgentSeen),
    )
)
"""The events that leave, beside seals, when nothing refers to them."""
_CHANGING: Final = LEAVING | {TOPIC_BY_TYPE[IdentityErased]}
_ERASING: Final = frozenset(TOPIC_BY_TYPE[kind] for kind in ERASING)
_STATES_AT_ONCE: Final = 100
_STATE_BYTES_AT_ONCE: Final = 4 * 1024 * 1024
_FIRST: Final = 1
_T = TypeVar("_T")


class Section(NamedTuple):
    """Rows that follow the seam, up to a seal, as the archive has them too.

    ``heads`` are the newest seals up to its end; ``manifest`` is that of the archive which has it,
    with its SHA-256.
    """

    rows: Sequence[LogRow]
    heads: Mapping[str, Head]
    manifest: str
    manifest_sha256: str


class _Plan(NamedTuple):
    """What a section lets leave: rows in the order of the log, and the states that stand for them.

    Of each state the version that stands in its place now, None where there is none.
    """

    rows: list[LogRow]
    states: list[tuple[UUID, Snapshot, Snapshot | None]]


class Archiver:
    """Lets rows of one log leave. One at a time: another one is refused by the seam.

    Attributes:
        seam: the seam of the log now.
        text: the same as the log has it, None if it has none.
    """

    def __init__(  # noqa: PLR0913 - what it works on, and how
        self,
        log: EventLog,
        seam: Seam,
        text: str | None,
        sign: Callable[[bytes], bytes],
        *,
        window_ms: int,
        rows_max: int,
        clock: Callable[[], int],
        after_step: Callable[[], None] = lambda: None,
    ) -> None:
        """An archiver of a log that is at this seam.

        Args:
            log: the log.
            seam: its seam as it was verified; the empty one if it has none.
            text: the seam as the log has it; None if it has none.
            sign: signs the seams to come, with the key that ``seam`` names.
            window_ms: the widest window of timestamps that the mediator may be given, in
                milliseconds: seals that are needed under it stay.
            rows_max: rows that leave in one transaction, and those of the batch that reaches it.
            clock: tells Unix milliseconds.
            after_step: called after each transaction; what it raises ends the work there.
        """
        self.seam = seam
        self.text = text
        self._log = log
        self._sign = sign
        self._window_ms = window_ms
        self._rows_max = rows_max
        self._clock = clock
        self._after_step = after_step

    def take(self, section: Section) -> None:
        """Let leave what may, up to the end of this section.

        Raises:
            TurnLost: another process lets rows leave.
            RowsStay: a row has changed since.
            LogUnavailable: the log cannot be read or written now.
            UnknownTopic, CorruptRow: a row or a state cannot be understood.
        """
        plan = self._plan(section)
        for some in _of_bytes(plan.states):
            gone = [state_entry(stream, old) for stream, _, old in some if old is not None]
            come = [state_entry(stream, new) for stream, new, _ in some]
            states = self.seam.states.minus(gone).plus(come)
            self._step(
                msgspec.structs.replace(self.seam, states=states),
                states=[(stream, new) for stream, new, _ in some],
            )
        earlier = [row for row in plan.rows if row.position <= self.seam.position]
        for rows in _in_parts(earlier, self._rows_max):
            stayed = self.seam.stayed.minus(row_entry(row, self.seam.whole_to) for row in rows)
            seam = msgspec.structs.replace(self.seam, stayed=stayed)
            self._step(seam, left=[row.position for row in rows])
        self._advance(section, {row.position for row in plan.rows})

    def _advance(self, section: Section, leaving: set[int]) -> None:
        """Move the seam to the end of a section, without the rows at these positions."""
        heads, stayed = dict(self.seam.heads), self.seam.stayed
        left: list[int] = []
        stay: list[bytes] = []
        for row in section.rows:
            if row.position in leaving:
                left.append(row.position)
            else:
                stay.append(row_entry(row))
            if row.topic != SEAL_TOPIC:
                continue
            sealed = decode(row.topic, row.state)
            assert isinstance(sealed, BatchSealed)
            heads[sealed.partition] = Head(row.version, sealed.digest)
            is_last = row is section.rows[-1]
            if is_last or len(left) >= self._rows_max:
                stayed = stayed.plus(stay)
                seam = msgspec.structs.replace(
                    self.seam,
                    position=row.position,
                    stayed=stayed,
                    heads=dict(heads),
                    manifest=section.manifest,
                    manifest_sha256=section.manifest_sha256,
                )
                self._step(seam, left=left)
                left, stay = [], []

    def _step(
        self,
        seam: Seam,
        *,
        left: Sequence[int] = (),
        states: Sequence[tuple[UUID, Snapshot]] = (),
    ) -> None:
        seam = msgspec.structs.replace(seam, left=seam.left + len(left), at_ms=self._clock())
        text = sign_seam(seam, self._sign)
        self._log.let_leave(Departure(self.text, text, left, states))
        self.seam, self.text = seam, text
        self._after_step()

    def _plan(self, section: Section) -> _Plan:
        until = section.rows[-1].position
        newest = {row.stream: row.version for row in section.rows}
        changed = {row.stream for row in section.rows if row.topic in _CHANGING}
        plan = _Plan([], [])
        for stream_key in changed:
            self._plan_identity(UUID(bytes=stream_key), newest[stream_key], until, plan)
        for name, head in section.heads.items():
            if partition_stream(name).bytes in newest:
                plan.rows.extend(self._seals(name, head))
        plan.rows.sort(key=attrgetter("position"))
        return plan

    def _plan_identity(self, stream: UUID, version: int, until: int, plan: _Plan) -> None:
        old = self._log.load_archived_state(stream)
        state = state_at(self._log, stream, version)
        stays = {_FIRST, state.version, *_referred_to(state)}
        found = self._log.stream_rows(stream, until=state.version, topics=LEAVING)
        rows = [
            row
            for row in found
            if row.position <= until and row.version not in stays and not _ends_first(row)
        ]
        has_old_names = state.is_erased and old is not None
        if not rows and not has_old_names:
            return
        plan.rows.extend(rows)
        if old is None or old.version < state.version:
            new = Snapshot(state.version, FOLD, to_snapshot(state))
            plan.states.append((stream, new, old))

    def _seals(self, name: str, head: Head) -> list[LogRow]:
        """The seals of a partition that leave: not its first one, nor this newest one.

        Nor those that ``actors.host.owned_partition.load`` reads: of those that are too old to hold
        a nonce in force it reads the newest one.
        """
        stream = partition_stream(name)
        (newest,) = self._log.read_stream(stream, limit=1, newest_first=True)
        newest_ms = decode(newest.topic, newest.state).at_ms
        found = self._log.stream_rows(stream, until=head.version, topics=(SEAL_TOPIC,))
        old = [row for row in found if self._is_old(row, newest_ms)]
        return [row for row in old[:-1] if row.version not in {_FIRST, head.version}]

    def _is_old(self, row: LogRow, newest_ms: int) -> bool:
        sealed = decode(row.topic, row.state)
        assert isinstance(sealed, BatchSealed)
        return sealed.at_ms + 2 * max(sealed.window_ms, self._window_ms) < newest_ms


def _referred_to(state: Identity) -> Iterator[int]:
    """The versions of the rows that hold what the state only names."""
    for records in (state.messages, state.requests, state.contracts, state.public_events):
        yield from (record.version for record in records.values())


def _ends_first(row: LogRow) -> bool:
    """Whether the row says that the content of the first one of its stream was erased."""
    if row.topic not in _ERASING:
        return False
    event = decode(row.topic, row.state)
    return isinstance(event, ERASING) and _FIRST in event.versions


def _of_bytes(
    states: Sequence[tuple[UUID, Snapshot, Snapshot | None]],
) -> Iterator[list[tuple[UUID, Snapshot, Snapshot | None]]]:
    """The same in parts that are small enough for one transaction."""
    part: list[tuple[UUID, Snapshot, Snapshot | None]] = []
    size_bytes = 0
    for one in states:
        part.append(one)
        size_bytes += len(one[1].state)
        if len(part) >= _STATES_AT_ONCE or size_bytes >= _STATE_BYTES_AT_ONCE:
            yield part
            part, size_bytes = [], 0
    if part:
        yield part


def _in_parts(items: Iterable[_T], size: int) -> Iterator[list[_T]]:
    rest = iter(items)
    while part := list(islice(rest, size)):
        yield part
