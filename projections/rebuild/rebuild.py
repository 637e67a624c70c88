"""Rebuilds all tables from an export: from the first event, or from an earlier generation.

First Spark writes all files, each table into a folder of this run. Then the tables are committed,
several at the same time, and at last the generation that names their versions: a kill before that
changes nothing for readers.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, TypeAlias

import msgspec
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from eventstore.log.pseudonyms import fingerprint
from eventstore.log.streams import KINDS
from eventstore.parquet.errors import ExportError
from eventstore.parquet.opening import AsOf, Position, position_text
from projections.errors import USAGE, ProjectionError
from projections.generations.generation import (
    Generation,
    GenerationTable,
    TableColumn,
    TableFile,
    content_hash,
)
from projections.generations.place import Kept, TablesPlace, only_rebuild
from projections.generations.reading import read_files
from projections.rebuild.writing import (
    Parts,
    all_parts,
    buckets_for,
    parts_to_write,
    slots_by_type,
    slots_naming,
    write_rows,
)
from projections.spark.export import ExportedLog, fits_one_part, plan_for_many_rows, spark_path
from projections.spark.pseudonyms import pseudonymised
from projections.spark.tasks import results_of
from projections.tables import PROJECTIONS, RARE
from projections.tables.agents import ACCOUNT_NAMES
from projections.tables.erased import (
    ERASURES,
    EVERY_KIND,
    about_names,
    erased_identities,
    has_events_of,
    has_nameless,
    has_returned,
    named_before,
    names_in,
    names_of,
    said_last,
    with_names,
    without_erased,
    without_speakers,
)
from projections.tables.identities import IDENTITIES
from projections.tables.projection import Projection, Step, rare_events

_COMMITS_AT_ONCE: Final = 4
"""The tables that are committed at the same time: each commit waits for the disk or the store."""
_FEW_ROWS_MAX: Final = 1_000_000
"""One task groups this many rows of four columns in a second or two."""
KEPT: Final = Kept()

Progress: TypeAlias = Callable[[str], None]
"""Called with the name of each table whose files are written."""


class RebuildRefused(ProjectionError):
    """The earlier tables cannot be continued up to the requested position."""

    exit_code = USAGE


def rebuild(  # noqa: PLR0913 - one for each option
    spark: SparkSession,
    export: ExportedLog,
    target: str,
    *,
    as_of: AsOf = None,
    incremental: bool = False,
    kept: Kept = KEPT,
    progress: Progress = lambda _name: None,
) -> Generation:
    """Write all tables for the log at ``as_of``; return their generation.

    Args:
        spark: any session; ``projections.spark.session`` opens one.
        export: see ``projections.spark.export.open_export``; with a key the tables have pseudonyms.
        target: the folder of the tables, a path or a URI.
        as_of: a time, a position, or None for all that is exported.
        incremental: continue from the newest generation in ``target``, if there is one.
        kept: which earlier generations stay.
        progress: called after each table.

    Raises:
        NotExported: the export does not reach ``as_of``.
        RebuildRefused: the earlier tables are later, of another export, of rows that this export
            does not have, or of another key.
        TablesBusy: another rebuild writes to ``target``.
        TablesDamaged: the earlier tables are not as they were written.
        ExportUnavailable: ``target`` cannot be read or written.
    """
    place = TablesPlace(target)
    position = export.position(as_of)
    with only_rebuild(place.place), ExitStack() as ending:
        start = place.generation() if incremental else None
        if start is not None:
            _check_continues(start, export, position)
            place.check(start)
            if not place.is_of(start, export):
                raise RebuildRefused(
                    f"the earlier tables are at position {position_text(start.at)} of another"
                    " history of this log, which has lost rows since: rebuild them in full"
                )
            if start.at == position:
                return start
        run = _Run(spark, export, position, place, start, ending).with_names()
        return run.generation(kept, progress)


@dataclass(frozen=True)
class _Run:
    """One rebuild to a position, from an earlier generation or from nothing.

    ``erased`` are the identities whose names no table gets, ``erased_since`` those of them that
    earlier tables still name. ``names`` are the names of streams whose events may have two
    (``projections.tables.erased``).
    """

    spark: SparkSession
    export: ExportedLog
    position: Position
    place: TablesPlace
    start: Generation | None
    ending: ExitStack
    erased: DataFrame | None = None
    erased_since: DataFrame | None = None
    names: DataFrame | None = None
    name: str = field(default_factory=lambda: uuid.uuid4().hex)

    def keep(self, rows: DataFrame) -> DataFrame:
        """Keep rows, once they are computed, until the rebuild ends; return the same rows."""
        self.ending.callback(rows.persist(StorageLevel.MEMORY_AND_DISK).unpersist)
        return rows

    def with_names(self) -> _Run:
        """This rebuild with its names, begun anew if it cannot take names out of earlier tables.

        Names leave the whole export, also rows before the erasure.
        """
        spark, export, start, keep = self.spark, self.export, self.start, self.keep
        if not export.counts(export.last).get(ERASURES):
            return self
        plain = replace(export, key=None)  # a pseudonym does not show that a name has left
        if start is not None:
            earlier = [start.table(one.name) for one in (IDENTITIES, ACCOUNT_NAMES)]
            identities, accounts = [self._read(table, table.files) for table in earlier]
            erased = erased_identities(identities)
            new = export.events(spark, start.at, self.position)
            about = _few(keep(about_names(plain.events(spark, start.at, self.position))))
            kinds = KINDS if export.key is None else EVERY_KIND
            is_anew = has_events_of(new, erased) or has_nameless(about, kinds)
            if not (is_anew or has_returned(about)):
                names = keep(named_before(names_of(about), identities))
                erased = without_speakers(erased, accounts)
                if ERASURES not in export.types(start.at, self.position):
                    return replace(self, erased=keep(erased), names=names)
                since = keep(erased_identities(said_last(about)))
                every = keep(erased.unionAll(since))
                named = since if export.key is None else None
                return replace(self, erased=every, erased_since=named, names=names)
        about = _few(keep(about_names(plain.events(spark, None, self.position))))
        every = keep(erased_identities(said_last(about)))
        names = names_of(about)
        if export.key is not None:
            names = pseudonymised(names, export.key)
        return replace(self, start=None, erased=every, names=keep(names))

    def generation(self, kept: Kept, progress: Progress) -> Generation:
        """Write all files, commit all tables, and then the generation."""
        step = self._step()
        try:
            staged = self._staged(step, progress)
        except BaseException:
            # The next rebuild removes files that cannot be removed now.
            with suppress(ExportError):
                self.place.remove_run([each.name for each in PROJECTIONS], self.name)
            raise
        base = None if self.start is None else self.start.generation
        with ThreadPoolExecutor(_COMMITS_AT_ONCE) as writers:
            commits = [writers.submit(self.place.commit_table, table, base) for table in staged]
            tables = [commit.result() for commit in commits]
        is_whole = self.position == self.export.last
        draft = Generation(
            generation=0,
            made_at_ms=0,
            mediator=self.export.head.mediator_did,
            public_key=self.export.head.public_key,
            position=sum(self.position),
            positions=list(self.position),
            export_versions=self.export.versions,
            complete_until_ms=self.export.complete_until_ms if is_whole else None,
            at_ms=step.at_ms,
            window_ms_max=step.window_ms_max,
            pseudonyms=fingerprint(self.export.key),
            tables=tables,
        )
        hides_names = self.erased is not None and self.export.key is None
        return self.place.commit(draft, base, kept, hides_names=hides_names)

    def _step(self) -> Step:
        """The events since the earlier generation; each table adds its earlier rows."""
        spark, export, start, position = self.spark, self.export, self.start, self.position
        after = start.at if start else export.start
        events, types = export.events(spark, after, position), export.types(after, position)
        if start is not None and not fits_one_part(spark, max(t.rows for t in start.tables)):
            plan_for_many_rows(spark)  # Spark also reads rows of the earlier tables
        latest = events.agg(F.max(F.unix_millis("recorded_at")), F.max("window_ms")).first()
        at_ms, window_ms_max = (value or 0 for value in latest or (0, 0))
        if self.names is not None and not self.names.isEmpty():
            events = with_names(events, self.names)
        return Step(
            events,
            rare_events(events, RARE),
            RARE,
            types,
            at_ms=max(at_ms, start.at_ms if start else 0),
            window_ms_max=max(window_ms_max, start.window_ms_max if start else 0),
        )

    def _staged(self, step: Step, progress: Progress) -> list[GenerationTable]:
        """Write the files of all tables; the tables are not committed yet."""
        parts = self._parts(step)
        self.keep(step.rare)
        step = replace(step, keep=lambda rows: int(self.keep(rows).count()))
        found: dict[str, GenerationTable] = {}
        tasks = [partial(self._stage, each, step, parts[each.name]) for each in PROJECTIONS]
        with closing(results_of(self.spark, tasks)) as written:
            for staged in written:
                found[staged.name] = staged
                progress(staged.name)
        return [found[projection.name] for projection in PROJECTIONS]

    def _parts(self, step: Step) -> dict[str, Parts | None]:
        """For each table the part that events may have changed; None if they changed nothing."""
        events, start = self.export.counts(self.position), self.start
        if start is None:
            return {each.name: all_parts(buckets_for(each, events)) for each in PROJECTIONS}
        rows = sum(self.position) - start.position
        in_files = self.export.counts(self.position, start.at)
        new = {kind: min(count, rows) for kind, count in in_files.items()}
        slots, naming = slots_by_type(step.events), self._slots_naming_erased(start)
        parts: dict[str, Parts | None] = {}
        for each in PROJECTIONS:
            earlier, named = start.table(each.name), naming.get(each.name, set())
            is_same = not named and step.types.isdisjoint(each.reads)
            parts[each.name] = (
                None if is_same else parts_to_write(each, earlier, slots, events, new, named)
            )
        return parts

    def _slots_naming_erased(self, start: Generation) -> Mapping[str, set[int]]:
        """For each earlier table, the slots of the rows that must lose a name."""
        if self.erased_since is None:
            return {}
        named = [each for each in start.tables if names_in([one.name for one in each.columns])]
        for table in named:
            self.place.check_content(table, table.files)
        rows = [self._read(table, table.files) for table in named]
        slots = slots_naming(rows, self.erased_since)
        return dict(zip([table.name for table in named], slots, strict=True))

    def _stage(self, projection: Projection, step: Step, parts: Parts | None) -> GenerationTable:
        """Write the files of a part of a table; its other files stay."""
        stays: list[TableFile] = []
        if self.start is not None:
            earlier = self.start.table(projection.name)
            if parts is None:
                types = {column.name: column.type for column in earlier.columns}
                return msgspec.structs.replace(earlier, columns=_columns(projection, types))
            self.place.check_content(earlier, parts.replaced)
            if parts.replaced:
                step = replace(step, earlier=self._read(earlier, parts.replaced))
            stays = [file for file in earlier.files if file not in parts.replaced]
        assert parts is not None
        rows = projection.rebuild(step).select(*projection.columns)
        if self.erased is not None and self.export.key is None:
            rows = without_erased(rows, self.erased)
        root = spark_path(self.place.target)
        folder = f"{root}/{projection.name}/{self.name}"
        has_rows = step.earlier is not None or not step.types.isdisjoint(projection.reads)
        if has_rows:
            write_rows(rows, parts, folder, in_one_task=self._is_small(parts))
        files = [*stays, *self.place.staged(projection.name, self.name)]
        return GenerationTable(
            name=projection.name,
            about=projection.about,
            version=0,
            rows=sum(file.rows for file in files),
            sha256=content_hash(files),
            buckets=parts.buckets,
            columns=_columns(projection, {f.name: f.dataType.simpleString() for f in rows.schema}),
            files=files,
        )

    def _is_small(self, parts: Parts) -> bool:
        """Whether one task computes and writes these parts."""
        after = 0 if self.start is None else self.start.position
        rows = sum(self.position) - after + sum(file.rows for file in parts.replaced)
        return fits_one_part(self.spark, rows)

    def _read(self, table: GenerationTable, files: Sequence[TableFile]) -> DataFrame:
        return read_files(self.spark, self.place, table, files)


def _columns(projection: Projection, types: Mapping[str, str]) -> list[TableColumn]:
    return [TableColumn(name, kind, projection.columns[name]) for name, kind in types.items()]


def _few(kept: DataFrame) -> DataFrame:
    """Put kept rows, if they are few, in one part, which is grouped without a shuffle."""
    return kept.coalesce(1) if kept.count() <= _FEW_ROWS_MAX else kept


def _check_continues(start: Generation, export: ExportedLog, position: Position) -> None:
    head = export.head
    if (start.mediator, start.public_key) != (head.mediator_did, head.public_key):
        raise RebuildRefused(f"the earlier tables are of {start.mediator}: rebuild them in full")
    if start.pseudonyms != fingerprint(export.key):
        kind = "pseudonyms by another key" if start.pseudonyms else "no pseudonyms"
        kind = kind if export.key is not None else "pseudonyms"
        raise RebuildRefused(f"the earlier tables have {kind}: rebuild them in full")
    if len(start.at) != len(position):
        raise RebuildRefused(
            f"the earlier tables are of {len(start.at)} of the log's databases, the export is of"
            f" {len(position)}: rebuild them in full"
        )
    if any(before > after for before, after in zip(start.at, position, strict=True)):
        raise RebuildRefused(
            f"the earlier tables are at position {position_text(start.at)}, which is after"
            f" {position_text(position)}: rebuild them in full"
        )
    if any(before < pruned for before, pruned in zip(start.at, export.pruned_up_to, strict=True)):
        raise RebuildRefused(
            f"rows after position {position_text(start.at)}, where the earlier tables end,"
            " were since removed from the archive: rebuild them in full"
        )
    found = {table.name: {column.name for column in table.columns} for table in start.tables}
    if found != {projection.name: set(projection.columns) for projection in PROJECTIONS}:
        raise RebuildRefused(
            "the earlier tables were made by another release: rebuild them in full"
        )
