"""``poste verify``: is the export what was written, and is it what the mediator knows?"""

from __future__ import annotations

import http.client
import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

import base58
import click
import msgspec
from rich.console import Console
from rich.progress import Progress

from eventstore.parquet.errors import ExportDamaged, ExportError, ExportRefused, ExportUnavailable
from eventstore.parquet.export_findings import ExportFinding, ExportSummary
from eventstore.parquet.files import ExportPlace, open_place
from eventstore.parquet.manifest import Verify
from eventstore.parquet.verify_export import verify_export
from eventstore.verify import Head
from http_edge import signatures
from http_edge.cli.log import heads_of, require_existing
from http_edge.cli.nearby import exchange, refuse_unless_ok
from http_edge.cli.output import Exit, Stop, json_option, print_json, print_record, print_table
from http_edge.cli.projections_program import answer_of_program
from http_edge.cli.settings import with_settings
from http_edge.config import Settings
from http_edge.config_sources import Loaded
from http_edge.live.collect import Collector, NotNow, NotServed, exported_identities
from http_edge.live.coverage import covered
from http_edge.live.dump import DumpWriter
from http_edge.log_reading import opened_to_read
from http_edge.mediator_keys import load_or_create
from http_edge.operators import operator_token

_SHOWN_MAX: Final = 20
_KEPT_MAX: Final = 10_000
_ANSWER_S_MAX: Final = 60.0
_ANSWER_BYTES_MAX: Final = 1024 * 1024 * 1024
_COLUMNS: Final = ("table", "identity", "key", "column", "live", "rebuilt")


class _Live(NamedTuple):
    """Where the live state is asked for, and how Spark is started."""

    url: str
    spark: list[str]


@click.command()
@click.option("--from", "source", metavar="DIR|URI", help="The export; else what export.to says.")
@click.option("--live", is_flag=True, help="Also compare the memory of the running mediator.")
@click.option(
    "--known",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The JSON of an earlier check: its heads must still be there, so a cut end is found too.",
)
@click.option("--url", help="The mediator to ask; else the one that the settings describe.")
@click.option("--master", help="Where Spark runs, e.g. local[2]; else all cores of this machine.")
@click.option("--memory-mib", help="Heap of the Java that Spark starts.", type=click.IntRange(512))
@json_option
@with_settings("listen", "data_dir", "log")
def verify(  # noqa: PLR0913 - one for each option
    loaded: Loaded,
    *,
    source: str | None,
    live: bool,
    known: Path | None,
    url: str | None,
    master: str | None,
    memory_mib: int | None,
    as_json: bool,
) -> int:
    """Check an export, and with --live the memory of the mediator against it.

    Of the export: signatures, manifests, files, rows and seals. With --live also whether each
    identity in the memory of the running mediator is as the export says. What is not exported yet
    is exported first; the mediator serves meanwhile. Exit code 1 when anything is wrong or differs.
    """
    settings = loaded.settings
    target = source or settings.export.to
    if target is None:
        raise Stop(Exit.USAGE, "which export is not said", "Name a folder or URI with --from.")
    if live and len(settings.log_dsns) > 1:
        raise Stop(
            Exit.USAGE,
            "the memory is compared with the export of a log in one database",
            "Leave --live out, and check the export of each database with --from.",
        )
    known_heads = heads_of(known) if known else {}
    spark = ["--master", master] if master else []
    spark += ["--memory-mib", str(memory_mib)] if memory_mib else []
    with _explained():
        place = open_place(target)
        if live:
            _export_rest(settings, place)
        findings, summary = _check(settings, place, known_heads)
        compared = None
        if live and not summary.findings:
            options = _Live(url or settings.local_url, spark)
            compared = _compare(settings, target, place, options)
    if not summary.key_is_trusted:
        click.echo(
            "poste: the key is the one that the export itself names; this does not prove who"
            " wrote it\n  Name the mediator's data directory with --data-dir.",
            err=True,
        )
    if as_json:
        said = {"summary": _summary(summary), "findings": list(map(_finding, findings))}
        print_json(said | {"live": compared})
    else:
        _print(findings, summary, compared, live=live)
    differs = compared is not None and compared["differences"]
    return Exit.FINDING if summary.findings or differs else Exit.OK


def _export_rest(settings: Settings, place: ExportPlace) -> None:
    """Export what is missing, as far as the export is sound; if it is not, the check says so."""
    require_existing(settings.log_dsn)
    with closing(opened_to_read(settings)) as log, _bar("Exporting"):
        try:
            covered(settings, log, place, log.position())
        except ExportDamaged:
            return


