"""A dump: what the hosts have in memory, as Parquet tables in a folder of this machine.

    <folder>/dump.json              written last: figures, and the positions between which it was
                                    made
    <folder>/<table>.parquet        a table of ``actors.core.state_rows``, with ``identity`` first
    <folder>/watermarks.parquet     stream, identity and version of every identity in memory
    <folder>/not_in_memory.parquet  identities whose names are erased and in no process's memory
    <folder>/unserved.parquet       identities that their host cannot serve, and why
    <folder>/partitions.parquet     shards as their owners know them, up to which seal
    <folder>/seals.parquet          the newest seals of the shards
    <folder>/nonces.parquet         nonces in force, in the bucket of their expiry

``projections/compare.py`` reads it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self, get_type_hints

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from actors.core.evolve import from_snapshot
from actors.core.state_rows import TABLE_OF, TABLES, Row, state_rows
from actors.host.inspection import DescribedState, NoncesHeld
from eventstore.log.streams import identity_stream, stream_of
from eventstore.parquet.schema import arrow_type

_ROWS_AT_ONCE: Final = 50_000
_KEY_BYTES: Final = 16
_TIME: Final = pa.timestamp("ms", tz="UTC")


_OWN: Final[Mapping[str, Mapping[str, type]]] = {
    "watermarks": {"stream": bytes, "identity": str, "version": int},
    "not_in_memory": {"stream": bytes, "identity": str},
    "unserved": {"stream": bytes, "identity": str, "fault": str},
    "partitions": {
        "partition": str,
        "until": int,
        "window_ms": int,
        "bucket_ms": int,
        "first_bucket": int,
    },
    "seals": {"partition": str, "version": int, "epoch": int, "digest": bytes},
    "nonces": {"partition": str, "bucket": int, "key": bytes},
}
"""The columns of the tables that are not of ``actors.core.state_rows``."""


def _fields(columns: Mapping[str, Any]) -> list[pa.Field]:
    return [
        pa.field(name, _TIME if name.endswith("_at") else arrow_type(hint))
        for name, hint in columns.items()
    ]


_IDENTITY: Final = pa.field("identity", pa.string())
SCHEMAS: Final[Mapping[str, pa.Schema]] = {
    **{name: pa.schema([_IDENTITY, *_fields(get_type_hints(r))]) for name, r in TABLES.items()},
    **{name: pa.schema(_fields(columns)) for name, columns in _OWN.items()},
}
"""The schema of each file."""


class Dumped(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of ``dump.json``: the figures of a dump.

    The dump was made after the log had reached ``after`` and before it went beyond ``before``;
    each database has a position of its own.
    """

    after: Sequence[int]
    before: Sequence[int]
    identities: int
    not_in_memory: int
    rows: dict[str, int]


class OtherBuild(Exception):
    """The mediator that answers is of another build than this program; the text says what of."""


class DumpWriter:
    """Writes a dump row by row, in bounded memory; a context manager."""

    def __init__(self, folder: Path) -> None:
        """A writer to ``folder``, which exists and is empty."""
        self._folder = folder
        self._waiting: dict[str, list[Row]] = {name: [] for name in SCHEMAS}
        self._count = 0
        self._rows: Counter[str] = Counter()
        self._files = {
            name: pq.ParquetWriter(folder / f"{name}.parquet", schema)
            for name, schema in SCHEMAS.items()
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Write the waiting rows and close the files."""
        self._flush()
        for file in self._files.values():
            file.close()

    def add_state(self, described: DescribedState) -> None:
        """Add one identity and all its rows; one without a version has none.

        Raises:
            OtherBuild: the state is of another build than this program.
        """
        target = described.target
        stream = identity_stream(target).bytes
        if described.fault:
            self._add("unserved", (stream, target, described.fault))
        if not described.version:
            return
        state = from_snapshot(described.state)
        if state is None:
            raise OtherBuild(f"the state of {target} cannot be read")
        self._add("watermarks", (stream, target, described.version))
        for row in state_rows(state):
            self._add(TABLE_OF[type(row)], (target, *row))
        if self._count >= _ROWS_AT_ONCE:
            self._flush()

    def add_not_in_memory(self, targets: Sequence[str]) -> None:
        """Add identities that no process has in memory, by name or by digest of an erased name."""
        for target in targets:
            self._add("not_in_memory", (stream_of(target), target))

    def add_nonces(self, held: NoncesHeld) -> None:
        """Add a partition and its nonces, without those that may have expired by now."""
        first = held.at_ms // held.bucket_ms + 1
        partition, version = held.partition, held.version
        self._add("partitions", (partition, version, held.window_ms, held.bucket_ms, first))
        self._add("seals", (partition, version, held.epoch, held.digest))
        for bucket, joined in held.packed.items():
            if bucket >= first:
                self._write("nonces", _nonces(held.partition, bucket, joined))

    def finish(self, *, after: Sequence[int], before: Sequence[int]) -> Dumped:
        """Write ``dump.json``, which makes the dump valid; call this after closing the files."""
        dumped = Dumped(
            after=after,
            before=before,
            identities=self._rows["watermarks"],
            not_in_memory=self._rows["not_in_memory"],
            rows={name: self._rows[name] for name in (*TABLES, "seals", "nonces")},
        )
        (self._folder / "dump.json").write_bytes(msgspec.json.encode(dumped))
        return dumped

    def _add(self, table: str, row: Row) -> None:
        self._waiting[table].append(row)
        self._count += 1

    def _flush(self) -> None:
        for name, rows in self._waiting.items():
            if rows:
                columns: list[Any] = list(zip(*rows, strict=True))
                schema = self._files[name].schema
                arrays = [
                    pa.array(values, field.type)
                    for values, field in zip(columns, schema, strict=True)
                ]
                self._write(name, pa.RecordBatch.from_arrays(arrays, schema=schema))
                rows.clear()
        self._count = 0

    def _write(self, table: str, batch: pa.RecordBatch) -> None:
        self._files[table].write_batch(batch)
        self._rows[table] += batch.num_rows


def _nonces(partition: str, bucket: int, joined: bytes) -> pa.RecordBatch:
    """The keys in a batch that shares their memory, without an object for each."""
    count = len(joined) // _KEY_BYTES
    keys = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(_KEY_BYTES), count, [None, pa.py_buffer(joined)]
    )
    return pa.RecordBatch.from_arrays(
        [
            pa.repeat(partition, count),
            pa.repeat(pa.scalar(bucket, pa.int64()), count),
            keys.cast(pa.binary()),
        ],
        schema=SCHEMAS["nonces"],
    )
