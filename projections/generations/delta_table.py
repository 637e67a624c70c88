"""A rebuilt table: a Delta table that is partitioned by the bucket of its rows.

    <target>/<table>/_delta_log/                     its versions
    <target>/<table>/<run>/bucket=<n>/*.parquet      what Spark wrote, for each run of a rebuild

Spark writes files and does not know the format, so a task that runs twice changes nothing. A commit
gives the table exactly the wanted files, whatever others committed before: a version has the files
of one rebuild, never a mixture. If descriptions of columns change, a version with the earlier files
precedes it.

A commit is one put-if-absent of the next version: if two processes make the same version, one
succeeds, and the other must read again. The library ``deltalake`` commits within the calling
process; no other program is needed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, Schema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import (
    AddAction,
    CommitProperties,
    PostCommitHookProperties,
    RemoveAction,
    create_table_with_add_actions,
)

from eventstore.log.pseudonyms import NAMING
from eventstore.parquet.errors import ExportUnavailable
from eventstore.parquet.files import EVENTS, ExportPlace, FileMissing
from eventstore.parquet.table import require_given, said_by_library, statistics_of
from projections.errors import BUSY, UNSAFE, ProjectionError
from projections.generations.generation import GenerationTable, TableFile

BUCKET: Final = "bucket"
"""The column that partitions every table; only the paths of files have it."""
_NO_BUCKET: Final = (BUCKET, "=", "-1")
_TRIES: Final = 10
_ABOUT_BUCKET: Final = (
    "part of the table: the first two bytes of the stream, modulo the number of buckets; or that"
    " number, for streams that began since"
)
_BUCKET_FIELD: Final = pa.field(BUCKET, pa.int32(), metadata={"comment": _ABOUT_BUCKET})
_CONFIGURATION: Final = {
    # Generations name versions: commits stay as long as those (``DeltaFolder.trim``).
    "delta.enableExpiredLogCleanup": "false",
    "delta.checkpointInterval": "20",
}
_HOOKS: Final = PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False)
_LOGGED: Final = re.compile(r"(\d{20})\..*")
"""The name of a commit or of a checkpoint."""


class TablesDamaged(ProjectionError):
    """Tables, or their description, are not as the rebuild wrote them; says what is wrong."""

    exit_code = UNSAFE


class TablesBusy(ProjectionError):
    """Another rebuild writes to the same place."""

    exit_code = BUSY


class DeltaFolder:
    """A folder that is a Delta table, or becomes one with its first commit; never retries."""

    def __init__(self, place: ExportPlace, name: str) -> None:
        """``name`` is that of the table and its folder."""
        self.name = name
        self.place = place
        self._uri = place.table.uri.removesuffix(EVENTS) + name
        self._options = dict(place.table.options)

    def opened(self, version: int | None = None) -> DeltaTable | None:
        """Open the table at a version, or the newest one; None if there is no table.

        Raises:
            TablesDamaged: the table's log cannot be read, or has no such version.
            ExportUnavailable: the place cannot be read now.
        """
        try:
            return DeltaTable(self._uri, version=version, storage_options=self._options)
        except TableNotFoundError:
            if any(path.endswith(".json") for path in self.place.sizes(f"{self.name}/_delta_log")):
                raise TablesDamaged(
                    f"{self.name}: the beginning of its table log is missing"
                ) from None
            return None
        except (DeltaError, OSError, ValueError) as error:
            raise self._damaged(error) from error

    def files(self, table: DeltaTable) -> dict[str, int]:
        """The files of an opened table with their sizes in bytes. Raises as ``opened``."""
        try:
            actions = pa.table(table.get_add_actions(flatten=True))
        except (DeltaError, OSError, ValueError, pa.ArrowException) as error:
            raise self._damaged(error) from error
        columns = (actions[name].to_pylist() for name in ("path", "size_bytes"))
        return dict(zip(*columns, strict=True))

    def make_version(  # noqa: PLR0913 - what a commit has
        self,
        before: DeltaTable | None,
        added: Sequence[AddAction],
        removed: Iterable[RemoveAction],
        schema: Schema,
        *,
        about: str,
        partition_by: Sequence[str] = (),
        replaces: Sequence[tuple[str, str, str]] | None = None,
    ) -> int | None:
        """Commit the version after ``before``; return it, or None if another process was first.

        Args:
            before: the table from ``opened``, None if there is none.
            added: files that are written and whole.
            removed: files of ``before``; none if the schema is another one.
            schema: the columns.
            about: a description of the table.
            partition_by: the columns that only the paths of files have.
            replaces: a filter of the partitions whose files go if it is; None for all.

        Raises:
            TablesDamaged, ExportUnavailable: as ``opened``; the commit may have succeeded.
        """
        properties = CommitProperties(max_commit_retries=0)
        try:
            if before is None:
                create_table_with_add_actions(
                    self._uri,
                    schema,
                    list(added),
                    mode="error",
                    partition_by=list(partition_by),
                    name=self.name,
                    description=about,
                    configuration=_CONFIGURATION,
                    storage_options=self._options,
                    commit_properties=properties,
                    post_commithook_properties=_HOOKS,
                )
            else:
                before.create_write_transaction(
                    [*removed, *added],
                    "append" if before.schema() == schema else "overwrite",
                    schema,
                    partition_by=list(partition_by),
                    partition_filters=None if replaces is None else list(replaces),
                    commit_properties=properties,
                    post_commithook_properties=_HOOKS,
                )
        except CommitFailedError:
            return None
        except (DeltaError, OSError) as error:
            if self.opened() is not None and before is None:
                return None
            raise ExportUnavailable(self.name, said_by_library(error)) from error
        version: int = 0 if before is None else before.version() + 1
        self.place.sync(f"{self.name}/_delta_log/{version:020d}.json")
        return version

    def trim(self, oldest: int, *, is_due: bool = False) -> None:
        """Remove the files of the table's log that no version from ``oldest`` on needs.

        They stay until a checkpoint stands for them; if ``is_due``, ``oldest`` gets one now.

        Raises:
            ExportUnavailable: the place cannot be read or changed now.
        """
        if is_due and min(self._logged().values(), default=oldest) < oldest:
            self._stand_for_earlier(oldest)
        versions = self._logged()
        checkpoints = {v for path, v in versions.items() if ".checkpoint" in path and v <= oldest}
        for path, version in versions.items():
            if version < max(checkpoints, default=0):
                self.place.remove(path)

    def commits(self) -> dict[str, int]:
        """The paths of the commits in the table's log, with their versions.

        Raises:
            ExportUnavailable: the place cannot be read now.
        """
        return {path: v for path, v in self._logged().items() if ".checkpoint" not in path}

    def _stand_for_earlier(self, version: int) -> None:
        """Make a checkpoint of this version; none if the log is damaged, whose files all stay."""
        try:
            if (table := self.opened(version)) is not None:
                table.create_checkpoint()
        except TablesDamaged:
            return
        except (DeltaError, OSError) as error:
            raise ExportUnavailable(self.name, said_by_library(error)) from error
        for path, made in self._logged().items():
            if made == version:
                self.place.sync(path)

    def _logged(self) -> dict[str, int]:
        """The commits and checkpoints of the table's log, in order, with their versions."""
        found = sorted(self.place.sizes(f"{self.name}/_delta_log"))
        named = {path: _LOGGED.fullmatch(path.rpartition("/")[2]) for path in found}
        return {path: int(name[1]) for path, name in named.items() if name is not None}

    def _damaged(self, error: Exception) -> TablesDamaged:
        require_given(self.place, f"{self.name}/_delta_log", error)
        return TablesDamaged(f"{self.name}: {said_by_library(error)}")


def commit_files(place: ExportPlace, table: GenerationTable, now_ms: int) -> GenerationTable:
    """Commit a version of a table with exactly these files; return the table with this version.

    Args:
        place: where the tables are.
        table: the table to commit; its files are written and whole.
        now_ms: the time, Unix milliseconds.

    Raises:
        TablesBusy: other processes committed first each time.
        TablesDamaged: the table's log or one of the files cannot be read.
        ExportUnavailable: the place cannot be read or written now.
    """
    folder = DeltaFolder(place, table.name)
    wanted = Schema.from_arrow(table.arrow_schema.append(_BUCKET_FIELD))
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
