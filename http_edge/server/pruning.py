"""Pruning of an archive, and the beginning of a log that is restored from a pruned archive.

An archive records which rows were pruned (``eventstore.parquet.write.pruning``). A log restored
from it has a seam, and before the seam only the remaining rows, as if the others had left it. The
states of streams with missing rows follow from the rows that remain (``actors.host.pruning``).

Memory: the states of the streams with missing rows, some kilobytes each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from msgspec import UNSET

from actors.core.evolve import to_snapshot
from actors.core.identity import FOLD, Identity
from actors.host.clock import system_clock
from actors.host.pruning import Leaving, fold_rest, not_needed
from eventstore.log.event_log import LogRow, Snapshot
from eventstore.log.events import SEAL_TOPIC
from eventstore.log.public_key import PublicKey
from eventstore.log.seam import Seam, Sum, row_entry, sign_seam, state_entry
from eventstore.parquet.catalog import Catalog
from eventstore.parquet.files import ExportPlace
from eventstore.parquet.manifest import heads_of
from eventstore.parquet.rows import exported_sections
from eventstore.parquet.write.exporter import Exporter
from http_edge.crypto.mediator_keys import MediatorKeys
from http_edge.settings.sections import TIMESTAMP_WINDOW_MS_MAX, Archive

_MS: Final = 1_000


class Beginning(NamedTuple):
    """The beginning of a log that is restored from a pruned archive."""

    seam: str
    """The text of the seam, as the log stores it."""
    states: Sequence[tuple[UUID, Snapshot]]


def prune_old(
    exporter: Exporter, archive: Archive, *, clock: Callable[[], int] = system_clock
) -> int:
    """Remove rows that an archive no longer keeps; return their number. Raises as ``prune``."""
    if not archive.keep_s:
        return 0
    return exporter.prune(clock() - round(archive.keep_s * _MS), _plan)


def beginning_of(
    place: ExportPlace,
    catalog: Catalog,
    keys: MediatorKeys,
    mediator_did: str,
    *,
    clock: Callable[[], int] = system_clock,
) -> Beginning | None:
    """The seam and the states of a log restored from a pruned archive; None if none was pruned.

    Args:
        place: where the archive is.
        catalog: the archive's, with the heads of every manifest.
        keys: the mediator's, which sign the seam.
        mediator_did: the mediator's.
        clock: returns Unix milliseconds.

    Raises:
        RowsStay: a row is missing, and the archive does not record it as pruned.
        ExportDamaged, ExportUnavailable: a file is not what was signed, or cannot be read now.
        UnknownTopic, CorruptRow: a row cannot be understood.
    """
    if not catalog.pruned_to:
        return None
    first = catalog.statements[0]
    manifest = first.manifest
    assert manifest.pruned is not UNSET
    stayed = Sum()
    states: dict[bytes, Identity] = {}
    rows: dict[bytes, int] = {}
    for section in exported_sections(place, catalog, catalog.pruned_to):
        stayed = stayed.plus(map(row_entry, section.rows))
        for row in section.rows:
            if row.topic != SEAL_TOPIC:
                state = states.setdefault(row.stream, Identity())
                rows[row.stream] = rows.get(row.stream, 0) + 1
                fold_rest(state, row, catalog.pruned_to)
    kept = [
        (UUID(bytes=stream), Snapshot(state.version, FOLD, to_snapshot(state)))
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
        at_ms=clock(),
        signed_by=PublicKey(keys.signing_public).text,
    )
    return Beginning(sign_seam(seam, keys.sign), kept)


def _plan(read: Callable[[], Iterator[Sequence[LogRow]]], last: int, pruned_to: int) -> Leaving:
    return not_needed(read, last, pruned_to=pruned_to, window_ms=TIMESTAMP_WINDOW_MS_MAX)
