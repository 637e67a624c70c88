"""Follows the log by position and writes it as Parquet, one version of a table for each step.

A step writes its data files and the signed manifest that names them, and commits the version of the
table (``eventstore.parquet.write.table``) that has both. Before the commit the files do not count
and are written again; after it the export has all rows up to the manifest's last position. So a
kill at any time leaves no row missing and none doubled. At the end comes the mark, perhaps later.

One exporter at a time may write to a place. Callers ensure this (``http_edge.server.exporting``),
and pass a place that checks it again before each change. If a second exporter writes all the same,
its commit is refused. Before an exporter removes files, it commits a version: so no other one can
commit the files that are being removed, and the files that a successor writes have other names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

from msgspec import structs

from eventstore.log.errors import RowsStay
from eventstore.log.event_log import EventLog, LogReader
from eventstore.log.name_erasure import NameErasure, note_pass
from eventstore.log.seam import seam_position
from eventstore.log.tiles import TiledTree
from eventstore.log.tree_head import origin_of
from eventstore.log.verify import heads_not_in
from eventstore.parquet.catalog import Catalog, catalog_of
from eventstore.parquet.errors import ExportRefused
from eventstore.parquet.files import EVENTS, HEAD, MANIFESTS, TABLE_LOG, ExportPlace, FileMissing
from eventstore.parquet.manifest import (
    ExportHead,
    Manifest,
    Signer,
    Statement,
    export_head,
    heads_to_text,
    signed,
    tree_said,
)
from eventstore.parquet.schema import FORMAT, SCHEMA_VERSION, TABLE_FORMAT
from eventstore.parquet.table import check_checkpoint, files_of, require_table
from eventstore.parquet.versions import newest_version, read_mark, read_version
from eventstore.parquet.write.commit import by_day, removable, write_data, write_manifest
from eventstore.parquet.write.compaction import (
    Rewriting,
    TakenOut,
    compact,
    runs,
    without_erased_of,
)
from eventstore.parquet.write.erasing import GoneNames, contents_in
from eventstore.parquet.write.index import IndexWriter
from eventstore.parquet.write.pruning import Plan, prune
from eventstore.parquet.write.step import Bounds, ExportSteps
from eventstore.parquet.write.table import Clock, TableWriter
from eventstore.parquet.write.tree import TreeWriter

_MS: Final = 1_000


class ExportOwner(NamedTuple):
    """The owner of an export: the mediator's DID, and the shards and database of its log."""

    mediator_did: str
    shards: int
    database: int | None = None
    """The number of the database, if the log has several."""


class Exported(NamedTuple):
    """One committed step."""

    first: int
    last: int
    rows: int
    files: int
    bytes: int
    is_full: bool
    """Whether the log may have more rows already."""


class ExportTimes(NamedTuple):
    """The times that an exporter goes by, in seconds.

    It keeps files that a compaction replaced for ``replaced_kept_s``, and the log of the table's
    older versions, which are opened by their number, for ``versions_kept_s``. All events
    recorded ``settled_s`` before the oldest append under way began are in the log: that is longer
    than an event takes to its append (``DECISION_S_MAX`` of a host, and its wait for a connection)
    and twice what clocks differ from the database's. An idle exporter says every
    ``complete_every_s`` until when the export is complete.
    """

    replaced_kept_s: float = 0.0
    versions_kept_s: float = 86_400.0
    settled_s: float = 60.0
    complete_every_s: float = 60.0


