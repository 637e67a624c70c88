"""Makes the states that stand for archived rows from the archive.

**For a new release.** A release that folds events in another way has another layout of states
(``FOLD``), and cannot read those in the log. Their rows are in the archive, which is read once for
each ``STREAMS_AT_ONCE`` states; each state is folded up to the version that it had, or to the end
of the pruned part. The seam names the layout of all states, so a log with the current layout needs
no look at its states. After a kill between two steps the next run does the rest.

**For a log that is restored from a pruned archive.** The archive records which rows were pruned
(``eventstore.parquet.write.pruning``). The log has a seam, and before the seam only the remaining
rows, as if the others had left it. The states of streams with missing rows follow from the
remaining rows (``actors.archive.unneeded_rows``). They are all in memory, some kilobytes each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from msgspec.structs import replace

from actors.archive.seam_writer import NewState, SeamWriter, SigningKey
from actors.archive.unneeded_rows import fold_rest
from actors.core.identity import FOLD, Identity
from actors.host.clock import Clock, system_clock
from actors.host.stored_states import snapshot_of
from eventstore.log.errors import RowsStay
from eventstore.log.event_log import EventLog, LogReader, Snapshot
from eventstore.log.events import SEAL_TOPIC
from eventstore.log.public_key import PublicKey
from eventstore.log.seam import Seam, Sum, row_entry, sign_seam, state_entry
from eventstore.parquet.catalog import Catalog, catalog_of
from eventstore.parquet.files import ExportPlace
from eventstore.parquet.manifest import heads_of
from eventstore.parquet.rows import exported_sections

STREAMS_AT_ONCE: Final = 20_000
"""States in memory at once, usually some kilobytes each."""


class Beginning(NamedTuple):
    """The beginning of a log that is restored from a pruned archive."""

    seam: str
    """The text of the seam, as the log stores it."""
    states: Sequence[tuple[UUID, Snapshot]]


def fold_again(
    log: EventLog,
    place: ExportPlace,
    key: SigningKey,
    mediator_did: str,
    *,
    clock: Clock = system_clock,
) -> int:
    """Bring the states that stand for archived rows into the layout of this release.

    Return how many were made anew from the archive at ``place``.

    Raises:
        TurnLost: another process changes the seam.
        RowsStay: the archive lacks a row, or the seam is of another mediator.
        SeamRefused: the seam is not the mediator's.
        ExportError: the archive is damaged or cannot be read now.
        LogError: the log cannot be read or written now, or a row cannot be understood.
    """
    writer = SeamWriter(log, key, mediator_did, clock=clock)
    if writer.seam.fold == FOLD:
        return 0
    outdated = list(_outdated(log))
    if outdated:
        catalog = catalog_of(place, writer.key.verify, is_whole=True)
        for start in range(0, len(outdated), STREAMS_AT_ONCE):
            some = dict(outdated[start : start + STREAMS_AT_ONCE])
            writer.store_states(_folded(place, catalog, some))
    writer.write(replace(writer.seam, fold=FOLD))
    return len(outdated)


def beginning_of(
    place: ExportPlace, catalog: Catalog, key: SigningKey, mediator_did: str
) -> Beginning | None:
    """The seam and the states of a log restored from a pruned archive; None if none was pruned.

    ``catalog`` has the heads of every manifest; ``key`` is the mediator's and signs the seam.

    Raises:
        RowsStay: a row is missing, and the archive does not record it as pruned.
        ExportDamaged, ExportUnavailable: a file is not what was signed, or cannot be read now.
        UnknownTopic, CorruptRow: a row cannot be understood.
    """
    if not catalog.pruned_up_to:
        return None
    first = catalog.statements[0]
    manifest = first.manifest
    assert manifest.pruned is not None
    stayed = Sum()
    states: dict[bytes, Identity] = {}
    rows: dict[bytes, int] = {}
    for section in exported_sections(place, catalog, catalog.pruned_up_to):
        stayed = stayed.plus(map(row_entry, section.rows))
        for row in section.rows:
            if row.topic != SEAL_TOPIC:
                state = states.setdefault(row.stream, Identity())
                rows[row.stream] = rows.get(row.stream, 0) + 1
                fold_rest(state, row, catalog.pruned_up_to)
    kept = [
        (UUID(bytes=stream), snapshot_of(state))
        for stream, state in states.items()
        if rows[stream] < state.version
    ]
    seam = Seam(
        mediator_did=mediator_did,
        position=manifest.last,
        left=manifest.pruned.rows,
        stayed=stayed,
        states=Sum().plus(state_entry(*one) for one in kept),
        fold=FOLD,
        heads=heads_of(manifest.path, manifest),
        manifest=manifest.path,
        manifest_sha256=first.sha256,
        at_ms=system_clock(),
        signed_by=PublicKey(key.signing_public).text,
    )
    return Beginning(sign_seam(seam, key.sign), kept)


def _outdated(log: LogReader) -> Iterator[tuple[UUID, Snapshot]]:
    """The states of another layout; damaged ones are skipped, for a check to find them."""
    for stream, state in log.archived_states():
        if state is not None and state.fold != FOLD:
            yield stream, state


def _folded(
    place: ExportPlace, catalog: Catalog, wanted: Mapping[UUID, Snapshot]
) -> Iterator[NewState]:
    """The states of the ``wanted`` streams, folded from an archive.

    Each is at its old version, or at the end of the pruned part if that is later: what stays there
    is what the state at its end needs, and may lack the row of an older version. Rows that follow
    that version there have not left the log: with any that does, the state would have moved on.

    Raises:
        RowsStay: the archive lacks a row.
    """
    states = {stream.bytes: Identity() for stream in wanted}
    until = {stream.bytes: state.version for stream, state in wanted.items()}
    for section in exported_sections(place, catalog):
        for row in section.rows:
            state = states.get(row.stream)
            if row.topic == SEAL_TOPIC or state is None:
                continue
            if row.version <= until[row.stream] or row.position <= catalog.pruned_up_to:
                fold_rest(state, row, catalog.pruned_up_to)
    for stream, old in wanted.items():
        if states[stream.bytes].version < old.version:
            raise RowsStay(f"the archive lacks rows of stream {stream}")
    for stream, old in wanted.items():
        yield NewState(stream, snapshot_of(states[stream.bytes]), old)
