"""The events of an export as a DataFrame: only the files that its catalog names.

Content (``state``) is never read; Spark reads of the columns below those alone that a projection
names.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, TypeAlias

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that all of Spark's users know
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from eventstore.parquet.catalog import Catalog, DataFile, catalog_of
from eventstore.parquet.files import ExportPlace, open_place
from eventstore.parquet.manifest import Verify
from projections.pseudonyms import pseudonymised

AsOf: TypeAlias = datetime | int | None
"""A moment (with its zone) or a position of the log; None for all that is exported."""

_TEXTS: Final = ArrayType(StringType())
_REFUSALS: Final = ArrayType(
    StructType(
        [
            StructField("protocol", StringType()),
            StructField("command", StringType()),
            StructField("reason", StringType()),
            StructField("sender_did", StringType()),
            StructField("count", LongType()),
            StructField("first_at", TimestampType()),
            StructField("last_at", TimestampType()),
        ]
    )
)
SCHEMA: Final = StructType(
    [
        StructField(name, kind)
        for kind, names in (
            (LongType(), "position version size_bytes age_s_max messages_max message_bytes_max"),
            (LongType(), "bytes_max epoch window_ms sealed_rows"),
            (BinaryType(), "stream digest nonces"),
            (BooleanType(), "will_queue processed"),
            (DoubleType(), "expires_at_s timestamp_s"),
            (TimestampType(), "recorded_at since until"),
            (_REFUSALS, "refusals"),
            (_TEXTS, "message_ids request_ids event_ids tags routing_keys"),
            (_TEXTS, "keys_added keys_removed"),
            (ArrayType(LongType()), "claims"),
            (StringType(), "shard identity type message_id protocol sender_did recipient_key"),
            (StringType(), "reason channel contract_id requestor_did recipient_did request_id"),
            (StringType(), "event_id channel_id did peer_did label endpoint handshake"),
            (StringType(), "invitation_id key owner_did by_did edge partition"),
        )
        for name in names.split()
    ]
)
"""The columns of schema 1 that projections read."""


class NotExported(Exception):
    """The export does not reach the position that was asked for, or there is no export."""


@dataclass(frozen=True)
class Export:
    """An export at one moment: what it held when it was opened, whatever is added since.

    With a key, all its rows have pseudonyms (``projections.pseudonyms``).
    """

    target: str
    place: ExportPlace
    catalog: Catalog
    key: bytes | None = field(default=None, repr=False)

    def types(self, after: int, until: int) -> frozenset[str]:
        """Event types that may stand at ``after < position <= until``; no other ones do."""
        return frozenset(
            topic.rpartition(".")[0] for file in self._files(after, until) for topic in file.types
        )

    def _files(self, after: int, until: int) -> list[DataFile]:
        return [f for f in self.catalog.files if f.last > after and f.first <= until]

    def events(self, spark: SparkSession, after: int = 0, until: int | None = None) -> DataFrame:
        """The rows with ``after < position <= until``, seals included, in no order."""
        last = self.catalog.last if until is None else until
        root, files = spark_path(self.target), self._files(after, last)
        if not files:
            return spark.createDataFrame([], SCHEMA)
        rows = spark.read.schema(SCHEMA).parquet(*[f"{root}/{file.path}" for file in files])
        if self.key is not None:
            rows = pseudonymised(rows, self.key)
        if all(after < file.first and file.last <= last for file in files):
            return rows  # without a condition, positions that nobody asks for are not read
        return rows.where((F.col("position") > after) & (F.col("position") <= last))

    def position(self, spark: SparkSession, as_of: AsOf) -> int:
        """The position that the log had reached at that moment.

        Of a time: the last seal that was made until then, so that transactions are whole.

        Raises:
            NotExported: the export ends before that position.
        """
        if as_of is None:
            return self.catalog.last
        if isinstance(as_of, int):
            if as_of > self.catalog.last:
                raise NotExported(f"position {as_of}: the export ends at {self.catalog.last}")
            return as_of
        seals = self.events(spark).where(
            (F.col("type") == "batch-sealed") & (F.col("recorded_at") <= F.lit(as_of))
        )
        reached = seals.agg(F.max("position")).first()
        return int(reached[0] or 0) if reached is not None else 0

    def at_ms(self, spark: SparkSession, position: int) -> int:
        """When the events just before a position were recorded, Unix milliseconds; 0 for none.

        The latest time in the one file that holds the position: no other one is read.
        """
        file = max((f.first for f in self.catalog.files if f.first <= position), default=None)
        if file is None:
            return 0
        rows = self.events(spark, file - 1, position)
        newest = rows.agg(F.max(F.unix_millis("recorded_at"))).first()
        return int(newest[0] or 0) if newest is not None else 0


def open_export(target: str, verify: Verify | None = None, key: bytes | None = None) -> Export:
    """The export at a path of this machine or a URI; with pseudonyms by a key, if one is given.

    Raises:
        NotExported: there is no export.
        ExportDamaged: names the file and says what is wrong with it.
        ExportUnavailable: the place cannot be read now.
    """
    place = open_place(target)
    catalog = catalog_of(place, verify)
    if catalog.head is None:
        raise NotExported(f"{place.address()}: no export is here")
    return Export(target, place, catalog, key)


def spark_path(target: str) -> str:
    """A path of this machine or a URI of ``pyarrow.fs`` as Spark writes it."""
    if "://" not in target:
        return f"file://{open_place(target).root}"
    scheme, _, rest = target.partition("?")[0].rstrip("/").partition("://")
    return f"{ {'s3': 's3a'}.get(scheme, scheme) }://{rest}"
