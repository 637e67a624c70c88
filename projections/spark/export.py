"""The events of an export as a DataFrame: only the files that its catalog names.

Content (``state``) is never read; Spark reads of the columns below those alone that a projection
names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, TypeAlias

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that all of Spark's users know
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from eventstore.log.databases import folder_name
from eventstore.log.public_key import PublicKey, PublicKeyRefused, read_public_key
from eventstore.parquet.catalog import Catalog, DataFile, catalog_of
from eventstore.parquet.databases import check_one_log, exports_in
from eventstore.parquet.errors import ExportDamaged
from eventstore.parquet.files import EVENTS, HEAD, ExportPlace, FileMissing, open_place
from eventstore.parquet.manifest import ExportHead, Verify, read_head
from eventstore.parquet.schema import SCHEMA as EXPORTED
from projections.errors import UNREACHABLE, USAGE, ProjectionError
from projections.spark.pseudonyms import pseudonymised

AsOf: TypeAlias = datetime | int | None
"""A time (with its zone) or a position of the log; None for all that is exported."""
Position: TypeAlias = tuple[int, ...]
"""How far a log is: the position of a row in each of its databases, in their order."""
DATABASE: Final = "database"
"""The column with the database of an event; there is none where the log has one."""
_IN_DATABASE: Final = rf"/{folder_name(0)[:-1]}(\d+)/{EVENTS}/[^/]+/[^/]+$"
"""What the path of a file ends with; the first part is the folder of its database."""

_MS: Final = 1_000
_NOT_READ: Final = {"type_version", "command", "state", "previous"}
_SPARK: Final[Mapping[pa.DataType, DataType]] = {
    pa.string(): StringType(),
    pa.binary(): BinaryType(),
    pa.bool_(): BooleanType(),
    pa.int64(): LongType(),
    pa.float64(): DoubleType(),
}


def spark_type(kind: pa.DataType) -> DataType:
    """The type as which Spark reads a column of this Arrow type.

    Raises:
        TypeError: no column of ours is of this type.
    """
    if kind in _SPARK:
        return _SPARK[kind]
    if pa.types.is_fixed_size_binary(kind):
        return BinaryType()
    if pa.types.is_timestamp(kind):
        return TimestampType()
    if pa.types.is_list(kind):
        return ArrayType(spark_type(kind.value_type))
    if pa.types.is_struct(kind):
        return spark_schema(kind.fields)
    raise TypeError(f"no column is of type {kind}")


def spark_schema(fields: Iterable[pa.Field]) -> StructType:
    """The schema with which Spark reads columns of these Arrow types."""
    return StructType([StructField(field.name, spark_type(field.type)) for field in fields])


SCHEMA: Final = spark_schema(field for field in EXPORTED if field.name not in _NOT_READ)
"""The columns of the exported files that projections read."""


class NoExport(ProjectionError):
    """There is no export in the place that was named."""

    exit_code = UNREACHABLE


class NotExported(ProjectionError):
    """The export does not reach the position that was named."""

    exit_code = USAGE


@dataclass(frozen=True)
class DatabaseExport:
    """The export of one database, and what it held when it was opened."""

    target: str
    place: ExportPlace
    catalog: Catalog

    def files(self, after: int, until: int) -> list[DataFile]:
        """Those with rows at ``after < position <= until``."""
        return [f for f in self.catalog.files if f.last > after and f.first <= until]

    def paths(self, after: int, until: int) -> list[str]:
        """The same as Spark finds them."""
        root = spark_path(self.target)
        return [f"{root}/{file.path}" for file in self.files(after, until)]

    def is_whole(self, after: int, until: int) -> bool:
        """Whether these have no other rows."""
        return all(after < f.first and f.last <= until for f in self.files(after, until))


@dataclass(frozen=True)
class ExportedLog:
    """An export as it was when it was opened, whatever is added since.

    Where the log has several databases, all their exports are its parts, in their order. With a
    key, all its rows have pseudonyms (``projections.spark.pseudonyms``).
    """

    parts: Sequence[DatabaseExport]
    key: bytes | None = field(default=None, repr=False)

    @property
    def head(self) -> ExportHead:
        """Whose export it is."""
        head = self.parts[0].catalog.head
        assert head is not None
        return head

    @property
    def files(self) -> list[list[DataFile]]:
        """The data files of each part."""
        return [part.catalog.files for part in self.parts]

    @property
    def versions(self) -> list[int]:
        """The version of each part's table; -1 for an export of an earlier release without one."""
        found = [part.catalog.version for part in self.parts]
        return [-1 if version is None else version.version for version in found]

    @property
    def start(self) -> Position:
        """Before the first row."""
        return (0,) * len(self.parts)

    @property
    def last(self) -> Position:
        """Where the export ends."""
        return tuple(part.catalog.last for part in self.parts)

    def types(self, after: Position, until: Position) -> frozenset[str]:
        """Event types that may stand at ``after < position <= until``; no other ones do."""
        return frozenset(
            topic.rpartition(".")[0]
            for part, first, last in zip(self.parts, after, until, strict=True)
            for file in part.files(first, last)
            for topic in file.types
        )

    def counts(self, until: Position) -> Counter[str]:
        """Events of each type up to a position, or some more: whole files are counted."""
        found: Counter[str] = Counter()
        for part, last in zip(self.parts, until, strict=True):
            for file in part.files(0, last):
                for topic, count in file.types.items():
                    found[topic.rpartition(".")[0]] += count
        return found

    def events(
        self, spark: SparkSession, after: Position | None = None, until: Position | None = None
    ) -> DataFrame:
        """The rows with ``after < position <= until``, seals included, in no order.

        Rows of several databases have the column ``database``, the number of theirs.
        """
        after, until = after or self.start, until or self.last
        ends = list(zip(self.parts, after, until, strict=True))
        rows = _rows(
            spark, [path for part, first, last in ends for path in part.paths(first, last)]
        )
        if len(self.parts) == 1:
            rows = rows.drop(DATABASE)
        if not all(part.is_whole(first, last) for part, first, last in ends):
            # Without a condition, positions that are not wanted are not read.
            rows = rows.where(~self.is_until(after) & self.is_until(until))
        return rows if self.key is None else pseudonymised(rows, self.key)

    def is_until(self, position: Position) -> Column:
        """Whether one of the events stands at or before this position."""
        if len(position) == 1:
            return F.col("position") <= position[0]
        reached = F.array(*map(F.lit, position))
        return F.col("position") <= F.get(reached, F.col(DATABASE))

    def position(self, spark: SparkSession, as_of: AsOf) -> Position:
        """The position that the log had reached then.

        Of a time: the last seal that was made until then in each database, so that transactions
        are whole.

        Raises:
            NotExported: the export ends before that position, or may be incomplete until that
                time, or a number names none.
        """
        self.require(as_of)
        if as_of is None:
            return self.last
        if isinstance(as_of, datetime):
            return tuple(_reached(spark, ExportedLog([part]), as_of) for part in self.parts)
        return (as_of,)

    def require(self, as_of: AsOf) -> None:
        """Say what is wrong with a point in the log before Spark is asked for it.

        Raises:
            NotExported: as ``position``.
        """
        if as_of is None:
            return
        if isinstance(as_of, datetime):
            self._check_complete(as_of)
        elif len(self.parts) > 1:
            raise NotExported(
                f"position {as_of}: the log has {len(self.parts)} databases, each with positions of"
                " its own: name a time, or the export of one database"
            )
        elif as_of > self.last[0]:
            raise NotExported(f"position {as_of}: the export ends at {self.last[0]}")

    def _check_complete(self, at: datetime) -> None:
        for number, part in enumerate(self.parts):
            until_ms = part.catalog.complete_until_ms
            name = f"{folder_name(number)}: " if len(self.parts) > 1 else ""
            if until_ms is None:
                raise NotExported(
                    f"{name}the export does not say until when it is complete, for it is not done"
                    " or of an earlier release: export once more, or name a position"
                )
            if at.timestamp() * _MS > until_ms:
                until = datetime.fromtimestamp(until_ms / _MS, UTC).isoformat(timespec="seconds")
                raise NotExported(
                    f"{name}{at.isoformat()}: the export is complete until {until}, position"
                    f" {part.catalog.last}: name an earlier time, or wait for what is exported next"
                )

    def at_ms(self, spark: SparkSession, position: Position) -> int:
        """When the events just before a position were recorded, Unix milliseconds; 0 for none.

        The latest time in the one file of each database that holds it: no other one is read.
        """
        ends = zip(self.parts, position, strict=True)
        return max(_at_ms(spark, ExportedLog([part]), last) for part, last in ends)


