"""``poste log``: checks that the event log is as it was written, and lets old rows leave it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import click
import msgspec

from actors.archive.archive_check import check_archive
from actors.host.stored_states import wrong_snapshots
from eventstore.log import verify as verification
from eventstore.log.errors import (
    CorruptRow,
    NotComparable,
    ReadModelsMissing,
    RowsLeft,
    SeamRefused,
    UnknownTopic,
)
from eventstore.log.faults import Finding, Head
from eventstore.log.public_key import PublicKey
from eventstore.log.seam import seam_of
from eventstore.log.session import Store, unavailable
from eventstore.log.verify import Summary
from eventstore.parquet.errors import ExportError
from eventstore.parquet.files import open_place
from eventstore.parquet.verify.findings import ExportFinding, ExportSummary
from eventstore.stores.open_log import open_store
from eventstore.stores.recorder_log import (
    RecorderLog,
    opened,
    rebuild_read_models,
    wrong_read_models,
)
from http_edge.cli.archive import archive
from http_edge.cli.erasure import erase_names
from http_edge.cli.group import Group
from http_edge.cli.output import (
    counted,
    json_option,
    print_json,
    print_record,
    print_table,
    progress_bar,
)
from http_edge.cli.public_key import NAME_IT, own_key, public_key_option
from http_edge.cli.settings import require_existing, with_settings
from http_edge.server.exits import Exit, Stop
from http_edge.server.status_files import of_databases
from http_edge.server.verified_marks import marks_of
from http_edge.settings.settings import Settings
from http_edge.settings.sources import Loaded

_Finding = TypeVar("_Finding")
_Summary = TypeVar("_Summary")
SHOWN_MAX: Final = 20
"""Findings of a check that are shown in a table."""
KEPT_MAX: Final = 10_000
"""Findings of a check that are kept for its JSON; all are counted."""
_CHECKS_MAX: Final = 3
"""A second check is enough unless a check takes longer than the time between two rounds."""
_UNPROVEN: Final = (
    "rows have left this log, but no key was named: the signer of their replacement is"
    " unknown, and their archive was not checked"
)
_ROWS_FIRST: Final = "they are made from the rows, which are not as they were sealed"
_FILE_FIRST: Final = "they are read by means of the file's indexes, which have faults"
_REBUILD: Final = "Rebuild it with: poste log rebuild-read-models"
_INTO_A_NEW_FILE: Final = (
    "Its rows are whole. Stop the mediator, and restore them into a new file with:"
    " poste restore --from DATA-DIR/log.db --to NEW-DATA-DIR"
)
_NOT_CHECKED: Final = "no rows have left this log, so its export was not checked"


known_option: Final = click.option(
    "--known",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help=(
        "JSON of an earlier check. Its heads must still exist, which also detects a truncated log."
    ),
)


@click.group(cls=Group)
def log() -> None:
    """Check the event log; move old rows to its archive."""


log.add_command(archive)
log.add_command(erase_names)


@log.command()
@json_option
@known_option
@click.option(
    "--all",
    "all_rows",
    is_flag=True,
    help=("Also read the part of the archive that was verified before."),
)
@click.option("--without-archive", is_flag=True, help="Check the log alone.")
@public_key_option
@with_settings("data_dir", "log")
def verify(
    loaded: Loaded,
    *,
    known: Path | None,
    all_rows: bool,
    without_archive: bool,
    public_key: PublicKey | None,
    as_json: bool,
) -> int:
    """Read the whole log and check every row against the seals.

    If old rows have left, the command also checks that their archive is unchanged, has the seals
    from which the log continues, and does not go on after the log has ended. Parts that were
    verified before are not read again. This needs the mediator's key, from its data directory or
    --public-key. Without the key nothing proves that the mediator itself moved the rows, and the
    archive is not checked. The export of a log that no rows have left is not read; poste verify
    checks it.

    Then check what is derived from the rows: tables for queries, snapshots, and on SQLite the
    indexes and pages of the file. Exit code 1 if a row was changed, removed, added or moved, which
    is named, or if a table, a snapshot or an index does not match the rows. May run while the
    mediator serves: it checks up to the present end of the log. On SQLite log.db-wal then grows
    while tables and pages are checked, and keeps what is erased meanwhile; if it gets larger than
    1 GiB, or temporary tables have no room, the tables are left unchecked, which is printed.
    """
    settings = loaded.settings
    require_existing(settings.log_dsn, to_read=True)
    each = settings.each_database()
    known_heads = heads_of_each(known, len(each))
    checked, key = [], public_key or own_key(loaded)
    for number, one in enumerate(each):
        findings, summary = _check(one, known_heads[number], key)
        made, unchecked = ([], _ROWS_FIRST) if findings else _check_what_is_made(one)
        archive = None
        if summary.seam and not without_archive and key is not None:
            archive = _check_archive(one, key, all_rows=all_rows)
        if not (summary.seam or without_archive) and one.exported_place is not None:
            click.echo(f"poste: {_NOT_CHECKED}\n  To check it: poste verify", err=True)
        checked.append(
            {
                "summary": _summary(summary),
                "findings": [*map(msgspec.to_builtins, findings)],
                "made_from_rows": made,
                "tables_unchecked": unchecked,
                "archive": archive,
                "unproven": _UNPROVEN if summary.seam and key is None else None,
            }
        )
        if not as_json:
            _print(findings, summary, "" if len(each) == 1 else f"Database {number}: ")
            _print_made(made)
            _print_archive(archive)
    if as_json:
        print_json(of_databases(checked))
    if any(one["unproven"] for one in checked):
        click.echo(f"poste: {_UNPROVEN}\n  {NAME_IT}", err=True)
    wrong = any(map(_is_wrong, checked))
    return Exit.FINDING if wrong else Exit.OK


def _is_wrong(checked: Mapping[str, Any]) -> bool:
    archive = checked["archive"]
    in_archive = archive is not None and archive["findings"]
    return bool(checked["findings"] or checked["made_from_rows"] or in_archive)


def _check_archive(settings: Settings, key: PublicKey, *, all_rows: bool) -> dict[str, Any] | None:
    """Check the archive, and that it meets the log; None if the seam is refused.

    Raises:
        Stop: the archive cannot be read now.
    """
    place = open_place(settings.archive_place)
    marks = marks_of(settings, key, forgotten=all_rows)
    try:
        with _store(settings, to_read=True) as store, progress_bar("Checking the archive") as at:
            log = opened(store, makes_missing=True)
            try:
                seam = seam_of(log, key)
            except SeamRefused:
                return None  # the check of the log reports it
            assert seam is not None
            checking = check_archive(log, place, seam, key, marks=marks, progress=at)
            findings, count, summary = gathered(checking, ExportFinding, ExportSummary)
    except ExportError as error:
        remedy = "To check only the log: poste log verify --without-archive."
        raise Stop(Exit.UNREACHABLE, f"the archive cannot be read: {error}", remedy) from error
    return {
        "place": place.address(),
        "position": summary.position,
        "rows": summary.rows,
        "verified_before_up_to": summary.verified_before_up_to,
        "pruned_up_to": summary.pruned_up_to,
        "findings_in_all": count,
        "findings": [*map(msgspec.to_builtins, findings)],
    }


def _print_archive(archive: Mapping[str, Any] | None) -> None:
    if archive is None:
        return
    if archive["findings"]:
        columns = ("fault", "path", "explanation")
        shown = [[one[name] for name in columns] for one in archive["findings"][:SHOWN_MAX]]
        found = counted(archive["findings_in_all"], "finding")
        print_table(f"{found} in the archive", columns, shown)
        return
    about = {name: value for name, value in archive.items() if not name.startswith("findings")}
    print_record("The archive has the rows that left, and the log continues from it", about)


def _check(
    settings: Settings, known_heads: Mapping[str, Head], key: PublicKey | None
) -> tuple[list[Finding], Summary]:
    """Check the rows of one database, from the start again if rows leave it meanwhile.

    Raises:
        RowsLeft: rows left it during each of ``_CHECKS_MAX`` checks.
        LogUnavailable: it cannot be read now.
    """
    for _ in range(_CHECKS_MAX - 1):
        try:
            return _check_once(settings, known_heads, key)
        except RowsLeft as error:
            click.echo(f"poste: {error}: checking again", err=True)
    return _check_once(settings, known_heads, key)


def _check_once(
    settings: Settings, known_heads: Mapping[str, Head], key: PublicKey | None
) -> tuple[list[Finding], Summary]:
    with _store(settings, to_read=True) as store, progress_bar("Checking") as progress:
        log = opened(store, makes_missing=True)
        checking = verification.verify(log, known_heads=known_heads, key=key, progress=progress)
        findings, _, summary = gathered(checking, Finding, Summary)
    return findings, summary


def gathered(
    checking: Iterable[object], finding: type[_Finding], last: type[_Summary]
) -> tuple[list[_Finding], int, _Summary]:
    """The findings of a check, up to ``KEPT_MAX`` of them, their number, and its summary."""
    findings: list[_Finding] = []
    count, summary = 0, None
    for item in checking:
        if isinstance(item, last):
            summary = item
            continue
        assert isinstance(item, finding)  # none is passed over
        count += 1
        if count <= KEPT_MAX:
            findings.append(item)
    assert summary is not None
    return findings, count, summary


def _check_what_is_made(settings: Settings) -> tuple[list[dict[str, Any]], str | None]:
    """The faults of what is made from the rows: tables, snapshots, the database's own indexes.

    With them, why the tables were not checked; None if they were.
    """
    with _store(settings, to_read=True) as store, progress_bar("Checking tables") as progress:
        with unavailable():
            faults = store.faults_in_files()
        if faults:  # tables and snapshots are read by the indexes, and are made anew with the file
            return [{"file": fault} for fault in faults], _FILE_FIRST
        tables: list[dict[str, Any]] = []
        unchecked = None
        try:
            tables = [
                msgspec.to_builtins(one) for one in wrong_read_models(store, progress=progress)
            ]
        except ReadModelsMissing as error:
            tables = [{"table": name, "is_missing": True} for name in error.tables]
        except NotComparable as error:
            unchecked = str(error)
            click.echo(f"poste: the tables for queries were not checked: {unchecked}", err=True)
        snapshots = wrong_snapshots(RecorderLog(store))
        return [*tables, *[{"snapshot": str(stream)} for stream in snapshots]], unchecked


def _print_made(wrong: Sequence[Mapping[str, Any]]) -> None:
    for one in wrong:
        if "is_missing" in one:
            click.echo(f"Table {one['table']} is missing. {_REBUILD}")
        elif "table" in one:
            click.echo(
                f"Table {one['table']}: {one['missing']} rows are missing, {one['surplus']}"
                f" too many. {_REBUILD}"
            )
        elif "file" in one:
            click.echo(f"The database is damaged: {one['file']}. {_INTO_A_NEW_FILE}")
        else:
            click.echo(f"Snapshot of stream {one['snapshot']}: does not match the rows.")


@contextmanager
def _store(settings: Settings, *, to_read: bool = False) -> Iterator[Store]:
    """Open the store of one database, whatever tables for queries it lacks."""
    with closing(
        open_store(
            settings.log_dsn,
            allow_unsafe=True,
            postgres=settings.postgres.bounds,
            makes_missing=True,
            to_read=to_read,
        )
    ) as store:
        yield store


@log.command("rebuild-read-models")
@with_settings("data_dir", "log")
def rebuild(loaded: Loaded) -> None:
    """Rebuild the tables for queries from the rows of the log.

    These are saved and public events, depths of queues, and dedicated identities; snapshots are
    dropped. The rebuild is done completely or not at all. Stop the mediator first, because it would
    have to wait.
    """
    settings = loaded.settings
    require_existing(settings.log_dsn)
    for one in settings.each_database():
        with _store(one) as store, progress_bar("Rebuilding") as progress:
            try:
                rebuild_read_models(store, progress=progress)
            except (CorruptRow, UnknownTopic) as error:
                remedy = "poste log verify names it. Restore the log from a backup."
                raise Stop(Exit.UNSAFE, f"a row cannot be read: {error}", remedy) from error
    click.echo("The tables now match the rows of the log.")


def _print(findings: list[Finding], summary: Summary, title: str) -> None:
    if findings:
        first = findings[0]
        click.echo(
            f"{title}First bad row: position {first.first_position} ({first.fault.value}, found in "
            f"stream {first.stream}, version {first.version}): {first.explanation}"
        )
        print_table(
            counted(summary.findings, "finding"),
            ["positions", "fault", "partition", "explanation"],
            [
                (
                    f"{finding.first_position}-{finding.last_position}",
                    finding.fault.value,
                    finding.partition,
                    finding.explanation,
                )
                for finding in islice(findings, SHOWN_MAX)
            ],
        )
    title += "Something is wrong with this log" if findings else "Every row is as it was sealed"
    print_record(title, {name: v for name, v in _summary(summary).items() if name != "heads"})


def _summary(summary: Summary) -> dict[str, Any]:
    return {
        "position": summary.position,
        "rows": summary.rows,
        "seals": summary.seals,
        "streams": summary.streams,
        "partitions": len(summary.heads),
        "rows_left_before": summary.seam,
        "rows_left": summary.left,
        "known_heads_left": summary.older_heads,
        "findings": summary.findings,
        "heads": heads_in_json(summary.heads),
    }


def heads_in_json(heads: Mapping[str, Head]) -> dict[str, Any]:
    """The newest seal of each partition for the JSON of a check; ``heads_of_each`` reads it."""
    return {
        partition: {"version": head.version, "digest": head.digest.hex()}
        for partition, head in sorted(heads.items())
    }


class _EarlierHead(msgspec.Struct):
    version: Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
    digest: str


class _EarlierSummary(msgspec.Struct):
    heads: dict[str, _EarlierHead]


class _Earlier(msgspec.Struct):
    """The JSON of an earlier check of one database or of its export."""

    summary: _EarlierSummary


class _EarlierOfAll(msgspec.Struct):
    """The JSON of an earlier check of several databases."""

    databases: list[_Earlier] = []


def heads_of_each(path: Path | None, databases: int) -> Sequence[Mapping[str, Head]]:
    """The heads of each database in the JSON of an earlier check; empty without a file.

    Raises:
        Stop: the file is no such JSON, or is of another number of databases.
    """
    if path is None:
        return [{}] * databases
    content = path.read_bytes()
    try:
        each = msgspec.json.decode(content, type=_EarlierOfAll).databases
        each = each or [msgspec.json.decode(content, type=_Earlier)]
        found = [
            {
                partition: Head(head.version, bytes.fromhex(head.digest))
                for partition, head in database.summary.heads.items()
            }
            for database in each
        ]
    except (ValueError, RecursionError):
        remedy = "Make one with: poste log verify --json"
        raise Stop(Exit.USAGE, f"{path} is not JSON of an earlier check", remedy) from None
    if len(found) != databases:
        raise Stop(
            Exit.USAGE,
            f"{path} is of {len(found)} databases of a log, but this check is of {databases}",
            "Check the same databases as then: name all with --log, or their common folder"
            " with --from.",
        )
    return found
