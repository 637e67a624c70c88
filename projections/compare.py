"""``compare``: compares the memory of a running mediator with its exported log.

The mediator went on serving during the dump, so every identity was dumped at a version of its own.
The usual projections rebuild each identity from its events up to that version, and the result is
compared with its dumped rows. In addition, no version may be older than the one in the log before
the dump: so an owner that has missed an event is found even if all that it knows is true.

The rows of all tables are converted to one form, with their values as one text, so that one join
finds all differences; single values are compared only for rows that differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Final

import click
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import BinaryType

from eventstore.parquet.errors import ExportDamaged
from eventstore.parquet.opening import NotExported, Position, position_text
from projections.errors import FINDING, UNSAFE, ProjectionError
from projections.spark.export import ExportedLog, open_export, read_parquet, spark_path
from projections.spark.program import explaining, session_options, source_option
from projections.spark.session import open_session
from projections.tables import PROJECTIONS, RARE
from projections.tables.contracts import CONTRACTS
from projections.tables.erased import (
    ERASURES,
    about_names,
    left_streams,
    names_of,
    with_names,
    without_names,
)
from projections.tables.projection import Projection, Step, rare_events
from projections.tables.queues import QUEUES
from projections.tables.seals import NONCES, SEALS, unpacked

DIFFERENCE: Final = ("table", "identity", "key", "column", "live", "rebuilt")
"""The columns of a difference, all of them texts.

