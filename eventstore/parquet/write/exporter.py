"""Follows the log by position and writes it as Parquet, one signed manifest for each step.

A step is committed by its manifest: before, its data files do not count and are written
again; after, the export has all rows up to the manifest's last position. So whatever is killed
when, no row is missing and none is there twice. One exporter at a time may write to a place;
callers see to it (``http_edge.server.exporting``) and give a place that asks before each change
whether it is still so; a second one that writes all the same is noticed before a manifest is
written.
"""

from __future__ import annotations

from typing import NamedTuple

from eventstore.log.codec import decode, partition_stream
from eventstore.log.errors import UnknownTopic
from eventstore.log.event_log import EventLog
from eventstore.log.events import BatchSealed
from eventstore.log.verify import Head
from eventstore.parquet.catalog import Catalog, catalog_of
from eventstore.parquet.errors import ExportRefused
from eventstore.parquet.files import EVENTS, HEAD, MANIFESTS, ExportPlace, FileMissing
from eventstore.parquet.manifest import (
    ExportHead,
    Manifest,
    Signer,
    Verify,
    heads_to_text,
    is_manifest,
    last_position,
    parse_head,
    signed,
)
from eventstore.parquet.schema import FORMAT, SCHEMA_VERSION
from eventstore.parquet.write.commit import by_day, sweep, write_data, write_manifest
from eventstore.parquet.write.compaction import compact
from eventstore.parquet.write.step import Bounds, ExportSteps


class ExportOwner(NamedTuple):
    """Whose export it is: the mediator's DID and the number of shards of its log."""

    mediator_did: str
    shards: int


class Exported(NamedTuple):
    """One committed step."""

    first: int
    last: int
    rows: int
    files: int
    bytes: int
    is_full: bool
    """There may be more in the log already."""


class Exporter:
    """The export of one log to one place, continued from what stands there.

    Not safe for several threads.
    """

    def __init__(  # noqa: PLR0913 - who, where, and how
        self,
        log: EventLog,
        place: ExportPlace,
        owner: ExportOwner,
        signer: Signer,
        verify: Verify,
        bounds: Bounds = Bounds(),  # noqa: B008 - a frozen value
        *,
        replaced_kept_s: float = 0.0,
    ) -> None:
        """Claim the place, and remove what an exporter that was killed left behind.

        Files that a compaction replaced stay ``replaced_kept_s`` for those who are reading them.

        Raises:
            ExportRefused: the export there is of another mediator, key or log.
            ExportDamaged: the export there is damaged.
            ExportUnavailable: the place cannot be read or written now.
            LogUnavailable: the log cannot be read now.
        """
        self._place = place
        self._signer = signer
        self._verify = verify
        self._bounds = bounds
        self._replaced_kept_s = replaced_kept_s
        _claim(place, owner, signer)
        self._catalog = catalog_of(place, verify)
        _check_same_log(log, self._catalog)
        sweep(place, self._catalog, replaced_kept_s=replaced_kept_s)
        self._is_certain = True
        self._steps = ExportSteps(log, bounds)

    def close(self) -> None:
        """Stop reading; before the log is closed."""
        self._steps.close()

    @property
    def catalog(self) -> Catalog:
        """What the export holds now."""
        return self._catalog

    def step(self) -> Exported | None:
        """Export the next rows; None if the log has no seal beyond what is exported.

        After an error it may be tried again: rows that were exported are not exported twice.

        Raises:
            ExportUnavailable: the place cannot be written now (disk full, store gone).
            ExportRefused: another process writes to this place.
            ExportDamaged: the export was damaged since.
            LogUnavailable: the log cannot be read now, or the lock of the place was lost.
            LogNotAsSealed, UnknownTopic, CorruptRow: the log is damaged from here on.
        """
        self._place.check()
        self._recover(self._replaced_kept_s)
        before = self._catalog
        step = self._steps.after(before.last, before.heads)
        if step is None:
            return None
        self._is_certain = False
        files = [write_data(self._place, day, rows) for day, rows in by_day(step.table)]
        manifest = Manifest(
            format=FORMAT,
            schema=SCHEMA_VERSION,
            first=before.last + 1,
            last=step.last,
            rows=step.table.num_rows,
            files=files,
            heads=heads_to_text(step.heads),
            replaces=[],
            stands_for="",
            previous=before.link,
            signed_by=self._signer.signed_by,
        )
        self._check_alone()
        statement = write_manifest(self._place, manifest, self._signer)
        self._catalog = Catalog(before.head, [*before.statements, statement], heads=step.heads)
        self._is_certain = True
        return Exported(
            manifest.first,
            manifest.last,
            manifest.rows,
            len(files),
            sum(file.bytes for file in files),
            step.is_full,
        )

    def compact(self, *, files_min: int) -> int:
        """Put small steps together; how many there are fewer.

        Files that were replaced ``replaced_kept_s`` ago, by an earlier compaction, are removed
        now: another process may be reading the others. Raises as ``step``.
        """
        self.sweep(self._replaced_kept_s)
        before = len(self._catalog.statements)
        self._is_certain = False
        for _ in compact(
            self._place, self._catalog, self._signer, files_min=files_min, bounds=self._bounds
        ):
            pass
        self._catalog = self._read_again()
        self._is_certain = True
        return before - len(self._catalog.statements)

    def sweep(self, replaced_kept_s: float = 0.0) -> None:
        """Remove files that do not count: replaced so long ago, or left by a kill.

        Raises as ``step``.
        """
        self._place.check()
        self._is_certain = False
        self._recover(replaced_kept_s)

    def _recover(self, replaced_kept_s: float) -> None:
        """After a failure: a manifest may stand although writing it failed."""
        if not self._is_certain:
            self._catalog = self._read_again()
            sweep(self._place, self._catalog, replaced_kept_s=replaced_kept_s)
            self._is_certain = True

    def _read_again(self) -> Catalog:
        return catalog_of(self._place, self._verify, self._catalog.statements)

    def _check_alone(self) -> None:
        lasts = map(last_position, filter(is_manifest, self._place.sizes(MANIFESTS)))
        if max(lasts, default=0) != self._catalog.last:
            raise ExportRefused(f"another process exports to {self._place.address()} too")


