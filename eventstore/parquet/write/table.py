"""Commits versions of the table, each with the mediator's signed statement about it.

A commit is one put-if-absent of the next version: if two exporters write to one place, one succeeds
and the other is refused. This module does not retry a refused commit: the exporter first has to
read what the other process committed.

Every ``SUMMARY_EVERY`` manifests the writer makes a summary of them. With it, and at least every
``CHECKPOINT_EVERY`` versions, the library makes a checkpoint of the table, so that neither our
readers nor others have to read more history.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, TypeAlias

import msgspec
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import (
    AddAction,
    CommitProperties,
    PostCommitHookProperties,
    RemoveAction,
    Transaction,
    create_table_with_add_actions,
)

from eventstore.parquet.catalog import Catalog
from eventstore.parquet.errors import Damage, ExportDamaged, ExportRefused, ExportUnavailable
from eventstore.parquet.files import END, EVENTS, TABLE_LOG, ExportPlace, FileMissing
from eventstore.parquet.index import ExportIndex
from eventstore.parquet.manifest import DataFile, Signer, Statement, day_of, signed
from eventstore.parquet.schema import FORMAT, SCHEMA_VERSION
from eventstore.parquet.table import (
    DATE,
    DELTA_SCHEMA,
    LAST_CHECKPOINT,
    open_checked_table,
    statistics_in,
    write_errors,
)
from eventstore.parquet.versions import (
    COMMIT_MEMBER,
    SUMMARY_EVERY,
    EndMark,
    TableVersion,
    commit_path,
    encoded_summary,
    is_checkpoint_due,
    is_torn,
    newest_version,
    parse_version,
    read_mark,
    read_version,
    version_of,
)

Clock = Callable[[], int]
"""Gives Unix milliseconds."""
_DRAFT: Final = re.compile(r"/(\d{20}\.(json|checkpoint\.parquet)|_last_checkpoint)#\d+\Z")
"""What the library calls a commit or a checkpoint on a local disk until it is written whole."""
_APP: Final = "poste.export"
"""The application id of the transactions that say which log position a version reaches."""
_BY_HAND: Final = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
_CREATED_AT: Final = 0
"""The first version of a table."""
_NOT_COMPARED: Final = frozenset({"modificationTime", "deletionTimestamp", "extendedFileMetadata"})
"""Members of an action that differ between two exporters, or are the library's own."""
_ACTION: Final = msgspec.json.Decoder(dict[str, dict[str, Any]])
_REMOVAL: Final = frozenset({"path", "size", "partitionValues", "dataChange"})
"""All that a commit says about a file that it removes."""
_Said: TypeAlias = tuple[str, dict[str, Any]]
"""The kind of an action, and its members that are compared."""
_NOTHING: Final[Mapping[str, int]] = {}