``key`` distinguishes the rows of one identity; ``column`` is empty if only one side has the row;
``live`` and ``rebuilt`` are null if that side has no value.
"""
_PLACE: Final = ("table", "identity", "key")
_MAP: Final = "map<string, string>"
_EMPTY: Final = "{}"


def rows_as_text(table: str, rows: DataFrame, identity: str, *keys: str) -> DataFrame:
    """Convert rows to ``table``, ``identity``, ``key`` and ``row``, the text of other columns.

    ``identity`` is the column that names the owner of a row, ``keys`` distinguish the owner's rows;
    none of these is ever null.
    """
    values = [column for column in rows.columns if column not in (identity, *keys)]
    shown = {field.name: _shown(field.name, field.dataType) for field in rows.schema}
    return rows.select(
        F.lit(table).alias("table"),
        F.col(identity).alias("identity"),
        F.concat_ws(" ", *[shown[key] for key in keys]).alias("key"),
        # A row without values must exist on both sides, too.
        F.to_json(F.struct(*[shown[name].alias(name) for name in values]))
        .alias("row") if values else F.lit(_EMPTY).alias("row"),
    )  # fmt: skip


def differences(live: Sequence[DataFrame], rebuilt: Sequence[DataFrame]) -> DataFrame:
    """The differences between the rows on both sides, which are in the form of ``rows_as_text``."""
    both = (
        united(live)
        .withColumnRenamed("row", "live_row")
        .join(united(rebuilt).withColumnRenamed("row", "rebuilt_row"), list(_PLACE), "full_outer")
        .where(~F.col("live_row").eqNullSafe(F.col("rebuilt_row")))
    )
    live_values = F.from_json("live_row", _MAP)
    rebuilt_values = F.from_json("rebuilt_row", _MAP)
    names = F.array_union(F.map_keys(live_values), F.map_keys(rebuilt_values))
    is_on_both = F.col("live_row").isNotNull() & F.col("rebuilt_row").isNotNull()
    columns = F.when(is_on_both, names).otherwise(F.array(F.lit("")))
    name = F.col("column")
    side = [
        F.when(name == "", F.col(f"{side}_row")).otherwise(values[name]).alias(side)
        for side, values in (("live", live_values), ("rebuilt", rebuilt_values))
    ]
    return (
        both.withColumn("column", F.explode(columns))
        .select(*_PLACE, "column", *side)
        .where(~F.col("live").eqNullSafe(F.col("rebuilt")))
    )


def united(frames: Sequence[DataFrame]) -> DataFrame:
    """All rows of frames with the same columns."""
    return reduce(DataFrame.unionAll, frames)


def _shown(name: str, kind: object) -> Column:
    return F.lower(F.hex(name)) if isinstance(kind, BinaryType) else F.col(name)


_TRIES: Final = 3
DIFFERENCES_MAX: Final = 1_000
"""The most differences that are listed; all are counted."""
_BROADCAST_MAX: Final = 1_000_000
"""The most identities whose watermarks every task may hold: 40 bytes each."""
_DUMPED: Final[Mapping[str, tuple[Projection, Sequence[str]]]] = {
    **{t.name: (t, (t.live.owner, *t.live.keys)) for t in PROJECTIONS if t.live is not None},
    # Sums over another table.
    "correspondents": (CONTRACTS, ("identity", "did")),
    "queue_totals": (QUEUES, ("identity",)),
    "queue_keys": (QUEUES, ("identity", "recipient_key")),
}
"""For each table of a dump the table that gives its rows, the column with the owner of a row, and
the columns that distinguish rows."""


class DumpDamaged(ProjectionError):
    """The dump of the live state cannot be read."""

    exit_code = UNSAFE


class Dump(msgspec.Struct, frozen=True):
    """``dump.json``: the dump was made between the log positions ``after`` and ``before``.

    Both have a position for each database.
    """

    after: Position
    before: Position
    identities: int
    not_in_memory: int
    rows: dict[str, int]


class Difference(msgspec.Struct, frozen=True):
    """One value, or one row, that is not the same on both sides."""

    table: str
    identity: str | None
    key: str
    column: str
    live: str | None
    rebuilt: str | None


class ComparedTable(msgspec.Struct, frozen=True):
    """One table: the number of its rows in memory, and of their differences."""

    name: str
    rows: int
    differences: int


class Comparison(msgspec.Struct, frozen=True):
    """The result of a comparison; ``listed`` holds the first of the differences.

    ``not_in_memory`` identities were in no process and were not compared. ``positions`` are the
    positions of the log's databases at which the dump was complete, ``position`` is their sum.
    """

    position: int
    positions: Position
    identities: int
    not_in_memory: int
    differences: int
    tables: list[ComparedTable]
    listed: list[Difference]


def compare(spark: SparkSession, export: ExportedLog, folder: str) -> Comparison:
    """Compare a dump in a local folder with an export of the same mediator.

    Raises:
        DumpDamaged: the dump cannot be read.
        NotExported: the export does not reach the position at which the dump was complete.
    """
    dump = _read_dump(folder)
    if len(export.last) != len(dump.before):
        raise NotExported(
            f"the export is of {len(export.last)} databases, but the dump is of {len(dump.before)}"
        )
    if any(last < before for last, before in zip(export.last, dump.before, strict=True)):
        ends = f"the export ends at {position_text(export.last)}"
        raise NotExported(f"position {position_text(dump.before)} of the dump: {ends}")
    live = {
        name: _read_table(spark, Path(folder) / f"{name}.parquet")
        for name in (*_DUMPED, "watermarks", "not_in_memory", "unserved", "partitions")
    }
    events, left = _without_two_names(export, export.events(spark, until=dump.before))
    types = export.types(export.start, dump.before)
    # Without events that a table reads it has no row: most logs do not have all types.
    names = [
        name
        for name, (table, _) in _DUMPED.items()
        if dump.rows[name] or not types.isdisjoint(table.reads)
    ]
    rebuilt, kept = _rebuilt(_step(events, types, live["watermarks"], dump), names)
    seals = events.where("type = 'batch-sealed'")
    heads, nonces = _of_partitions(live, seals)
    rebuilt |= {"seals": heads, "nonces": nonces}
    sides = [
        {name: side[name].select(*live[name].columns) for name in names} for side in (live, rebuilt)
    ]
    if left is not None:
        # In all columns of names, on both sides.
        kept.append(left.persist())
        sides = [{n: without_names(rows, left) for n, rows in side.items()} for side in sides]
    texts = [[rows_as_text(n, rows, *_DUMPED[n][1]) for n, rows in side.items()] for side in sides]
    found = united(
        [
            differences(*texts),
            _versions(live, events, export.is_until(dump.after)),
            _versions_of_seals(live["seals"], seals, export.is_until(dump.after)),
        ]
    )
    try:
        return _comparison(found.distinct(), dump)
    finally:
        for frame in kept:
            frame.unpersist()


def _read_dump(folder: str) -> Dump:
    path = Path(folder) / "dump.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=Dump)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DumpDamaged(f"{path}: {error}") from error


def _read_table(spark: SparkSession, path: Path) -> DataFrame:
    """Read a table of the dump. Its schema is given, so that Spark needs no job to infer it."""
    try:
        schema = from_arrow_schema(pq.read_schema(path))
    except (OSError, pa.ArrowException) as error:
        raise DumpDamaged(f"{path}: {error}") from error
    return read_parquet(spark, schema, [spark_path(str(path))])


def _step(events: DataFrame, types: frozenset[str], watermarks: DataFrame, dump: Dump) -> Step:
    """The events of each identity up to the version at which it was dumped."""
    until = watermarks.select("stream", F.col("version").alias("dumped_version"))
    if dump.identities <= _BROADCAST_MAX:
        until = F.broadcast(until)
    seen = events.join(until, "stream").where("version <= dumped_version").drop("dumped_version")
    # No table rebuilt from this step needs the time or the window.
    return Step(seen, rare_events(seen, RARE), RARE, types)


def _rebuilt(step: Step, names: Sequence[str]) -> tuple[dict[str, DataFrame], list[DataFrame]]:
    """Rebuild these tables of a dump; also return the frames that are kept for repeated use."""
    tables = {}
    for table in PROJECTIONS:
        if table.live is None or table.name not in names or table in (SEALS, NONCES):
            continue
        rows = _named(table.rebuild(step))
        tables[table.name] = _in_order(rows, *table.live.order) if table.live.order else rows
    kept = []
    if "queues" in tables:
        kept.append(tables["queues"].persist())
        tables |= _queue_sums(tables["queues"])
    if "contracts" in tables:
        kept.append(tables["contracts"].persist())
        parties = F.explode(F.array("requestor_did", "recipient_did")).alias("did")
        tables["correspondents"] = (
            tables["contracts"]
            .select("identity", parties, "expires_at_s")
            .groupBy("identity", "did")
            .agg(F.max("expires_at_s").alias("expires_at_s"))
        )
    return tables, kept


def _queue_sums(queues: DataFrame) -> dict[str, DataFrame]:
    is_envelope = F.col("protocol").startswith("didcomm")
    return {
        "queue_totals": queues.groupBy("identity").agg(
            F.count("*").alias("messages"),
            F.sum("size_bytes").alias("bytes"),
            F.count(F.when(is_envelope, 1)).alias("envelopes"),
            F.sum(F.when(is_envelope, F.col("size_bytes")).otherwise(0)).alias("envelope_bytes"),
        ),
        "queue_keys": queues.where(is_envelope)
        .groupBy("identity", "recipient_key")
        .agg(F.count("*").alias("messages"), F.sum("size_bytes").alias("bytes")),
    }


def _without_two_names(
    export: ExportedLog, events: DataFrame
) -> tuple[DataFrame, DataFrame | None]:
    """The events with one name for each stream, and the streams whose name was erased, if any.

    The mediator's memory and some events may still have an erased name.
    """
    if not export.counts(export.last).get(ERASURES):
        return events, None
    about = about_names(events)
    return with_names(events, names_of(about)), left_streams(about)


def _in_order(rows: DataFrame, *order: str) -> DataFrame:
    """Add the zero-based place of each row among those of its identity."""
    place = F.row_number().over(Window.partitionBy("stream").orderBy(*order)) - 1
    return rows.withColumn("place", place.cast("long"))


def _named(rows: DataFrame) -> DataFrame:
    """Name each stream whose identity the log does not name by its key."""
    return rows.withColumn("identity", _name(F.col("identity"), F.col("stream")))


def _name(identity: Column, stream: Column) -> Column:
    return F.coalesce(identity, F.concat(F.lit("stream:"), F.lower(F.hex(stream))))


def _versions(live: Mapping[str, DataFrame], events: DataFrame, is_before: Column) -> DataFrame:
    """Identities that only one side has, and impossible versions.

    ``is_before`` says which events were in the log when the dump began.
    """
    logged = events.where("type <> 'batch-sealed'").groupBy("stream").agg(
        F.max("identity").alias("logged_identity"),
        F.max(F.when(is_before, F.col("version"))).alias("least"),
        F.max("version").alias("most"),
    )  # fmt: skip
    known = (
        live["watermarks"]
        .join(live["unserved"].select("stream", "fault"), "stream", "full_outer")
        .join(logged, "stream", "full_outer")
        .join(live["not_in_memory"].select("stream"), "stream", "left_anti")
    )
    return _unlike(
        known.withColumn(
            "identity", _name(F.coalesce("identity", "logged_identity"), F.col("stream"))
        ),
        "identities",
    )


def _unlike(known: DataFrame, table: str) -> DataFrame:
    """The differences in ``version``, which must be from ``least`` to ``most``.

    ``known`` has ``identity``, ``version``, ``fault``, and these bounds, which the log gives.
    """
    version, least, most = F.col("version"), F.col("least"), F.col("most")
    is_denied = version.isNull() & (least.isNotNull() | F.col("fault").isNotNull())
    rows = known.where(is_denied | most.isNull() | (version < least) | (version > most))
    known = F.when(version > most, most).otherwise(F.coalesce(least, most))
    return rows.select(
        F.lit(table).alias("table"),
        "identity",
        F.lit("").alias("key"),
        F.lit("version").alias("column"),
        F.coalesce(version.cast("string"), "fault").alias("live"),
        known.cast("string").alias("rebuilt"),
    )


def _versions_of_seals(heads: DataFrame, seals: DataFrame, is_before: Column) -> DataFrame:
    """Partitions whose owner knows a newest seal that cannot be the newest."""
    logged = seals.groupBy("partition").agg(
        F.max(F.when(is_before, F.col("version"))).alias("least"),
        F.max("version").alias("most"),
    )
    known = heads.select("partition", "version", F.lit(None).cast("string").alias("fault"))
    known = known.join(logged, "partition", "left").withColumnRenamed("partition", "identity")
    return _unlike(known, "seals")


def _of_partitions(live: Mapping[str, DataFrame], seals: DataFrame) -> tuple[DataFrame, DataFrame]:
    """The heads of the chains, and the nonces in force, of the dumped partitions."""
    heads = seals.join(live["seals"].select("partition", "version"), ["partition", "version"])
    owners = live["partitions"].withColumnsRenamed(
        {"window_ms": "window_now_ms", "until": "dumped_version"}
    )
    first_ms = F.col("first_bucket") * F.col("bucket_ms")
    # A command's timestamp is at most one window ahead, and its nonce is kept one window more.
    kept_ms = 2 * F.greatest("window_ms", "window_now_ms") + 1
    covering = (
        seals.join(F.broadcast(owners), "partition")
        .where(F.col("version") <= F.col("dumped_version"))
        .where(F.unix_millis("recorded_at") + kept_ms >= first_ms)
    )
    wider_ms = F.greatest(F.lit(0), F.col("window_now_ms") - F.col("window_ms"))
    bucket = F.floor((F.col("expires_at_ms") + wider_ms) / F.col("bucket_ms")).cast("long")
    nonces = (
        unpacked(covering, "window_ms", "window_now_ms", "bucket_ms", "first_bucket")
        .withColumn("bucket", bucket)
        .where("bucket >= first_bucket")
        .select("partition", "bucket", "key")
        .distinct()
    )
    return heads, nonces


def _comparison(found: DataFrame, dump: Dump) -> Comparison:
    rows = found.orderBy(*DIFFERENCE).limit(DIFFERENCES_MAX + 1).collect()
    if len(rows) <= DIFFERENCES_MAX:
        counts = dict(Counter(row["table"] for row in rows))
    else:
        counts = {row["table"]: row["count"] for row in found.groupBy("table").count().collect()}
    return Comparison(
        position=sum(dump.before),
        positions=dump.before,
        identities=dump.identities,
        not_in_memory=dump.not_in_memory,
        differences=sum(counts.values()),
        tables=[ComparedTable(n, dump.rows.get(n, 0), counts.get(n, 0)) for n in _DUMPED],
        listed=[Difference(*row) for row in rows[:DIFFERENCES_MAX]],
    )


@click.command("compare")
@session_options
@source_option
@click.option("--live", "folder", required=True, help="The dump that poste verify --live made.")
@click.pass_context
@explaining()
def compare_command(
    context: click.Context,
    *,
    source: str,
    folder: str,
    master: str | None,
    memory_mib: int,
    skip_hashes: bool,
) -> None:
    """Compare the memory of a mediator with a rebuild; print the differences as JSON.

    poste verify --live makes the dump and runs this. Exit code 1 if anything differs.
    """
    with open_session(master, memory_mib=memory_mib) as spark:
        found = _compared(spark, source, folder, skip_hashes=skip_hashes)
    click.echo(msgspec.json.encode(found))
    context.exit(FINDING if found.differences else 0)


def _compared(spark: SparkSession, source: str, folder: str, *, skip_hashes: bool) -> Comparison:
    """Compare; try again if a compaction removed files meanwhile, as the dump does not change."""
    export = open_export(source, skip_hashes=skip_hashes)
    for _ in range(_TRIES - 1):
        try:
            return compare(spark, export, folder)
        except (PySparkException, Py4JError, ExportDamaged):
            before, export = export, open_export(source, skip_hashes=skip_hashes)
            parts = zip(before.parts, export.parts, strict=True)
            files = [(old.catalog.files, new.catalog.files) for old, new in parts]
            if all(new[: len(old)] == old for old, new in files):
                raise
    return compare(spark, export, folder)
