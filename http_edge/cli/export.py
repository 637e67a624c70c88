"""``poste export``: writes the event log as Parquet files, for Spark and other programs."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
from click.core import ParameterSource

from actors.host.clock import system_clock
from eventstore.log.databases import folder_name
from eventstore.parquet.errors import ExportDamaged, ExportError, ExportRefused, ExportUnavailable
from eventstore.parquet.files import HEAD, open_place
from eventstore.parquet.write.exporter import Exported, Exporter
from http_edge.cli.arguments import named_place
from http_edge.cli.group import Group
from http_edge.cli.keys import existing_keys, require_owner
from http_edge.cli.output import json_option, print_databases, progress_bar, require_folder
from http_edge.cli.settings import require_existing, with_settings
from http_edge.server.archive_round import run_rounds
from http_edge.server.exits import Endings, Exit, Stop, ended_by
from http_edge.server.export_metrics import export_metrics
from http_edge.server.exporting import (
    ContinuousExport,
    OtherExporter,
    export_erasures,
    exporter_of,
    log_fault,
)
from http_edge.server.mediator_log import opened_to_export
from http_edge.server.status_files import (
    ArchiveReporter,
    ExportReporter,
    database_numbers,
    time_text,
)
from http_edge.settings.settings import Settings, split_listen
from http_edge.settings.sources import Loaded
from http_edge.telemetry.logs import LogPipe

_ENDINGS: Final[Endings] = {
    ExportUnavailable: (Exit.UNREACHABLE, "the export cannot be written: {}",
        "Exported files are kept; the next export continues from there."),
    OtherExporter: (Exit.BUSY, "{}",
        "poste status shows its progress. To do it here, stop that process first."),
    ExportRefused: (Exit.USAGE, "{}", "Name another place with --to."),
    ExportDamaged: (Exit.UNSAFE, "the export is damaged: {}",
        "Restore the file, or export to another place."),
    ExportError: (Exit.INTERNAL, "{}", ""),
}  # fmt: skip
_to: Final = click.option(
    "--to", metavar="DIR|URI", callback=named_place, help="Target; else the setting export.to."
)


@click.group(cls=Group, invoke_without_command=True)
@_to
@click.option("--watch", is_flag=True, help="Keep exporting new events until interrupted.")
@click.option("--compact", "compacting", is_flag=True, help="Merge small files at the end.")
@click.option(
    "--metrics",
    metavar="HOST:PORT",
    help="With --watch: address for metrics of the export, which need the token of operators.",
)
@json_option
@with_settings("data_dir", "log")
def export(
    loaded: Loaded,
    *,
    to: str | None,
    watch: bool,
    compacting: bool,
    metrics: str | None,
    as_json: bool,
) -> None:
    """Write the event log to immutable, signed Parquet files.

    Continues from the last export to this place up to the present end of the log. May run while the
    mediator serves; with SQLite, on its machine. A place is a folder or a URI that pyarrow knows,
    for example s3://bucket/folder?region=eu-west-1. If the log has several databases, each has its
    own export in a folder there: db-0, db-1 and so on.

    With --watch and archive.enabled=on it also moves old rows out of a log in PostgreSQL from time
    to time; the export is then their archive.
    """
    context = click.get_current_context()
    if context.invoked_subcommand is not None:
        _require_no_option(context, before=context.invoked_subcommand)
        return
    if metrics is not None and not watch:
        raise click.UsageError("--metrics is only for --watch")
    if compacting and watch:
        raise click.UsageError(
            "--compact is not for --watch, which merges small files as it goes"
            " (export.compact_files_min)"
        )
    each = _each(loaded.settings, to)
    for one in each:
        if one.export.to is not None and "://" not in one.export.to:
            require_folder(Path(one.export.to), "--to")
    if watch:
        _watch(each, _address(metrics), as_json=as_json)
        return
    with ended_by(_ENDINGS):
        records = (_export(one, compacting=compacting) for one in each)
        print_databases("The log is exported", records, as_json=as_json)


@export.command()
@_to
@json_option
@with_settings("data_dir", "log")
def compact(loaded: Loaded, *, to: str | None, as_json: bool) -> None:
    """Rewrite files of an export without the contents and names that were erased since.

    These are the contents of messages, contract requests and events that the log shows as
    acknowledged, expired or removed, and the names of erased identities, which are removed from the
    log too. Rows, seals and proofs do not change. Small files are merged first, and replaced files
    are removed at the end, so no program should read the export meanwhile. Each replacement is one
    version of the table, so this may be interrupted and repeated.

    A mediator with export.to does this by itself (export.erased_every_s). Without --to and
    export.to the place is the archive in the data directory.
    """
    target = to or loaded.settings.exported_place
    with ended_by(_ENDINGS):
        records = map(_compacted, _each(loaded.settings, target))
        print_databases("The export has no erased contents and names", records, as_json=as_json)


def _require_no_option(context: click.Context, *, before: str) -> None:
    """Refuse options before a subcommand, which has its own and would ignore these."""
    given = [
        option.opts[0]
        for option in context.command.params
        if option.name and context.get_parameter_source(option.name) is ParameterSource.COMMANDLINE
    ]
    if given:
        raise click.UsageError(
            f"{' and '.join(given)} before {before} would be ignored; write it after:"
            f" poste export {before} {given[0]} …"
        )


def _each(settings: Settings, to: str | None) -> list[Settings]:
    """The settings of each database of the log, with the place of its export.

    Raises:
        Stop: no place is named, or the log or the key is missing.
    """
    if to is not None:
        settings = settings.exporting_to(to)
    if settings.export.to is None:
        raise Stop(Exit.USAGE, "no export target is named", "Name a folder or URI with --to.")
    require_existing(settings.log_dsn, to_read=True)
    existing_keys(settings)  # they sign what is written
    require_owner(settings)
    return settings.each_database()


def _compacted(settings: Settings) -> dict[str, Any]:
    assert settings.export.to is not None
    place = open_place(settings.export.to)
    if place.read_if_there(HEAD) is None:
        remedy = "Name the folder or URI that poste export wrote to with --to."
        raise Stop(Exit.UNREACHABLE, f"there is no export at {place.address()}", remedy)
    with (
        closing(opened_to_export(settings)) as log,
        exporter_of(settings, log, place) as exporter,
        progress_bar("Compacting") as progress,
    ):
        fewer = _compact(exporter)
        export_erasures(log, exporter)
        taken = exporter.take_out_erased(progress)
        exporter.sweep()
        catalog = exporter.catalog
    return {
        "place": place.address(),
        "position": catalog.last,
        "contents_taken_out": taken.contents,
        "rows_without_names": taken.names,
        "steps_put_together": fewer,
        "files_in_all": len(catalog.files),
        "bytes_in_all": sum(file.bytes for file in catalog.files),
    }


def _export(settings: Settings, *, compacting: bool) -> dict[str, Any]:
    steps: list[Exported] = []
    assert settings.export.to is not None
    place = open_place(settings.export.to)
    started = time.monotonic()
    with (
        closing(opened_to_export(settings)) as log,
        exporter_of(settings, log, place) as exporter,
        progress_bar("Exporting") as progress,
    ):
        first, end = exporter.catalog.last, log.position()
        while step := exporter.step():
            steps.append(step)
            progress(step.last - first, end - first)
            if not step.is_full:
                break
        seconds = time.monotonic() - started
        fewer = _compact(exporter) if compacting else 0
        record = _record(exporter, steps, seconds) | {"place": place.address()}
    if compacting:
        record["steps_put_together"] = fewer
    return record


def _compact(exporter: Exporter) -> int:
    """Merge files as long as that helps, on the assumption that no program reads meanwhile."""
    fewer = 0
    while found := exporter.compact(files_min=2):
        fewer += found
    exporter.sweep()
    return fewer


def _record(exporter: Exporter, steps: Sequence[Exported], seconds: float) -> dict[str, Any]:
    catalog, rows = exporter.catalog, sum(step.rows for step in steps)
    return {
        "position": catalog.last,
        "complete_until": time_text(catalog.complete_until_ms),
        "events_written": rows,
        "files_written": sum(step.files for step in steps),
        "bytes_written": sum(step.bytes for step in steps),
        "seconds": round(seconds, 3),
        "events_per_s": round(rows / seconds) if seconds else 0,
        "events_in_all": catalog.rows,
        "files_in_all": len(catalog.files),
    }


def _address(metrics: str | None) -> str | None:
    """The address to listen at, if any; refuse a text that is none."""
    try:
        if metrics is not None:
            split_listen(metrics)
    except ValueError:
        remedy = "Name an address and a port, for example 127.0.0.1:9464."
        raise Stop(Exit.USAGE, f"--metrics {metrics} is not an address", remedy) from None
    return metrics


def _watch(each: Sequence[Settings], metrics: str | None, *, as_json: bool) -> None:
    """Export until interrupted; print a line for each step."""
    # Containers and service managers send SIGTERM: that end must not look like a failure.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    works: list[Callable[[threading.Event], None]] = []
    # Not in the data directory, where a mediator beside this process reports its own export.
    shown = [ExportReporter(None, system_clock) for _ in each]
    archiving: list[ArchiveReporter] = []
    for settings, number, status in zip(each, database_numbers(len(each)), shown, strict=True):
        works.append(_watching(settings, number, status, as_json=as_json).run)
        # For a log in SQLite the mediator archives, perhaps to another archive.
        if settings.lets_rows_leave and not settings.log_dsn.startswith("sqlite:"):
            archiving.append(ArchiveReporter(settings.data_dir, system_clock, number))
            works.append(partial(run_rounds, settings, archiving[-1]))
    # Lines about faults wait for no reader of stderr.
    lines = LogPipe(each[0].log_level, "export")
    token = each[0].operators_token_path
    with closing(lines), export_metrics(metrics, token, shown, archiving):
        _run_all(works)


def _run_all(works: Sequence[Callable[[threading.Event], None]]) -> None:
    """Run all until an interrupt; an exception of one ends the others and is raised."""
    stopping, failed = threading.Event(), list[BaseException]()

    def run(work: Callable[[threading.Event], None]) -> None:
        try:
            work(stopping)
        except KeyboardInterrupt:
            stopping.set()
        except BaseException as error:  # noqa: BLE001 - raised below, also a panic of Rust
            failed.append(error)
            stopping.set()

    first, *others = works
    threads = [threading.Thread(target=run, args=(work,), daemon=True) for work in others]
    for thread in threads:
        thread.start()
    with suppress(KeyboardInterrupt):
        run(first)
    stopping.set()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


def _watching(
    settings: Settings, number: int | None, status: ExportReporter, *, as_json: bool
) -> ContinuousExport:
    """The export of a database; each line names it by its number, None if it is the only one."""
    title = "" if number is None else f"{folder_name(number)}: "
    database = {} if number is None else {"database": number}

    def on_step(step: Exported) -> None:
        if as_json:
            click.echo(json.dumps(database | step._asdict()))
        else:
            click.echo(f"{title}position {step.last}: {step.rows} events, {step.bytes} bytes")

    on_fault = partial(log_fault, title=title)
    return ContinuousExport(settings, status, on_step=on_step, on_fault=on_fault)
