"""Reads the events of an export as a DataFrame, from the files that its catalog names.

Content (``state``) is never read; Spark reads only the columns that a projection names.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from eventstore.log.databases import folder_name
from eventstore.log.public_key import PublicKey
from eventstore.parquet.files import EVENTS, open_place
from eventstore.parquet.opening import (
    DatabaseExport,
    OpenedExport,
    Position,
    open_exports,
)
from eventstore.parquet.schema import EVALUATED
from projections.spark.pseudonyms import pseudonymised
from projections.spark.session import PARTS_MAX

DATABASE: Final = "database"
"""The column with the database of an event; missing if the log has only one database."""
_IN_DATABASE: Final = rf"/{folder_name(0)[:-1]}(\d+)/{EVENTS}/[^/]+/[^/]+$"
"""The end of a file's path; its first part is the folder of the file's database."""
_PATTERN: Final = re.compile(r"[\\*?{}\[\]]")
"""Characters that Spark takes for a pattern in the path of a file to read."""
_ONE_PART_ROWS: Final = 50_000
"""In local mode, one task groups fewer rows than this in one part."""
_PART_ROWS: Final = 150_000
"""In local mode, about how many rows are grouped in one part, if there are many."""
_OF_FEW_ROWS: Final = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""Settings for rows in one part: nothing is shuffled, so there is nothing to plan again, and
compiling a plan takes longer than reading the rows with it."""
SCHEMA: Final = from_arrow_schema(EVALUATED)
"""The columns of the exported files that projections read."""


@dataclass(frozen=True)
class ExportedLog(OpenedExport):
    """An opened export whose rows Spark reads.

    With a key, all rows have pseudonyms (``projections.spark.pseudonyms``).
    """

    key: bytes | None = field(default=None, repr=False)

    def events(
        self, spark: SparkSession, after: Position | None = None, until: Position | None = None
    ) -> DataFrame:
        """The rows with ``after < position <= until``, seals included, in no order.

        Rows of several databases have the column ``database`` with its number. Each file is
        compared with its signed SHA-256 before Spark gets it (``eventstore.parquet.opening``).

        Raises:
            ExportDamaged: a file is missing, or not the one that its manifest names.
            ExportUnavailable: a file cannot be read now.
        """
        after, until = after or self.start, until or self.last
        ends = list(zip(self.parts, after, until, strict=True))
        for part, first, last in ends:
            part.hashes.check(part.place, part.files(first, last))
        count = sum(last - first for _, first, last in ends)
        _share_out(spark, count)
        rows = _rows(
            spark, [path for part, first, last in ends for path in _paths(part, first, last)]
        )
        if fits_one_part(spark, count):
            rows = rows.coalesce(1)
        if len(self.parts) == 1:
            rows = rows.drop(DATABASE)
        if not all(part.is_whole(first, last) for part, first, last in ends):
            # Whole files need no condition, for which Spark would read the positions.
            rows = rows.where(~self.is_until(after) & self.is_until(until))
        return rows if self.key is None else pseudonymised(rows, self.key)

    def is_until(self, position: Position) -> Column:
        """Whether an event is at or before this position."""
        if len(position) == 1:
            return F.col("position") <= position[0]
        reached = F.array(*map(F.lit, position))
        return F.col("position") <= F.get(reached, F.col(DATABASE))


def _share_out(spark: SparkSession, rows: int) -> None:
    """In local mode, group this many rows in few parts; each part costs milliseconds.

    A cluster's own setting stays as it is.
    """
    if not _is_local(spark):
        return
    parts = 1 if rows < _ONE_PART_ROWS else min(2 + rows // _PART_ROWS, PARTS_MAX)
    spark.conf.set("spark.sql.shuffle.partitions", str(parts))
    if parts > 1:
        plan_for_many_rows(spark)
        return
    for name, value in _OF_FEW_ROWS.items():
        spark.conf.set(name, value)


def plan_for_many_rows(spark: SparkSession) -> None:
    """Restore the planning settings with which Spark was started."""
    for name in _OF_FEW_ROWS:
        spark.conf.unset(name)


def fits_one_part(spark: SparkSession, rows: int) -> bool:
    """Whether one task reads and groups this many rows, without a shuffle.

    Each stage and each task costs Spark some hundredths of a second, whatever it reads.
    """
    return rows < _ONE_PART_ROWS and _is_local(spark)


def _is_local(spark: SparkSession) -> bool:
    return bool(spark.sparkContext.master.startswith("local"))


def _paths(part: DatabaseExport, after: int, until: int) -> list[str]:
    """The files of one database with rows at ``after < position <= until``."""
    root = spark_path(part.target)
    return [f"{root}/{file.path}" for file in part.files(after, until)]


def _rows(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    """All rows of these files, with the number of their database from its folder's name.

    One scan reads the files of all databases: a scan for each would make every plan larger.
    """
    number = F.regexp_extract("_metadata.file_path", _IN_DATABASE, 1).cast("int")
    return read_parquet(spark, SCHEMA, paths).withColumn(DATABASE, number)


def open_export(
    target: str,
    signer: PublicKey | None = None,
    key: bytes | None = None,
    *,
    skip_hashes: bool = False,
) -> ExportedLog:
    """Open the export at a local path or a URI; with pseudonyms by a key, if one is given.

    All signatures in the export must be by ``signer``; without one, by the key that the export
    names itself, whose owner is then unproven. The exports of several databases at the target are
    opened as one.

    With ``skip_hashes`` data files are not compared with their signed hashes.

    Raises:
        NoExport: there is no export.
        ExportDamaged: names the file and says what is wrong with it, a wrong signature included;
            also if one of several exports is missing.
        ExportUnavailable: the place cannot be read now.
    """
    return ExportedLog(open_exports(target, signer, skip_hashes=skip_hashes).parts, key)


def read_parquet(spark: SparkSession, schema: StructType | str, paths: Sequence[str]) -> DataFrame:
    """Read files or folders by their paths, in which no character stands for others.

    Without a path there are no rows. ``createDataFrame`` would start a Python for these.
    """
    return spark.read.schema(schema).parquet(*[_PATTERN.sub(r"\\\g<0>", path) for path in paths])


def spark_path(target: str) -> str:
    """Convert a local path or a URI of ``pyarrow.fs`` to Spark's form."""
    if "://" not in target:
        return f"file://{open_place(target).root}"
    scheme, _, rest = target.partition("?")[0].rstrip("/").partition("://")
    return f"{ {'s3': 's3a'}.get(scheme, scheme) }://{rest}"
