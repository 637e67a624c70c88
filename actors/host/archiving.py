"""Archiving: remove rows from the log that its archive has, in small atomic steps.

A row may leave when the archive has it, a seal and the seam stand for it, and no state refers to
it. The rows that leave are traffic: messages and what happened to them, counts of refusals, signs
of life of agents, and seals. These rows stay:

- a row that the state of its identity refers to, such as a waiting message;
- events that the read models are built from (saved and public events, registrations, connections);
- the first row of each stream, which identifies the stream, and the newest row that the archived
  state includes, so that an outdated state meets a gap and is never taken for the current one;
- the newest seal of each partition, and those that a new owner reads for its nonces.

So the read models can be rebuilt from the rows that stay: a message never stays when the row that
removed it has left. The order of the steps of a section ensures this:

1. store the states of identities whose rows leave, folded from sealed rows alone, and of identities
   that have ended a reference to another, or were erased, since rows left, because their older
   archived states contain names;
2. remove the rows before the seam that were needed until now;
3. advance the seam, and remove the rows that it passes and that are not needed.

Each step is one transaction with a newly signed seam. A process killed between two steps leaves a
log that is complete and verifies; the next run does the rest.
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
from eventstore.log.codec import decode, decode_seal
from eventstore.log.event_contents import ERASING
from eventstore.log.event_log import Departure, EventLog, LogRow, Snapshot
from eventstore.log.events import (
    SEAL_TOPIC,
    TOPIC_BY_TYPE,
    AccountExpired,
    AgentSeen,
    ContractExpired,
    ContractRequestsAcknowledged,
    ContractRequestsAcknowledged1,
    ContractRequestsExpired,
    IdentityErased,
    KeylistUpdated,
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
"""The events that leave, in addition to seals, when nothing refers to them."""
_CHANGING: Final = LEAVING | frozenset(
    TOPIC_BY_TYPE[kind]
    for kind in (
        *(ContractExpired, ContractRequestsAcknowledged, ContractRequestsAcknowledged1),
        *(ContractRequestsExpired, KeylistUpdated, AccountExpired, IdentityErased),
    )
)
"""The events that leave, and those after which a state has fewer names of others, or none."""
_ERASING: Final = frozenset(TOPIC_BY_TYPE[kind] for kind in ERASING)
_STATES_AT_ONCE: Final = 100
_STATE_BYTES_AT_ONCE: Final = 4 * 1024 * 1024
_FIRST: Final = 1
_T = TypeVar("_T")


class Section(NamedTuple):
    """Rows that follow the seam, up to a seal, which the archive has too.

    ``heads`` are the newest seals up to the section's end; ``manifest`` is the archive's manifest
    that covers the section, with its SHA-256.
    """

    rows: Sequence[LogRow]
    heads: Mapping[str, Head]
    manifest: str
    manifest_sha256: str


class _Plan(NamedTuple):
    """The rows that leave with a section, in log order, and the states that stand for them.

    ``states`` has each stream with its new state and its present archived one, None without one.
    """

    rows: list[LogRow]
    states: list[tuple[UUID, Snapshot, Snapshot | None]]


class Archiver:
    """Removes archived rows from one log. The seam refuses a second archiver at the same time.

    Attributes:
        seam: the present seam of the log.
        text: the seam as the log stores it, None if it has none.
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
            seam: its verified seam; the empty seam if it has none.
            text: the seam as the log stores it; None if it has none.
            sign: signs new seams with the key that ``seam`` names.
            window_ms: the widest timestamp window that may be configured, in milliseconds: seals
                that are needed under it stay.
            rows_max: rows that leave in one transaction; the batch that reaches this is completed.
            clock: returns Unix milliseconds.
            after_step: called after each transaction; an exception from it ends the work there.
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
        """Remove the rows that may leave, up to the end of this section.

        Raises:
            TurnLost: another process is removing rows.
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
            sealed = decode_seal(row.state)
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
        if not rows and old is None:
            return
        plan.rows.extend(rows)
        if old is None or old.version < state.version:
            new = Snapshot(state.version, FOLD, to_snapshot(state))
            plan.states.append((stream, new, old))

    def _seals(self, name: str, head: Head) -> list[LogRow]:
        """The seals of a partition that leave: neither its first one nor ``head``, the newest.

        Seals that ``actors.host.owned_partition.load`` reads stay too: those that may hold a nonce
        in force, and the newest one that is too old to.
        """
        stream = partition_stream(name)
        (newest,) = self._log.read_stream(stream, limit=1, newest_first=True)
        newest_ms = decode(newest.topic, newest.state).at_ms
        found = self._log.stream_rows(stream, until=head.version, topics=(SEAL_TOPIC,))
        old = [row for row in found if self._is_old(row, newest_ms)]
        return [row for row in old[:-1] if row.version not in {_FIRST, head.version}]

    def _is_old(self, row: LogRow, newest_ms: int) -> bool:
        sealed = decode_seal(row.state)
        return sealed.at_ms + 2 * max(sealed.window_ms, self._window_ms) < newest_ms


def _referred_to(state: Identity) -> Iterator[int]:
    """The versions of the rows whose contents the state refers to."""
    for records in (state.messages, state.requests, state.contracts, state.public_events):
        yield from (record.version for record in records.values())


def _ends_first(row: LogRow) -> bool:
    """Whether the row records the erasure of the content of its stream's first row."""
    if row.topic not in _ERASING:
        return False
    event = decode(row.topic, row.state)
    return isinstance(event, ERASING) and _FIRST in event.versions


def _of_bytes(
    states: Sequence[tuple[UUID, Snapshot, Snapshot | None]],
) -> Iterator[list[tuple[UUID, Snapshot, Snapshot | None]]]:
    """Split states into parts that are small enough for one transaction."""
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
