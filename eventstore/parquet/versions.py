"""The signed statements about a version of the table, and about the end of the export.

A ``TableVersion`` is stored in the commit that it describes, so that one put-if-absent writes the
table and its evidence. It names the manifests whose files the version has, each with its SHA-256,
and the previous commit. An ``EndMark`` is a file that the exporter replaces: it names the newest
commit, and the time until which the export is complete, which advances while the mediator is idle.

A version names the manifests since the last *summary* one by one, and the summary for all earlier
ones: so a bounded number of reads opens the export, however old it is.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from io import BytesIO
from typing import Any, Final

import msgspec

from eventstore.parquet.errors import Damage, ExportDamaged
from eventstore.parquet.files import END, STATEMENT_BYTES_MAX, SUMMARIES, TABLE_LOG, ExportPlace
from eventstore.parquet.index import ExportIndex
from eventstore.parquet.manifest import (
    Manifest,
    SignedStatement,
    Statement,
    Verify,
    check_size,
    parse_statement,
    verified_statement,
)

SUMMARY_EVERY: Final = 32
"""The number of manifests that are named, and read, one by one before a summary is made."""
CHECKPOINT_EVERY: Final = 100
"""The most commits that are read one by one before a checkpoint of the table is made."""
_ENTRY_BYTES_MAX: Final = 16_384
"""More than a data file, and its manifest, have in a summary."""
COMMIT_MEMBER: Final = "poste"
"""The member of a commit's ``commitInfo`` that holds the ``TableVersion`` as JSON text."""


class TableVersion(SignedStatement, frozen=True, kw_only=True):
    """One version of the table, and the manifests that count in it.

    ``manifest`` is the newest one in the order of the log, empty in an empty export. ``since`` has
    the SHA-256 of each manifest that counts and is not in ``summary``; ``files`` is the number of
    all data files. ``previous`` is the SHA-256 of the commit before, empty for the first.
    ``checkpoint`` has the SHA-256 of the files of the newest checkpoint before, by name. ``index``
    is the index of its rows (``eventstore.parquet.index``); earlier releases made none.
    """

    version: int
    position: int
    files: int
    manifest: str
    since: dict[str, str]
    summary: str
    summary_sha256: str
    previous: str
    checkpoint: dict[str, str]
    signed_by: str
    index: ExportIndex | None = None


class EndMark(SignedStatement, frozen=True, kw_only=True):
    """The end of the export, and the time until which it is complete.

    All rows recorded until ``complete_until_ms`` (Unix milliseconds) are at or before
    ``complete_position``; both are 0 until the exporter first reaches the end of the log.
    ``commit`` is the SHA-256 of the commit of ``version``; ``checkpoint`` is as in
    ``TableVersion``, but after the commit.
    """

    version: int
    commit: str
    checkpoint: dict[str, str]
    position: int
    complete_position: int
    complete_until_ms: int
    signed_by: str


class _CommitInfo(msgspec.Struct):
    poste: str  # COMMIT_MEMBER


class _Action(msgspec.Struct):
    commitInfo: _CommitInfo | None = None  # noqa: N815 - the format's name


_COMMIT: Final = re.compile(rf"{TABLE_LOG}/(\d{{20}})\.json")


def commit_path(version: int) -> str:
    """The path of the commit that made a version of the table."""
    return f"{TABLE_LOG}/{version:020d}.json"


def version_of(path: str) -> int:
    """The version that the path of a commit names, -1 for any other path."""
    found = _COMMIT.fullmatch(path)
    return int(found[1]) if found else -1


def newest_version(paths: Iterable[str]) -> int:
    """The version that the newest commit made, of the files in the log of a table.

    Raises:
        ExportDamaged: there is no commit.
    """
    newest = max(map(version_of, paths), default=-1)
    if newest < 0:
        raise ExportDamaged(TABLE_LOG, Damage.MISSING, "the export has a table")
    return newest


def is_checkpoint_due(said: TableVersion) -> bool:
    """Whether a version's summary has all manifests, or the last checkpoint is too far behind.

    Compaction can keep the manifests so few that no summary is made. The distance is from the
    checkpoint that is signed: one that a kill prevented stays due at the versions that follow.
    """
    if said.summary and not said.since:
        return True
    numbers = [name.partition(".")[0] for name in said.checkpoint]
    last = max((int(number) for number in numbers if number.isdecimal()), default=0)
    return said.version - last >= CHECKPOINT_EVERY