class Exporter:
    """Exports one log to one place, continuing the export that is there.

    Not safe for several threads.
    """

    def __init__(  # noqa: PLR0913 - who, where, and how
        self,
        log: EventLog,
        place: ExportPlace,
        owner: ExportOwner,
        signer: Signer,
        bounds: Bounds = Bounds(),  # noqa: B008 - a frozen value
        *,
        times: ExportTimes = ExportTimes(),  # noqa: B008 - a frozen value
        clock: Clock,
    ) -> None:
        """Claim the place, and remove the files that a killed exporter left.

        ``clock`` gives the times until which the export is complete.

        An export of an earlier release gets a table; its files and manifests stay.

        Raises:
            ExportRefused: the export there is of another mediator, key or log.
            ExportDamaged: the export there is damaged.
            ExportUnavailable: the place cannot be read or written now.
            LogUnavailable: the log cannot be read now.
            SeamRefused: the log's seam cannot be understood.
        """
        self._log = log
        self._place = place
        self._signer = signer
        self._verify = signer.key.verify
        self._bounds = bounds
        self._times = times
        self._clock = clock
        self._table = TableWriter(place, signer, clock, versions_kept_s=times.versions_kept_s)
        head = _claim(log, place, owner, signer)
        self._table.remove_torn()
        self._catalog = catalog_of(place, self._verify)
        _check_same_log(log, self._catalog)
        _check_reaches_seam(log, self._catalog.last, place)
        if head.format == FORMAT:
            self._give_table()
        self._steps = ExportSteps(log, bounds, clock)
        self._tree = TreeWriter(place, origin_of(owner.mediator_did, owner.database), signer)
        self._index = IndexWriter(place)
        self._gone = GoneNames()
        self._nameless: set[str] = set()
        """The manifests whose files have none of the names in ``_gone``."""
        self._unswept: tuple[int, float] | None = None
        """Since when files that do not count stay for readers, and for how long, in milliseconds;
        None if there are none."""
        self._is_certain = False
        # A table that was just made is read again: its commit may have been answered by an error.
        self._recover(times.replaced_kept_s, None if head.format == FORMAT else self._catalog)

    def close(self) -> None:
        """Stop reading; call this before closing the log."""
        self._steps.close()

    @property
    def head_note(self) -> bytes | None:
        """The newest signed head of the tree over the seals (``eventstore.log.tree_head``)."""
        return self._tree.note

    @property
    def catalog(self) -> Catalog:
        """The contents of the export now."""
        return self._catalog

    @property
    def is_certain(self) -> bool:
        """Whether the export has what ``catalog`` says: no change of it has begun and not ended."""
        return self._is_certain

    def step(self) -> Exported | None:
        """Export the next rows; None if the log has no seal beyond the export's end.

        Callers may retry after an error: no row is exported twice.

        Raises:
            ExportUnavailable: the place cannot be written now (disk full, store gone), or the
                export was removed from it.
            ExportRefused: another process writes to this place.
            ExportDamaged: the export was damaged since.
            LogUnavailable: the log cannot be read now, or the lock of the place was lost.
            NotAsSealed, UnknownTopic, CorruptRow: the log is damaged from here on.
            SeamRefused: the log's seam cannot be understood.
        """
        self._place.check()
        if self._is_sweep_due():
            self._is_certain = False
        self._recover(self._times.replaced_kept_s)
        before = self._catalog
        step = self._steps.after(before.last, before.heads)
        if step is None:
            self._say_complete()
            return None
        self._is_certain = False
        self._table.check_newest(before)
        version = before.next_version
        files = [write_data(self._place, day, rows, version) for day, rows in by_day(step.table)]
        tree = self._tree.extended(step.leaves)
        assert before.index is not None
        index = self._index.extended(before.index, step.table, step.last, version)
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
            tree=tree_said(tree),
            contents=contents_in(step.table),
        )
        statement = write_manifest(self._place, manifest, self._signer, version)
        statements = [*before.statements, statement]
        catalog = self._table.commit(before, statements, added=files, index=index)
        self._take(replace(catalog, heads=step.heads), tree, is_at_end=not step.is_full)
        size_bytes = sum(file.bytes for file in files)
        return Exported(
            manifest.first, step.last, manifest.rows, len(files), size_bytes, step.is_full
        )

    def compact(self, *, files_min: int) -> int:
        """Merge small steps; return by how many their number fell.

        This first removes files replaced ``ExportTimes.replaced_kept_s`` ago by a compaction;
        another process may still read newer ones. Raises as ``step``.
        """
        self.sweep(self._times.replaced_kept_s)
        before = self._catalog
        for run in runs(before.statements, files_min=files_min, bounds=self._bounds):
            self._replace(compact(self._rewriting(), run))
        return len(before.statements) - len(self._catalog.statements)

    def take_out_erased(
        self, progress: Callable[[int, int], None] = lambda _at, _end: None
    ) -> TakenOut:
        """Rewrite files with contents or names that the log has erased since; return how many.

        The names of identities whose erasure is exported leave the log first, and then its export.
        Each rewritten step is a version of its own; ``sweep`` removes the replaced files.
        ``progress`` is called with the position reached and the last one, of the log and then of
        the export. It may make steps; their errors end this.

        Raises as ``step``.
        """
        self.sweep(self._times.replaced_kept_s)
        gone = self._take_names_out_of_log(progress)
        self._steps.read_anew()
        taken = TakenOut()
        statements = self._catalog.statements
        paths = {statement.manifest.path for statement in statements}
        self._nameless = self._nameless & paths if gone == self._gone else set()
        self._gone = gone
        for statement in statements:
            path = statement.manifest.path
            # Do not read files again for names that an earlier call did not find in them.
            left = GoneNames() if path in self._nameless else gone
            found = without_erased_of(self._rewriting(), statement, left)
            if found.statement is not None:
                self._replace(found.statement)
                path = found.statement.manifest.path
                taken = TakenOut(*map(sum, zip(taken, found.taken, strict=True)))
            if not found.names_stay:
                self._nameless.add(path)
            self._is_certain = True  # also if nothing was to be rewritten
            progress(statement.manifest.last, self._catalog.last)
        return taken

    def _take_names_out_of_log(self, progress: Callable[[int, int], None]) -> GoneNames:
        work = NameErasure(self._log, erased_by=self._catalog.last)
        try:
            while work.step():
                progress(work.reached, work.end)
        except RowsStay:  # some rows left the log meanwhile; the next call does the rest
            return GoneNames()
        note_pass(self._log, self._clock())
        return GoneNames(work.erased, frozenset(work.nameless))

    def prune(
        self, until_ms: int, plan: Plan, after_part: Callable[[], None] = lambda: None
    ) -> int:
        """Remove for ever the unneeded rows recorded by ``until_ms``; return their number.

        Rows that are still in the log stay. The pruning is one version; the files that it replaces
        are removed like those of a compaction.

        Args:
            until_ms: Unix milliseconds.
            plan: finds the rows that nothing needs (``eventstore.parquet.write.pruning``).
            after_part: called after each part of the work. It may make steps; their errors end it.

        Raises as ``step``, and whatever ``plan`` raises.
        """
        self.sweep(self._times.replaced_kept_s)
        seam = seam_position(self._log)
        left = [s for s in self._catalog.statements if s.manifest.last <= seam]
        rewriting = self._rewriting()._replace(after_part=partial(self._between, after_part))
        found = prune(
            rewriting, left, plan, until_ms=until_ms, clock=self._clock, bounds=self._bounds
        )
        if found is None:
            return 0
        self._replace(found[0])
        return found[1]

    def _between(self, after_part: Callable[[], None]) -> None:
        """Call ``after_part``, whose steps remove no files: those written here do not count yet."""
        self._is_certain, self._unswept = True, None
        try:
            after_part()
        finally:
            self._is_certain = False

    def _rewriting(self) -> Rewriting:
        self._is_certain = False
        return Rewriting(self._place, self._log, self._signer, self._catalog.next_version)

    def _replace(self, statement: Statement) -> None:
        """Commit a version with a manifest in place of those that it replaces."""
        new, replaced = statement.manifest, set(statement.manifest.replaces)
        gone = [s for s in self._catalog.statements if s.manifest.path in replaced]
        stay = [s for s in self._catalog.statements if s.manifest.path not in replaced]
        had = {file.path: file.bytes for s in gone for file in s.manifest.files}
        has = {file.path for file in new.files}
        committed = self._table.commit(
            self._catalog,
            sorted([*stay, statement], key=lambda one: one.manifest.first),
            added=[file for file in new.files if file.path not in had],
            removed={path: size for path, size in had.items() if path not in has},
            is_change=new.rewritten is not None,  # and not only merged
        )
        self._take(committed)
        self._unswept = self._clock(), self._times.replaced_kept_s * _MS

    def sweep(self, replaced_kept_s: float = 0.0) -> None:
        """Remove files that do not count: replaced this long ago, or left by a kill.

        Raises as ``step``.
        """
        self._place.check()
        self._is_certain = False
        self._recover(replaced_kept_s)

    def _take(
        self, committed: Catalog, tree: TiledTree | None = None, *, is_at_end: bool = False
    ) -> None:
        """Write the end mark for a committed version, and continue from this version.

        ``tree`` is the version's tree over all seals, if it has grown.
        """
        until_ms = self._new_until_ms(committed) if is_at_end else None
        self._catalog = self._table.mark(committed, complete_until_ms=until_ms)
        if tree is not None:
            self._tree.take(tree)
        self._is_certain = True

    def _say_complete(self) -> None:
        """Mark the export as complete, once the whole log is exported, but not on every call."""
        until_ms, said_ms = self._new_until_ms(self._catalog), self._catalog.complete_until_ms
        every_ms = self._times.complete_every_s * _MS
        if until_ms is None or (said_ms is not None and 0 <= until_ms - said_ms < every_ms):
            return
        self._is_certain = False
        self._table.check_newest(self._catalog)
        self._catalog = self._table.mark(self._catalog, complete_until_ms=until_ms)
        self._tree.publish()
        self._is_certain = True

    def _new_until_ms(self, catalog: Catalog) -> int | None:
        """Until when the export is complete; None if its mark may keep the time that it has."""
        began_ms, bound_ms = self._steps.began_ms, self._bounds.until_ms
        ended_ms = began_ms - self._steps.append_age_s * _MS
        read_ms = ended_ms if bound_ms is None else min(ended_ms, bound_ms)
        until_ms = int(max(1, read_ms - self._times.settled_s * _MS))
        said_ms = catalog.complete_until_ms or 0
        # A time in the future was written by a clock that was ahead.
        return until_ms if until_ms > said_ms or said_ms > began_ms else None

    def _recover(self, replaced_kept_s: float, catalog: Catalog | None = None) -> None:
        """Read the export again after a failure: a failed commit may have succeeded."""
        if self._is_certain:
            return
        catalog = catalog or catalog_of(self._place, self._verify, self._catalog.statements)
        if catalog.head is None:
            raise self._table.gone()
        if not catalog.is_marked:
            catalog = self._table.mark_unmarked(catalog)
        now_ms, strays = self._clock(), len(catalog.strays)
        paths = removable(self._place, catalog, now_ms=now_ms, replaced_kept_s=replaced_kept_s)
        if paths:  # from then on no exporter gives a file one of these names
            catalog = self._table.mark(self._table.commit(catalog, catalog.statements))
        for path in paths:
            self._place.remove(path)
        self._tree.resume(catalog)
        if catalog.index is None:
            index = self._index.complete(catalog)
            catalog = self._table.mark(self._table.commit(catalog, catalog.statements, index=index))
        self._catalog = catalog
        is_kept = replaced_kept_s and strays > len(paths)
        self._unswept = (now_ms, replaced_kept_s * _MS) if is_kept else None
        self._is_certain = True

    def _is_sweep_due(self) -> bool:
        """Whether files have stayed long enough; a future time is from a clock set back since."""
        if self._unswept is None:
            return False
        since_ms, kept_ms = self._unswept
        return not 0 <= self._clock() - since_ms < kept_ms

    def _give_table(self) -> None:
        """Make the table of a new export, or of one that has only manifests."""
        place, catalog = self._place, self._catalog
        mark, log = read_mark(place, self._verify), place.sizes(TABLE_LOG)
        if not any(path.endswith((".json", ".parquet")) for path in log):  # a kill leaves others
            catalog = self._table.create(catalog)
        else:
            # An exporter was killed while making it; an earlier release may have exported since.
            said, commit = read_version(place, newest_version(log), self._verify)
            check_checkpoint(place, log, said, mark)
            known = files_of(place, require_table(place, said.version))
            begun = replace(catalog, statements=(), version=said, commit=commit, mark=mark)
            named = {file.path for file in catalog.files}
            removed = {path: file.bytes for path, file in known.items() if path not in named}
            catalog = self._table.commit(
                begun,
                catalog.statements,
                added=[file for file in catalog.files if file.path not in known],
                removed=removed,
                is_change=not removed,
            )
        catalog = self._table.mark(catalog)
        assert catalog.head is not None
        head = structs.replace(catalog.head, format=TABLE_FORMAT, signature="")
        place.write(HEAD, signed(head, self._signer.sign)[1])


