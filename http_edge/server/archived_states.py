"""Makes the states that stand for archived rows anew from the archive, for a new release.

A release that folds events in another way has another layout of states (``FOLD``), and cannot read
those in the log. Their rows are in the archive, which is read once for each ``STREAMS_AT_ONCE``
states; each state is folded up to the version that it had. The seam names the layout of all states,
so a log with the current layout needs no look at its states.

Each step is one transaction with a newly signed seam, as when rows leave: a kill between two steps
leaves a log that verifies, and the next run does the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Final
from uuid import UUID

import msgspec

from actors.core.evolve import to_snapshot
from actors.core.identity import FOLD, Identity
from actors.host.clock import system_clock
from actors.host.pruning import fold_rest
from eventstore.log.errors import RowsStay
from eventstore.log.event_log import Departure, EventLog, Snapshot
from eventstore.log.events import SEAL_TOPIC
from eventstore.log.public_key import PublicKey
from eventstore.log.seam import SEAM, Seam, sign_seam, state_entry, verified_seam
from eventstore.parquet.catalog import Catalog, catalog_of
from eventstore.parquet.files import ExportPlace
from eventstore.parquet.rows import exported_sections
from http_edge.crypto.mediator_keys import MediatorKeys

STREAMS_AT_ONCE: Final = 20_000
"""States in memory at once, usually some kilobytes each."""
_STATES_AT_ONCE: Final = 100
_PAGE: Final = 100

Progress = Callable[[int, int], None]
"""Called with two numbers of states: made anew, and found outdated."""


def states_are_current(log: EventLog, key: PublicKey) -> bool:
    """Can this release read the states that stand for archived rows?

    Raises:
        SeamRefused: the seam is not the mediator's.
        LogUnavailable: the log cannot be read now.
    """
    text = log.settings().get(SEAM)
    return text is None or verified_seam(text, key).fold == FOLD


def fold_again(
    log: EventLog,
    open_archive: Callable[[], ExportPlace],
    keys: MediatorKeys,
    *,
    clock: Callable[[], int] = system_clock,
    progress: Progress = lambda _done, _all: None,
) -> int:
    """Bring the states that stand for archived rows into the layout of this release.

    Args:
        log: the log.
        open_archive: opens its archive; called only if needed.
        keys: the mediator's.
        clock: returns Unix milliseconds.
        progress: called after each step.

    Returns:
        How many states were made anew.

    Raises:
        TurnLost: another process changes the seam.
        RowsStay: the archive lacks a row.
        SeamRefused: the seam is not the mediator's.
        ExportError: the archive is damaged or cannot be read now.
        LogError: the log cannot be read or written now, or a row cannot be understood.
    """
    key = PublicKey(keys.signing_public)
    if states_are_current(log, key):
        return 0
    text = log.settings()[SEAM]
    folding = _Folding(log, text, verified_seam(text, key), keys, clock)
    outdated = dict(_outdated(log))
    if outdated:
        place = open_archive()
        catalog = catalog_of(place, key.verify, is_whole=True)
        done = 0
        for some in _in_parts(outdated, STREAMS_AT_ONCE):
            for made in _in_parts(_folded(place, catalog, some), _STATES_AT_ONCE):
                folding.replace({stream: some[stream] for stream in made}, made)
                done += len(made)
                progress(done, len(outdated))
    folding.finish()
    return len(outdated)


class _Folding:
    """Replaces states; each step writes a new seam."""

    def __init__(
        self,
        log: EventLog,
        text: str,
        seam: Seam,
        keys: MediatorKeys,
        clock: Callable[[], int],
    ) -> None:
        self._log = log
        self._text = text
        self._seam = seam
        self._sign = keys.sign
        self._clock = clock

    def replace(self, old: Mapping[UUID, Snapshot], new: Mapping[UUID, Snapshot]) -> None:
        gone = [state_entry(stream, state) for stream, state in old.items()]
        come = [state_entry(stream, state) for stream, state in new.items()]
        states = self._seam.states.minus(gone).plus(come)
        self._step(msgspec.structs.replace(self._seam, states=states), new)

    def finish(self) -> None:
        self._step(msgspec.structs.replace(self._seam, fold=FOLD), {})

    def _step(self, seam: Seam, states: Mapping[UUID, Snapshot]) -> None:
        seam = msgspec.structs.replace(seam, at_ms=self._clock())
        text = sign_seam(seam, self._sign)
        self._log.let_leave(Departure(self._text, text, (), list(states.items())))
        self._seam, self._text = seam, text


def _outdated(log: EventLog) -> Iterator[tuple[UUID, Snapshot]]:
    """The states of another layout; damaged ones are skipped, for a check to find them."""
    after = b""
    while page := log.read_archived_states(after=after, limit=_PAGE):
        for stream, state in page:
            if state is not None and state.fold != FOLD:
                yield stream, state
        after = page[-1][0].bytes


def _folded(
    place: ExportPlace, catalog: Catalog, wanted: Mapping[UUID, Snapshot]
) -> Mapping[UUID, Snapshot]:
    """The states of the ``wanted`` streams at their old versions, folded from an archive.

    Raises:
        RowsStay: the archive lacks a row.
    """
    states = {stream.bytes: Identity() for stream in wanted}
    until = {stream.bytes: state.version for stream, state in wanted.items()}
    for section in exported_sections(place, catalog):
        for row in section.rows:
            state = states.get(row.stream)
            if row.topic == SEAL_TOPIC or state is None or row.version > until[row.stream]:
                continue
            fold_rest(state, row, catalog.pruned_to)
    for stream, version in until.items():
        if states[stream].version != version:
            raise RowsStay(f"the archive lacks rows of stream {UUID(bytes=stream)}")
    return {
        UUID(bytes=stream): Snapshot(state.version, FOLD, to_snapshot(state))
        for stream, state in states.items()
    }


def _in_parts(items: Mapping[UUID, Snapshot], size: int) -> Iterator[Mapping[UUID, Snapshot]]:
    rest = iter(items.items())
    while part := dict(islice(rest, size)):
        yield part