def _check(
    settings: Settings, place: ExportPlace, known_heads: Mapping[str, Head]
) -> tuple[list[ExportFinding], ExportSummary]:
    trusted: Verify | None = None
    if settings.keys_path.exists():
        trusted = partial(signatures.verify, load_or_create(settings.keys_path).signing_public)
    findings: list[ExportFinding] = []
    summary: ExportSummary | None = None
    with _bar("Checking the export") as progress:
        for item in verify_export(
            place,
            trusted,
            key_of=lambda text: partial(signatures.verify, base58.b58decode(text)),
            known_heads=known_heads,
            progress=progress,
        ):
            if isinstance(item, ExportSummary):
                summary = item
            elif len(findings) < _KEPT_MAX:
                findings.append(item)
    assert summary is not None
    return findings, summary


def _compare(settings: Settings, target: str, place: ExportPlace, live: _Live) -> dict[str, Any]:
    """What ``projections compare`` found; ``projections/compare.py`` says what is in it."""
    with tempfile.TemporaryDirectory(prefix="poste-live-") as name:
        _dump(settings, place, live.url, Path(name))
        with _bar("Comparing"):
            arguments = ["compare", "--from", target, "--live", name, "--json", *live.spark]
            code, answer = answer_of_program(arguments)
    try:
        compared = json.loads(answer)
    except ValueError:
        compared = None
    if not isinstance(compared, dict):
        raise Stop(Exit.INTERNAL, f"the comparison ended without an answer, exit code {code}")
    return compared


def _dump(settings: Settings, place: ExportPlace, url: str, folder: Path) -> None:
    token = operator_token(load_or_create(settings.keys_path))

    def ask(question: bytes) -> bytes:
        status, answer = exchange(
            "POST",
            url,
            "/memory",
            token=token,
            body=question,
            seconds_max=_ANSWER_S_MAX,
            bytes_max=_ANSWER_BYTES_MAX,
        )
        if status in {http.client.SERVICE_UNAVAILABLE, http.client.TOO_MANY_REQUESTS}:
            raise NotNow(f"{url}/memory answered {status}")
        refuse_unless_ok(status, url, "/memory")
        return answer

    with closing(opened_to_read(settings)) as log:
        after = log.position()
        catalog = covered(settings, log, place, after)
        assert catalog.head is not None
        with DumpWriter(folder) as writer, _bar("Asking the mediator") as progress:
            targets = exported_identities(place)
            Collector(ask, writer).collect(targets, catalog.head.shards, progress)
        before = log.position()
        with _bar("Exporting"):
            covered(settings, log, place, before)
    writer.finish(after=after, before=before)


@contextmanager
def _bar(title: str) -> Iterator[Any]:
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def _explained() -> Iterator[None]:
    """What a check that could not be done means for the user."""
    try:
        yield
    except ExportUnavailable as error:
        raise Stop(Exit.UNREACHABLE, f"the export cannot be read: {error}") from error
    except ExportRefused as error:
        raise Stop(Exit.USAGE, str(error), "Name the export with --from.") from error
    except NotServed as error:
        remedy = "A host does not answer: see poste status."
        raise Stop(Exit.UNREACHABLE, f"the mediator was not asked for all: {error}", remedy) from (
            error
        )
    except ExportError as error:
        raise Stop(Exit.UNSAFE, str(error), "See: poste log verify") from error


def _print(
    findings: list[ExportFinding],
    summary: ExportSummary,
    compared: dict[str, Any] | None,
    *,
    live: bool,
) -> None:
    if findings:
        print_table(
            f"{summary.findings} findings in the export",
            ["fault", "file", "row", "positions", "shard", "explanation"],
            [_shown(finding) for finding in islice(findings, _SHOWN_MAX)],
        )
    title = "Something is wrong with this export" if findings else "The export is as it was written"
    print_record(title, {name: v for name, v in _summary(summary).items() if name != "heads"})
    if compared is None:
        if live:
            click.echo("The live state was not compared: the export is damaged.")
        return
    tables = [
        [table[name] for name in ("name", "rows", "differences")] for table in compared["tables"]
    ]
    is_same = not compared["differences"]
    title = "The live state is the rebuilt one" if is_same else "The live state differs"
    print_table(title, ["table", "rows", "differences"], tables)
    if not is_same:
        rows = [[each[name] for name in _COLUMNS] for each in compared["listed"][:_SHOWN_MAX]]
        print_table(f"{compared['differences']} differences", _COLUMNS, rows)
    figures = ("position", "identities", "asleep", "differences")
    print_record("Compared", {name: compared[name] for name in figures})


def _shown(finding: ExportFinding) -> list[object]:
    positions = None
    if finding.last_position is not None:
        positions = f"{finding.first_position}-{finding.last_position}"
    fault, path = finding.fault.value, finding.path
    return [fault, path, finding.row, positions, finding.shard, finding.explanation]


def _finding(finding: ExportFinding) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(finding)
    return found


def _summary(summary: ExportSummary) -> dict[str, Any]:
    heads = {
        partition: {"version": head.version, "digest": head.digest.hex()}
        for partition, head in sorted(summary.heads.items())
    }
    return msgspec.structs.asdict(summary) | {"heads": heads}