def _claim(log: LogReader, place: ExportPlace, owner: ExportOwner, signer: Signer) -> ExportHead:
    """Write ``export.json`` in an empty place; refuse the place of another exporter.

    Nothing is written if rows have left the log: an empty place would pass for their archive.

    ``export.json`` says that there is a table only once there is one (``Exporter._give_table``).
    """
    try:
        head = export_head(place, None)
    except FileMissing:
        if place.sizes(EVENTS) or place.sizes(MANIFESTS):
            raise ExportRefused(f"{place.address()} contains files but no {HEAD}") from None
        _check_reaches_seam(log, 0, place)
        head = ExportHead(
            format=FORMAT,
            schema=SCHEMA_VERSION,
            mediator_did=owner.mediator_did,
            shards=owner.shards,
            public_key=signer.signed_by,
        )
        place.write(HEAD, signed(head, signer.sign)[1])
    ours = (owner.mediator_did, owner.shards, signer.signed_by)
    theirs = (head.mediator_did, head.shards, head.public_key)
    if ours != theirs:
        raise ExportRefused(
            f"{place.address()} is the export of {theirs[0]} with {theirs[1]} shards and key"
            f" {theirs[2]}, not of {ours[0]} with {ours[1]} shards and key {ours[2]}"
        )
    return head


def _check_reaches_seam(log: LogReader, last: int, place: ExportPlace) -> None:
    """Refuse an export that lacks rows which left the log: only the archive has them."""
    seam = seam_position(log)
    if last < seam:
        raise ExportRefused(
            f"rows up to position {seam} left the log for its archive, but {place.address()} ends"
            f" at {last}: copy the archive there first, or set export.to to where it is"
        )


def _check_same_log(log: LogReader, catalog: Catalog) -> None:
    """Refuse to continue the export of another log: this log must have its newest seals."""
    for name, head in heads_not_in(log, catalog.heads).items():
        raise ExportRefused(
            f"the export has seal {head.version} of {name}, which this log lacks: it"
            " belongs to another log, or the log lost its end"
        )