def is_torn(commit: bytes) -> bool:
    """Whether a commit is empty or has lines that are not whole JSON, or nested without end.

    One that was not read to its end is none that a power cut left.
    """
    if len(commit) > STATEMENT_BYTES_MAX:
        return False
    try:
        for line in _lines(commit):
            msgspec.json.decode(line, type=msgspec.Raw)
        return not commit.strip()
    except (msgspec.DecodeError, RecursionError):
        return True


def _lines(commit: bytes) -> Iterator[bytes]:
    return filter(bytes.strip, BytesIO(commit))


def encoded_summary(version: int, statements: Sequence[Statement]) -> tuple[str, str, bytes]:
    """The path, the SHA-256 and the content of a summary of these manifests."""
    content = msgspec.json.encode([_entry(statement) for statement in statements])
    sha256 = hashlib.sha256(content).hexdigest()
    return f"{SUMMARIES}/{version:020d}-{sha256[:16]}.json", sha256, content


def read_summary(place: ExportPlace, said: TableVersion) -> list[Statement]:
    """Read the manifests in the summary of a version, without their heads.

    Raises:
        ExportDamaged: the summary is missing, not the one that was signed, or none at all.
        ExportUnavailable: the summary cannot be read now.
    """
    if not said.summary:
        return []
    # An entry has no heads, and at least one file: so the signed number of files bounds them.
    most = max(STATEMENT_BYTES_MAX, said.files * _ENTRY_BYTES_MAX)
    content = place.read_named(said.summary, f"named by {commit_path(said.version)}", most)
    if hashlib.sha256(content).hexdigest() != said.summary_sha256:
        why = f"its SHA-256 is not that of {commit_path(said.version)}"
        raise ExportDamaged(said.summary, Damage.CHANGED, why)
    try:
        return [_statement(entry) for entry in msgspec.json.decode(content)]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        why = "not a list of manifests"
        raise ExportDamaged(said.summary, Damage.BROKEN_MANIFEST, why) from error


def read_version(
    place: ExportPlace, version: int, verify: Verify | None
) -> tuple[TableVersion, str]:
    """Read the statement about a version of the table, and the SHA-256 of its commit.

    Raises:
        ExportDamaged: the commit is missing, changed, or not the mediator's.
        ExportUnavailable: it cannot be read now.
    """
    content = place.read_named(commit_path(version), "the table is at this version")
    return parse_version(version, content, verify), hashlib.sha256(content).hexdigest()


def parse_version(
    version: int, commit: bytes, verify: Verify | None, *, is_proven: bool = False
) -> TableVersion:
    """The ``TableVersion`` in the commit of a version. Raises as ``read_version``.

    ``is_proven``: a signed commit names this one's SHA-256, and the exporter that signed that had
    checked this one's statement.
    """
    path = commit_path(version)
    text = _member(path, commit)
    if is_proven:
        said = parse_statement(path, text, TableVersion, is_proven=True)
    else:
        said = verified_statement(path, text, TableVersion, verify)
    if said.version != version:
        raise ExportDamaged(path, Damage.MISPLACED, f"it is the commit of version {said.version}")
    return said


def read_mark(place: ExportPlace, verify: Verify | None) -> EndMark | None:
    """Read the end mark; None if there is none.

    Raises:
        ExportDamaged: the mark was changed, or is not the mediator's.
        ExportUnavailable: it cannot be read now.
    """
    content = place.read_if_there(END)
    return None if content is None else verified_statement(END, content, EndMark, verify)


def _member(path: str, commit: bytes) -> bytes:
    """The text of ``COMMIT_MEMBER`` in a commit, which has one action per line."""
    check_size(path, commit)
    try:
        actions = (msgspec.json.decode(line, type=_Action) for line in _lines(commit))
        (info,) = (action.commitInfo for action in actions if action.commitInfo)
        return info.poste.encode()
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        why = "no signed statement of the mediator is in it: torn, changed, or another's commit"
        raise ExportDamaged(path, Damage.BROKEN_COMMIT, why) from error


def _entry(statement: Statement) -> dict[str, Any]:
    """A manifest without the members that only its own check needs, and its SHA-256."""
    members: dict[str, Any] = msgspec.to_builtins(statement.manifest)
    del members["heads"]
    members.pop("signature", None)
    return members | {"sha256": statement.sha256}


def _statement(entry: dict[str, Any]) -> Statement:
    sha256 = entry.pop("sha256")
    manifest = msgspec.convert(entry | {"heads": {}}, Manifest)
    return Statement(manifest, sha256)
