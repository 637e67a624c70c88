"""``poste verify``: checks that the export is as it was written, and agrees with the mediator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
import msgspec
from msgspec import structs

from actors.host.clock import system_clock
from eventstore.log.databases import folder_name
from eventstore.log.errors import LogError
from eventstore.log.faults import Head
from eventstore.log.public_key import PublicKey
from eventstore.log.signed_note import NoteRefused
from eventstore.log.tree_head import read_head
from eventstore.parquet.catalog import catalog_of
from eventstore.parquet.databases import check_one_log, exports_in
from eventstore.parquet.errors import ExportDamaged, ExportError, ExportRefused, ExportUnavailable
from eventstore.parquet.files import EVENTS, MANIFESTS, open_place
from eventstore.parquet.verify.against_log import compare_end
from eventstore.parquet.verify.export import verify_export
from eventstore.parquet.verify.findings import ExportFinding, ExportSummary, finding_of
from eventstore.parquet.verify.mark import VerifiedMarks
from http_edge.cli.arguments import export_named, source_option
from http_edge.cli.live_comparison import NotServed, compare_live, export_rest
from http_edge.cli.live_dump import OtherBuild
from http_edge.cli.log import SHOWN_MAX, gathered, heads_in_json, heads_of_each, known_option
from http_edge.cli.output import (
    counted,
    json_option,
    print_json,
    print_record,
    print_table,
    progress_bar,
)
from http_edge.cli.projections_program import require_program, spark_options
from http_edge.cli.public_key import NAME_IT, NAMED, NOT_KNOWN, own_key, public_key_option
from http_edge.cli.running_mediator import url_option
from http_edge.cli.settings import is_missing, with_settings
from http_edge.server.exits import Endings, Exit, Stop, ended_by
from http_edge.server.mediator_log import opened_to_read
from http_edge.server.status_files import time_text
from http_edge.server.verified_marks import marks_of
from http_edge.settings.settings import Settings
from http_edge.settings.sources import Loaded

_MS: Final = 1_000
_COLUMNS: Final = ("table", "identity", "key", "column", "live", "rebuilt")
_FIGURES: Final = ("position", "manifests", "files", "rows", "seals", "streams", "findings")
_FINDING: Final = ("fault", "file", "row", "positions", "shard", "explanation")
_ENDINGS: Final[Endings] = {
    ExportUnavailable: (Exit.UNREACHABLE, "the export cannot be read: {}", ""),
    ExportRefused: (Exit.USAGE, "{}", "Name the export with --from."),
    NotServed: (Exit.UNREACHABLE, "the mediator did not answer for all identities: {}",
        "A host does not answer: see poste status."),
    OtherBuild: (Exit.UNREACHABLE, "the mediator is of another build: {}",
        "Run this command with the build that serves."),
    ExportError: (Exit.UNSAFE, "{}", "See: poste log verify"),
}  # fmt: skip


class _Checked(NamedTuple):
    """The result of the check of one export; its name is empty if it is the only one.

    ``beside_log`` says whether its end was compared with that of its log.
    """

    name: str
    summary: ExportSummary
    findings: list[ExportFinding]
    beside_log: bool = False


class _Expected(NamedTuple):
    """What the exports are checked against that does not come from the exports themselves."""

    key: PublicKey | None
    own: PublicKey | None
    """The key of the data directory; an export that it signed is compared with the log there."""
    known: Path | None
    notes: Mapping[str, bytes]
    """Signed heads that others hold, by the name of their file."""
    marks: VerifiedMarks | None
    """The marks of what was verified before; None if there are none."""

    def witnessed_of(self, names: Sequence[str]) -> list[dict[str, bytes]]:
        """The signed heads that each of the exports of these names has to continue.

        Each of several has to continue the heads with its own origin, and the first one also those
        with any other origin, which it then reports unless it is that of a log with one database.
        """
        each: list[dict[str, bytes]] = [{} for _ in names]
        for path, note in self.notes.items():
            database = read_head(note).origin.partition("/")[2]
            each[names.index(database) if database in names else 0][path] = note
        return each


class _Found(NamedTuple):
    """The results of all checks; ``wrong`` has faults between exports that are sound alone."""

    checked: list[_Checked]
    wrong: list[ExportFinding]

    @property
    def findings(self) -> int:
        return sum(one.summary.findings for one in self.checked) + len(self.wrong)


@click.command()
@source_option
@click.option("--live", is_flag=True, help="Also compare the memory of the running mediator.")
@known_option
@click.option(
    "--witnessed",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Signed head from a witness (GET /log/head), which the export must continue.",
)
@click.option(
    "--all", "all_rows", is_flag=True, help="Read all rows, including those verified before."
)
@public_key_option
@url_option
@spark_options
@json_option
@with_settings("data_dir", "log")
def verify(  # noqa: PLR0913 - one for each option
    loaded: Loaded,
    *,
    source: str | None,
    live: bool,
    known: Path | None,
    witnessed: tuple[Path, ...],
    all_rows: bool,
    public_key: PublicKey | None,
    url: str | None,
    spark: Sequence[str],
    as_json: bool,
) -> int:
    """Check an export; with --live compare the mediator's memory with it.

    Checks signatures, the table, manifests, files, rows, seals and the tree over them and, if the
    log is available (--data-dir, --log), that the export does not end before it. --live also
    compares each identity in the memory of the running mediator with the export; rows not yet
    exported are exported first. The mediator keeps serving.

    With the mediator's key (--data-dir), a check without findings leaves a signed mark there, and
    the next check reads only newer rows. --all and --known read all rows.

    Exit code 1 if anything is wrong or differs. This includes an export that was not signed by the
    key of --public-key or of the data directory, and one that ends before a head of --witnessed or
    differs from it. Without a key, exit code 0 does not prove who signed the export.

    For a log with several databases, name the place of all exports: each is checked, and all
    together.
    """
    settings = loaded.settings
    target = export_named(settings, source)
    compared = None
    with ended_by(_ENDINGS):
        each = _databases(settings, target) if live else []
        if live:
            require_program()  # before a check that may take hours
            export_rest(each)
        own = own_key(loaded)
        key = public_key or own
        marks = None if own is None else marks_of(settings, key, forgotten=all_rows)
        expected = _Expected(key, own, known, _notes(witnessed), marks)
        found = _check_all(settings, target, expected)
        if live and not found.findings:
            compared = compare_live(each, target, url, spark)
    if expected.key is None:
        click.echo(f"poste: the signer is {NOT_KNOWN}\n  {NAME_IT}", err=True)
    if as_json:
        print_json(_document(found) | {"live": compared})
    else:
        _print(found)
        if live:
            _print_live(compared)
    differs = compared is not None and compared["differences"]
    return Exit.FINDING if found.findings or differs else Exit.OK


def _databases(settings: Settings, target: str) -> list[Settings]:
    """The settings of each database of the log, with the place of its export.

    Raises:
        Stop: the place has other exports than those of this log.
    """
    each = settings.exporting_to(target).each_database()
    found = exports_in(target)
    if not {*found} <= {one.export.to for one in each}:
        is_one = found == [target]
        what = "the export of one database" if is_one else f"exports of {len(found)} databases"
        raise Stop(
            Exit.USAGE,
            f"{open_place(target).address()} holds {what}, but the mediator's log has {len(each)}",
            "Name all databases of the log with --log, and the common place of their"
            " exports with --from.",
        )
    return each


def _notes(paths: Sequence[Path]) -> dict[str, bytes]:
    """The signed heads in these files; refuse a file that is none."""
    notes = {}
    for path in paths:
        notes[str(path)] = note = path.read_bytes()
        try:
            read_head(note)
        except NoteRefused as error:
            remedy = "Use the answer of GET /log/head, byte for byte."
            raise Stop(Exit.USAGE, f"{path} is not a signed head: {error}", remedy) from error
    return notes


def _check_all(settings: Settings, target: str, expected: _Expected) -> _Found:
    """Check the export at a place, or the exports of all databases there.

    Raises:
        Stop: there is no export, or ``expected.known`` is of another number of databases.
        ExportUnavailable: an export cannot be read now.
    """
    targets = exports_in(target)
    place = open_place(target)
    if not targets and not {EVENTS, MANIFESTS} & {*place.folders()}:
        raise Stop(
            Exit.UNREACHABLE,
            f"there is no export at {place.address()}",
            "Name the folder or URI that poste export wrote to with --from.",
        )
    is_one = targets in ([], [target])
    names = [""] if is_one else [*map(folder_name, range(len(targets)))]
    known_heads = heads_of_each(expected.known, len(names))
    checked = [
        _check(name, at, expected, heads, witnessed)
        for name, at, heads, witnessed in zip(
            names, targets or [target], known_heads, expected.witnessed_of(names), strict=True
        )
    ]
    logs = settings.each_database()
    if len(logs) == len(checked):
        is_named = target != settings.archive_place
        pairs = zip(logs, checked, strict=True)
        checked = [_beside(*pair, expected.own, is_named=is_named) for pair in pairs]
    if is_one or any(one.summary.findings for one in checked):
        return _Found(checked, [])
    return _Found(checked, _together(targets))


def _check(
    name: str,
    target: str,
    expected: _Expected,
    known_heads: Mapping[str, Head],
    witnessed: Mapping[str, bytes],
) -> _Checked:
    with progress_bar(f"Checking the export {name}".rstrip()) as progress:
        checking = verify_export(
            open_place(target),
            expected.key,
            witnessed=witnessed,
            known_heads=known_heads,
            progress=progress,
            marks=expected.marks,
        )
        findings, _, summary = gathered(checking, ExportFinding, ExportSummary)
    if expected.marks is not None and (why := expected.marks.take_ignored()):
        click.echo(
            f"poste: all rows were verified, because a mark could not be used: {why}", err=True
        )
    return _Checked(name, summary, findings)


def _beside(
    settings: Settings, checked: _Checked, own: PublicKey | None, *, is_named: bool
) -> _Checked:
    """Compare the end of an export with its log, if that is at hand; add the findings."""
    summary = checked.summary
    if own is None or summary.signed_by != own.text:
        return checked  # the export is of another mediator, and reported as such
    if is_missing(settings.log_dsn):
        return checked
    export = settings.export
    lag_ms = round((export.settled_s + export.lag_s_max) * _MS)
    try:
        with closing(opened_to_read(settings)) as log:
            # A mere archive has the rows that have left; when it gets more is not known.
            until_ms = system_clock() - lag_ms if export.to is not None or is_named else 0
            found = [*compare_end(log, summary, recorded_before_ms=until_ms)]
    except LogError as error:
        why = f"poste: the export was not compared with the end of the log: {error}"
        click.echo(why, err=True)
        return checked
    summary = structs.replace(summary, findings=summary.findings + len(found))
    return _Checked(checked.name, summary, [*checked.findings, *found], beside_log=True)


def _together(targets: Sequence[str]) -> list[ExportFinding]:
    """The faults between exports, each sound alone, as those of all databases of one log."""
    try:
        check_one_log([catalog_of(open_place(target), None) for target in targets])
    except ExportDamaged as error:
        return [finding_of(error)]
    return []


def _document(found: _Found) -> dict[str, Any]:
    each = [
        {
            "summary": _summary(one.summary),
            "findings": [*map(msgspec.to_builtins, one.findings)],
            "compared_with_log": one.beside_log,
        }
        for one in found.checked
    ]
    if not found.checked[0].name:
        return each[0]
    return {"databases": each, "findings": [*map(msgspec.to_builtins, found.wrong)]}


def _print(found: _Found) -> None:
    several = bool(found.checked[0].name)
    exports = "exports" if several else "export"
    rows = [(one.name, finding) for one in found.checked for finding in one.findings]
    rows += [("", finding) for finding in found.wrong]
    if rows:
        shown = [[name, *_shown(finding)][not several :] for name, finding in rows[:SHOWN_MAX]]
        columns = ("export", *_FINDING)[not several :]
        print_table(f"{counted(found.findings, 'finding')} in the {exports}", columns, shown)
    if found.findings:
        title = f"Something is wrong with {'these' if several else 'this'} {exports}"
    else:
        are, they_were = ("are", "they were") if several else ("is", "it was")
        title = f"The {exports} {are} unchanged since {they_were} written"
    if several:
        figures = [[o.name, *(getattr(o.summary, n) for n in _FIGURES)] for o in found.checked]
        print_table(title, ("export", *_FIGURES), figures)
    else:
        summary = _summary(found.checked[0].summary)
        print_record(title, {n: v for n, v in summary.items() if n not in {"heads", "tree"}})


def _print_live(compared: dict[str, Any] | None) -> None:
    if compared is None:
        click.echo("The live state was not compared: the export is damaged.")
        return
    tables = [
        [table[name] for name in ("name", "rows", "differences")] for table in compared["tables"]
    ]
    is_same = not compared["differences"]
    title = "The live state matches the rebuilt state" if is_same else "The live state differs"
    print_table(title, ["table", "rows", "differences"], tables)
    if not is_same:
        rows = [[each[name] for name in _COLUMNS] for each in compared["listed"][:SHOWN_MAX]]
        print_table(counted(compared["differences"], "difference"), _COLUMNS, rows)
    several = len(compared["positions"]) > 1
    position = "positions" if several else "position"
    figures = (position, "identities", "not_in_memory", "differences")
    print_record("Compared", {name: compared[name] for name in figures})


def _shown(finding: ExportFinding) -> list[object]:
    positions = None
    if finding.last_position is not None:
        positions = f"{finding.first_position}-{finding.last_position}"
    fault, path = finding.fault.value, finding.path
    return [fault, path, finding.row, positions, finding.shard, finding.explanation]


def _summary(summary: ExportSummary) -> dict[str, Any]:
    heads = heads_in_json(summary.heads)
    tree = None if summary.tree is None else msgspec.structs.asdict(summary.tree)
    signer = {"signer": NAMED if summary.key_is_trusted else NOT_KNOWN}
    complete = {"complete_until": time_text(summary.complete_until_ms)}
    members = msgspec.structs.asdict(summary) | signer | complete | {"heads": heads, "tree": tree}
    del members["complete_until_ms"]
    return members