class TableWriter:
    """Commits to a table; works only while no other process commits to it."""

    def __init__(
        self, place: ExportPlace, signer: Signer, clock: Clock, *, versions_kept_s: float
    ) -> None:
        """``versions_kept_s``: how long a version stays readable after a later one was made."""
        self._place = place
        self._signer = signer
        self._clock = clock
        self._versions_kept_s = versions_kept_s

    def create(self, catalog: Catalog) -> Catalog:
        """Make the table of an export that has none, with the files that its manifests name.

        Raises as ``commit``.
        """
        said, text = self._version(_CREATED_AT, catalog.statements)
        actions = [self._added(file, is_new=True) for file in catalog.files]
        self._place.check()
        try:
            with write_errors(self._place):
                create_table_with_add_actions(
                    self._place.table.uri,
                    DELTA_SCHEMA,
                    actions,
                    mode="error",
                    partition_by=[DATE],
                    name="poste_events",
                    description="The event log of a Poste mediator",
                    configuration=self._configuration(),
                    storage_options=dict(self._place.table.options),
                    commit_properties=_properties(said, text),
                    post_commithook_properties=_BY_HAND,
                )
        except (CommitFailedError, ExportUnavailable) as error:
            if not any(version_of(path) >= 0 for path in self._place.sizes(TABLE_LOG)):
                raise
            self._require_newest(said, error)
        return self._committed(catalog, said, actions)

    def commit(
        self,
        before: Catalog,
        statements: Sequence[Statement],
        *,
        added: Iterable[DataFile] = (),
        removed: Mapping[str, int] = _NOTHING,
        index: ExportIndex | None = None,
        is_change: bool = True,
    ) -> Catalog:
        """Commit the version after that of ``before``; return the new catalog.

        Args:
            before: the newest version.
            statements: the manifests that count from now on.
            added: files that these manifests name and the earlier ones did not.
            removed: files that these manifests no longer name, with their sizes in bytes.
            index: the index of all rows; None to keep the earlier one.
            is_change: whether the rows change, rather than only move to other files.

        Raises:
            ExportRefused: another process committed this version.
            ExportDamaged: the log of the table cannot be read, or the commit has changed since it
                was written.
            ExportUnavailable: the place cannot be written now; the commit may have succeeded.
        """
        version = before.next_version
        said, text = self._version(version, statements, before, index)
        actions: list[AddAction | RemoveAction] = [
            _removed(path, size, self._clock(), is_change=is_change)
            for path, size in removed.items()
        ]
        actions += [self._added(file, is_new=is_change) for file in added]
        table = self._opened(version - 1)
        self._place.check()
        try:
            with write_errors(self._place):
                table.create_write_transaction(
                    actions,
                    "append",
                    DELTA_SCHEMA,
                    partition_by=[DATE],
                    commit_properties=_properties(said, text),
                    post_commithook_properties=_BY_HAND,
                )
        except CommitFailedError as error:
            self._require_newest(said, error)
        catalog = replace(before, statements=statements, strays=())
        return self._committed(catalog, said, actions)

    def mark(self, catalog: Catalog, *, complete_until_ms: int | None = None) -> Catalog:
        """Write the end mark, and the time until which the export is complete.

        If no time is given, the mark keeps the one that it has.

        Raises:
            ExportUnavailable: the place cannot be written now.
        """
        said, before = catalog.version, catalog.mark
        assert said is not None
        complete = (said.position, complete_until_ms or 0)
        if before is not None and complete_until_ms is None:
            complete = (before.complete_position, before.complete_until_ms)
        is_marked = before is not None and before.version == said.version
        is_due = not is_marked and is_checkpoint_due(said)
        checkpoint = before.checkpoint if before and is_marked else said.checkpoint
        mark = EndMark(
            format=FORMAT,
            schema=SCHEMA_VERSION,
            version=said.version,
            commit=catalog.commit,
            checkpoint=self._checkpoint(said.version) if is_due else checkpoint,
            position=said.position,
            complete_position=complete[0],
            complete_until_ms=complete[1],
            signed_by=self._signer.signed_by,
        )
        written, content = signed(mark, self._signer.sign)
        self._place.write(END, content)
        if is_due:  # now that a checkpoint is signed which stands for the commits that go
            with write_errors(self._place):
                self._opened(said.version).cleanup_metadata()
        return replace(catalog, mark=written)

    def mark_unmarked(self, catalog: Catalog) -> Catalog:
        """Mark a newest version that no mark names: its exporter was killed, or refused it.

        First compare what its commit says about files with these and their manifests.

        Raises:
            ExportDamaged: the commit says something else, or more.
            ExportUnavailable: the place cannot be read or written now.
        """
        assert catalog.version is not None
        version = catalog.version.version
        path, files = commit_path(version), {file.path: file for file in catalog.files}
        content = self._place.read_named(path, "the table is at this version")
        if hashlib.sha256(content).hexdigest() != catalog.commit:
            raise ExportDamaged(path, Damage.CHANGED, "it changed while it was read")
        if not all(self._fits(*said, files) for said in _actions_in(version, content)):
            raise ExportDamaged(path, Damage.CHANGED, "it says what no exporter writes about files")
        return self.mark(catalog)

    def check_newest(self, catalog: Catalog) -> None:
        """Check that the place still has the export, and that its mark is of no later version.

        Raises:
            ExportRefused: another process committed a later version.
            ExportUnavailable: the mark cannot be read now, or is gone and the export with it.
        """
        there = read_mark(self._place, None)
        if there is None:
            raise self.gone()
        assert catalog.version is not None
        if there.version > catalog.version.version:
            raise self._refused()

    def gone(self) -> ExportUnavailable:
        """The error for a place that no longer has the export."""
        why = f"the export at {self._place.address()} is gone: removed, or not mounted"
        return ExportUnavailable(END, why)

    def remove_torn(self) -> None:
        """Remove drafts on a local disk, and a newest commit that a power cut left incomplete.

        A kill leaves a draft, which may never be written again. No end mark names the
        incomplete commit, so its rows are exported again. The commit of another process that took
        over meanwhile stays.

        Raises:
            ExportUnavailable: the place cannot be read or written now.
        """
        if not self._place.is_local:
            return
        paths = self._place.sizes(TABLE_LOG)
        for path in filter(_DRAFT.search, paths):
            self._place.remove(path)
        versions = [v for path in paths if (v := version_of(path)) >= 0]
        if not versions:
            return
        path = commit_path(max(versions))
        mark = read_mark(self._place, None)
        if (mark is None or mark.version < max(versions)) and is_torn(self._place.read(path)):
            self._place.remove_if(path, is_torn)

    def _version(
        self,
        version: int,
        statements: Sequence[Statement],
        before: Catalog | None = None,
        index: ExportIndex | None = None,
    ) -> tuple[TableVersion, str]:
        """Sign the statement about a version; return it and its text. Write a summary if due."""
        since, summary, checkpoint = _carried(statements, before)
        if len(since) > SUMMARY_EVERY:
            path, sha256, content = encoded_summary(version, statements)
            self._place.write(path, content)
            since, summary = {}, (path, sha256)
        newest = statements[-1].manifest if statements else None
        said = TableVersion(
            format=FORMAT,
            schema=SCHEMA_VERSION,
            version=version,
            position=newest.last if newest else 0,
            files=sum(len(statement.manifest.files) for statement in statements),
            manifest=newest.path if newest else "",
            since=since,
            summary=summary[0],
            summary_sha256=summary[1],
            previous=before.commit if before else "",
            checkpoint=checkpoint,
            signed_by=self._signer.signed_by,
            index=index or (before.index if before else None),
        )
        complete, content = signed(said, self._signer.sign)
        return complete, content.decode()

    def _configuration(self) -> dict[str, str | None]:
        kept = f"interval {max(1, round(self._versions_kept_s))} seconds"
        return {
            "delta.logRetentionDuration": kept,
            "delta.deletedFileRetentionDuration": kept,
            # Our statements sign our own checkpoints; they would not name another program's.
            "delta.checkpointInterval": "2147483647",
            "delta.enableExpiredLogCleanup": "false",
        }

    def _opened(self, version: int) -> DeltaTable:
        """Open the table at a version; if there is a later one, the commit is refused.

        Its log was looked at when the catalog was read, and what came since is this exporter's.
        """
        table = open_checked_table(self._place, version)
        if table is None:
            raise self.gone()
        return table

    def _committed(
        self, catalog: Catalog, said: TableVersion, actions: Sequence[AddAction | RemoveAction]
    ) -> Catalog:
        """Read a commit back for its SHA-256, which the next version and the mark sign.

        The library wrote it. Verification trusts the SHA-256 in place of the commit's signature,
        so the commit must have the statement that was signed, and programs trust its statistics, so
        it must have the actions that were written.
        """
        path = commit_path(said.version)
        self._place.sync(path)
        content = self._place.read(path)
        if parse_version(said.version, content, None) != said:
            raise ExportDamaged(path, Damage.CHANGED, "it has another statement than was signed")
        if _sorted(_actions_in(said.version, content)) != _sorted(map(_said_by, actions)):
            raise ExportDamaged(path, Damage.CHANGED, "it has other actions than were written")
        return replace(catalog, version=said, commit=hashlib.sha256(content).hexdigest())

    def _fits(self, kind: str, said: Mapping[str, Any], files: Mapping[str, DataFile]) -> bool:
        if kind == "remove":
            return said.keys() == _REMOVAL
        file = files.get(f"{EVENTS}/{said.get('path')}")
        if kind != "add" or file is None:
            return False
        return (kind, said) == _said_by(self._added(file, is_new=said.get("dataChange") is True))

    def _checkpoint(self, version: int) -> dict[str, str]:
        """Make a checkpoint of a version; return its files with SHA-256."""
        table = self._opened(version)
        self._place.check()
        with write_errors(self._place):
            table.create_checkpoint()
        names = (f"{version:020d}.checkpoint.parquet", LAST_CHECKPOINT)
        for name in names:
            self._place.sync(f"{TABLE_LOG}/{name}")
        made = {name: self._place.sha256(f"{TABLE_LOG}/{name}") for name in names}
        for name in (name for name, sha256 in made.items() if not sha256):
            raise ExportUnavailable(f"{TABLE_LOG}/{name}", "it is gone before it is signed")
        return made

    def _added(self, file: DataFile, *, is_new: bool) -> AddAction:
        try:
            statistics = statistics_in(self._place, file.path)
        except FileMissing as error:  # removed by another exporter, which took over
            raise ExportUnavailable(file.path, "it is gone before the table has it") from error
        return AddAction(
            path=file.path.removeprefix(f"{EVENTS}/"),
            size=file.bytes,
            partition_values={DATE: file.day},
            modification_time=self._clock(),
            data_change=is_new,
            stats=json.dumps({"numRecords": file.rows} | statistics),
        )

    def _require_newest(self, said: TableVersion, error: Exception) -> None:
        """Refuse a commit that failed, unless it is the newest there is, and its answer was lost.

        The library repeats a request without an answer, and finds its own commit then. One of
        another exporter with the same statement has the same files.
        """
        with suppress(ExportDamaged):  # the commit of another program
            newest = newest_version(self._place.sizes(TABLE_LOG))
            if read_version(self._place, newest, self._signer.key.verify)[0] == said:
                return
        raise self._refused() from error

    def _refused(self) -> ExportRefused:
        return ExportRefused(f"another process exports to {self._place.address()} too")