def _rows(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    """All rows of these files, each with the number in the name of the folder of its database.

    The files of all databases are read at once: each apart would make every plan so much larger.
    """
    if not paths:
        return spark.createDataFrame([], SCHEMA).withColumn(DATABASE, F.lit(0))
    number = F.regexp_extract("_metadata.file_path", _IN_DATABASE, 1).cast("int")
    return spark.read.schema(SCHEMA).parquet(*paths).withColumn(DATABASE, number)


def _reached(spark: SparkSession, export: ExportedLog, at: datetime) -> int:
    """The position of the last seal of one database that was made until then."""
    seals = export.events(spark).where(
        (F.col("type") == "batch-sealed") & (F.col("recorded_at") <= F.lit(at))
    )
    reached = seals.agg(F.max("position")).first()
    return int(reached[0] or 0) if reached is not None else 0


def _at_ms(spark: SparkSession, export: ExportedLog, position: int) -> int:
    """See ``ExportedLog.at_ms``, of one database."""
    firsts = [file.first for files in export.files for file in files if file.first <= position]
    if not firsts:
        return 0
    rows = export.events(spark, (max(firsts) - 1,), (position,))
    newest = rows.agg(F.max(F.unix_millis("recorded_at"))).first()
    return int(newest[0] or 0) if newest is not None else 0


def open_export(
    target: str, signer: PublicKey | None = None, key: bytes | None = None
) -> ExportedLog:
    """The export at a path of this machine or a URI; with pseudonyms by a key, if one is given.

    Everything in it that is signed has to be signed by ``signer``; without one by the key that the
    export names itself, and whose that is, nothing says. Where the exports of several databases are
    there, all of them as one.

    Raises:
        NoExport: there is no export.
        ExportDamaged: names the file and says what is wrong with it, a wrong signature included;
            also if an export of several is missing.
        ExportUnavailable: the place cannot be read now.
    """
    targets = exports_in(target)
    parts = [_opened(one, signer) for one in targets or [target]]
    if targets not in ([], [target]):
        check_one_log([part.catalog for part in parts])
    return ExportedLog(parts, key)


def _opened(target: str, signer: PublicKey | None) -> DatabaseExport:
    place = open_place(target)
    catalog = catalog_of(place, _verify_of(place, signer), is_listed=False)
    if catalog.head is None:
        why = "no export is here" if place.exists() else "there is no such folder"
        raise NoExport(f"{place.address()}: {why}")
    return DatabaseExport(target, place, catalog)


def _verify_of(place: ExportPlace, signer: PublicKey | None) -> Verify | None:
    """The check of signatures; None where there is no export, or none that can be read."""
    if signer is not None:
        return signer.verify
    try:
        named = read_head(HEAD, place.read(HEAD)).public_key
    except (FileMissing, ExportDamaged):
        return None
    try:
        return read_public_key(named).verify
    except PublicKeyRefused:
        return lambda _message, _signature: False


def position_text(position: Position) -> str:
    """A position in words; of several databases with the names of their exports."""
    if len(position) == 1:
        return f"{position[0]:,}"
    return ", ".join(f"{folder_name(number)} {last:,}" for number, last in enumerate(position))


def spark_path(target: str) -> str:
    """A path of this machine or a URI of ``pyarrow.fs`` as Spark writes it."""
    if "://" not in target:
        return f"file://{open_place(target).root}"
    scheme, _, rest = target.partition("?")[0].rstrip("/").partition("://")
    return f"{ {'s3': 's3a'}.get(scheme, scheme) }://{rest}"