def _claim(place: ExportPlace, owner: ExportOwner, signer: Signer) -> None:
    """Write ``export.json`` in an empty place; refuse the place of another exporter."""
    try:
        head = parse_head(HEAD, place.read(HEAD), verify=None)
    except FileMissing:
        if place.sizes(EVENTS) or place.sizes(MANIFESTS):
            raise ExportRefused(f"{place.address()} holds files, but no {HEAD}") from None
        head = ExportHead(
            format=FORMAT,
            schema=SCHEMA_VERSION,
            mediator_did=owner.mediator_did,
            shards=owner.shards,
            public_key=signer.signed_by,
        )
        place.write(HEAD, signed(head, signer.sign)[1])
    ours = (*owner, signer.signed_by)
    theirs = (head.mediator_did, head.shards, head.public_key)
    if ours != theirs:
        raise ExportRefused(
            f"{place.address()} is the export of {theirs[0]} with {theirs[1]} shards and key"
            f" {theirs[2]}, not of {ours[0]} with {ours[1]} shards and key {ours[2]}"
        )


def _check_same_log(log: EventLog, catalog: Catalog) -> None:
    """Refuse to continue the export of another log: the newest seals must stand in this one."""
    for name, head in catalog.heads.items():
        if _head_in(log, name, head.version) != head:
            raise ExportRefused(
                f"the export has seal {head.version} of {name}, which this log does not have:"
                " it is of another log, or the log lost its end"
            )


def _head_in(log: EventLog, partition: str, version: int) -> Head | None:
    row = log.read_versions(partition_stream(partition), [version]).get(version)
    try:
        sealed = None if row is None else decode(row.topic, row.state)
    except UnknownTopic:
        return None
    return Head(version, sealed.digest) if isinstance(sealed, BatchSealed) else None