def _carried(
    statements: Sequence[Statement], before: Catalog | None
) -> tuple[dict[str, str], tuple[str, str], dict[str, str]]:
    """What a version takes over from the one before: manifests since, summary, checkpoint."""
    counting = {s.manifest.path: s.sha256 for s in statements}
    if before is None:
        return counting, ("", ""), {}
    said, mark = before.version, before.mark
    assert said is not None
    in_summary = {s.manifest.path for s in before.statements} - said.since.keys()
    since = {path: sha256 for path, sha256 in counting.items() if path not in in_summary}
    checkpoint = dict(mark.checkpoint) if mark else {}
    return since, (said.summary, said.summary_sha256), checkpoint


def _removed(path: str, size: int, now_ms: int, *, is_change: bool) -> RemoveAction:
    values: dict[str, str | None] = {DATE: day_of(path)}
    return RemoveAction(path.removeprefix(f"{EVENTS}/"), is_change, now_ms, size, values)


def _said_by(action: AddAction | RemoveAction) -> _Said:
    """A written action in the form of ``_actions_in``."""
    said: dict[str, Any] = {"path": action.path, "size": action.size}
    said |= {"partitionValues": action.partition_values, "dataChange": action.data_change}
    if isinstance(action, AddAction):
        return "add", said | {"stats": action.stats}
    return "remove", said


def _actions_in(version: int, commit: bytes) -> list[_Said]:
    """What a commit says about files; also the table's columns, unless it made the table.

    Raises:
        ExportDamaged: it has a line that is no action.
    """
    made = ("protocol", "metaData") if version == _CREATED_AT else ()
    beside = {"commitInfo", "txn", *made}
    try:
        read = [_ACTION.decode(line) for line in commit.splitlines() if line.strip()]
    except msgspec.ValidationError as error:
        raise ExportDamaged(commit_path(version), Damage.CHANGED, str(error)) from error
    return [
        (kind, {n: v for n, v in said.items() if v is not None and n not in _NOT_COMPARED})
        for line in read for kind, said in line.items() if kind not in beside
    ]  # fmt: skip


def _sorted(actions: Iterable[_Said]) -> list[_Said]:
    return sorted(actions, key=lambda action: str(action[1].get("path")))


def _properties(said: TableVersion, text: str) -> CommitProperties:
    return CommitProperties(
        custom_metadata={COMMIT_MEMBER: text},
        max_commit_retries=0,
        app_transactions=[Transaction(_APP, said.position)],
    )
