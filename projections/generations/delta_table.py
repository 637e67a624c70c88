"""A rebuilt table: a Delta table that is partitioned by the bucket of its rows.

    <target>/<table>/_delta_log/                     its versions
    <target>/<table>/<run>/bucket=<n>/*.parquet      what Spark wrote, for each run of a rebuild

Spark writes files and does not know the format, so a task that runs twice changes nothing. A commit
gives the table exactly the wanted files, whatever others committed before: a version has the files
of one rebuild, never a mixture. If descriptions of columns change, a version with the earlier files
precedes it.
"""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import Schema
from deltalake.transaction import AddAction, RemoveAction

from eventstore.log.pseudonyms import NAMING
from eventstore.parquet.files import ExportPlace, FileMissing
from eventstore.parquet.table import statistics_of
from projections.generations.delta_folder import DeltaFolder, TablesBusy, TablesDamaged
from projections.generations.generation import GenerationTable, TableFile

BUCKET: Final = "bucket"
"""The column that partitions every table; only the paths of files have it."""
_NO_BUCKET: Final = (BUCKET, "=", "-1")
_TRIES: Final = 10
_ABOUT_BUCKET: Final = (
    "part of the table: the first two bytes of the stream, modulo the number of buckets; or that"
    " number, for streams that began since"
)


def commit_files(
    place: ExportPlace, table: GenerationTable, schema: str, now_ms: int
) -> GenerationTable:
    """Commit a version of a table with exactly these files; return the table with this version.

    Args:
        place: where the tables are.
        table: the table to commit; its files are written and whole.
        schema: the columns, in the JSON form of Spark and Delta Lake.
        now_ms: the time, Unix milliseconds.

    Raises:
        TablesBusy: other processes committed first each time.
        TablesDamaged: the table's log or one of the files cannot be read.
        ExportUnavailable: the place cannot be read or written now.
    """
    folder = DeltaFolder(place, table.name)
    wanted = Schema.from_json(_with_bucket(schema))
    for _ in range(_TRIES):
        before = folder.opened()
        now = {} if before is None else folder.files(before)
        paths = {f.path for f in table.files}
        is_same_schema = before is None or before.schema() == wanted
        if before is not None and is_same_schema and now.keys() == paths:
            return msgspec.structs.replace(table, version=before.version())
        if not is_same_schema and not now.keys().isdisjoint(paths):
            # A commit that changes the schema cannot keep a file and remove another one: a version
            # with the new schema and the same files comes first.
            folder.make_version(
                before,
                [],
                [],
                wanted,
                about=table.about,
                partition_by=[BUCKET],
                replaces=[_NO_BUCKET],
            )
            continue
        stays = now.keys() if is_same_schema else set()
        added = [f for f in table.files if f.path not in stays]
        gone = sorted(stays - paths)
        version = folder.make_version(
            before,
            [_added(place, table.name, file, now_ms) for file in added],
            [_removed(path, now[path], now_ms) for path in gone],
            wanted,
            about=table.about,
            partition_by=[BUCKET],
        )
        if version is not None:
            return msgspec.structs.replace(table, version=version)
    raise TablesBusy(f"other rebuilds keep writing to the table {table.name}")


def check_files(place: ExportPlace, table: GenerationTable) -> None:
    """Check that a table has these files at its version, and that all of them still exist.

    Raises:
        TablesDamaged: a table, which it names, is not as its generation says.
        ExportUnavailable: the place cannot be read now.
    """
    folder = DeltaFolder(place, table.name)
    opened = folder.opened(table.version)
    if opened is None:
        raise TablesDamaged(f"{table.name}: the table no longer exists")
    wanted = {file.path: file.bytes for file in table.files}
    if folder.files(opened) != wanted:
        raise TablesDamaged(
            f"{table.name}: version {table.version} has other files than its generation lists"
        )
    found = place.sizes(table.name)
    for path, size in wanted.items():
        if found.get(f"{table.name}/{path}") != size:
            why = "has another size" if f"{table.name}/{path}" in found else "is missing"
            raise TablesDamaged(f"{table.name}/{path}: the file {why}")


def read_footer(place: ExportPlace, path: str) -> Any:
    """Read the footer of a Parquet file (``pyarrow.parquet.FileMetaData``).

    Raises:
        TablesDamaged: the footer cannot be read.
        ExportUnavailable: the place cannot be read now.
    """
    try:
        with place.opened(path) as opened:
            return pq.read_metadata(opened)
    except FileMissing as error:
        raise TablesDamaged(f"{path}: the file is missing") from error
    except pa.ArrowException as error:
        raise TablesDamaged(f"{path}: {error}") from error


def bucket_of(path: str) -> int:
    """The bucket that the path of a file names."""
    return int(path.split("/")[-2].removeprefix(f"{BUCKET}="))


def _with_bucket(schema: str) -> str:
    members = json.loads(schema)
    members["fields"].append(
        {
            "name": BUCKET,
            "type": "integer",
            "nullable": True,
            "metadata": {"comment": _ABOUT_BUCKET},
        }
    )
    return json.dumps(members)


def _added(place: ExportPlace, table: str, file: TableFile, now_ms: int) -> AddAction:
    footer = read_footer(place, f"{table}/{file.path}")
    names = [footer.schema.column(number).path for number in range(footer.num_columns)]
    statistics = statistics_of(footer, [name for name in names if "." not in name])
    for kind in ("minValues", "maxValues"):
        # Bounds would name identities in the table's log after the file has gone.
        statistics[kind] = {n: v for n, v in statistics[kind].items() if n not in NAMING}
    return AddAction(
        path=file.path,
        size=file.bytes,
        partition_values={BUCKET: str(file.bucket)},
        modification_time=now_ms,
        data_change=True,
        stats=json.dumps({"numRecords": file.rows} | statistics),
    )


def _removed(path: str, size: int, now_ms: int) -> RemoveAction:
    values: dict[str, str | None] = {BUCKET: str(bucket_of(path))}
    return RemoveAction(path, True, now_ms, size, values)  # noqa: FBT003 - the library's order
