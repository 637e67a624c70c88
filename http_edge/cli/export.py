"""``poste export``: the event log as Parquet files, for Spark and for everything else."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from eventstore.open_log import open_log
from eventstore.parquet.errors import (
    ExportDamaged,
    ExportError,
    ExportRefused,
    ExportUnavailable,
    LogNotAsSealed,
)
from eventstore.parquet.exporter import Exported, Exporter
from eventstore.parquet.files import ExportPlace, open_place
from http_edge.cli.log import require_existing
from http_edge.cli.output import Exit, Stop, escaped, json_option, print_json, print_record
from http_edge.cli.settings import with_settings
from http_edge.config import Settings
from http_edge.config_sources import Loaded
from http_edge.exporting import ContinuousExport, exporter_of

_TWO: Final = 2
_Shown: TypeAlias = Callable[[Exported], None]


@dataclass
class _Written:
    """What this run wrote."""

    rows: int = 0
    files: int = 0
    bytes: int = 0

    def add(self, step: Exported) -> None:
        self.rows += step.rows
        self.files += step.files
        self.bytes += step.bytes


@click.command()
@click.option("--to", metavar="DIR|URI", help="Where to; else the setting export.to.")
@click.option("--watch", is_flag=True, help="Go on with what is stored later, until interrupted.")
@click.option("--compact", "compacting", is_flag=True, help="Put small files together afterwards.")
@json_option
@with_settings("data_dir", "log")
def export(loaded: Loaded, *, to: str | None, watch: bool, compacting: bool, as_json: bool) -> int:
    """Write the event log as Parquet files, each once, and sign what was written.

    Continues where the last export to this place ended, up to where the log ends now. May run
    beside a running mediator, with SQLite on its machine. A place is a folder or a URI that
    pyarrow knows, for example s3://bucket/folder?region=eu-west-1.
    """
    settings = loaded.settings
    target = to or settings.export.to
    if target is None:
        raise Stop(Exit.USAGE, "where to export to is not said", "Name a folder or URI with --to.")
    require_existing(settings.log_dsn)
    if watch:
        _watch(settings, target, as_json=as_json)
        return Exit.OK
    with _explained():
        _export(settings, open_place(target), compacting=compacting, as_json=as_json)
    return Exit.OK


def _export(settings: Settings, place: ExportPlace, *, compacting: bool, as_json: bool) -> None:
    written = _Written()
    started = time.monotonic()
    with (
        # Reading asks nothing of the store's durability.
        closing(open_log(settings.log_dsn, allow_unsafe=True)) as log,
        exporter_of(settings, log, place) as exporter,
        _progress_bar(exporter.catalog.last, log.position()) as shown,
    ):
        while step := exporter.step():
            written.add(step)
            shown(step)
            if not step.is_full:
                break
        seconds = time.monotonic() - started
        fewer = _compact(exporter) if compacting else 0
        record = _record(exporter, written, seconds) | {"place": place.address()}
    if compacting:
        record["steps_put_together"] = fewer
    if as_json:
        print_json(record)
    else:
        print_record("The log is exported", record)


def _compact(exporter: Exporter) -> int:
    """Put together as long as it helps; nobody is assumed to read meanwhile."""
    fewer = 0
    while found := exporter.compact(files_min=_TWO):
        fewer += found
    exporter.sweep()
    return fewer


def _record(exporter: Exporter, written: _Written, seconds: float) -> dict[str, Any]:
    catalog = exporter.catalog
    return {
        "position": catalog.last,
        "events_written": written.rows,
        "files_written": written.files,
        "bytes_written": written.bytes,
        "seconds": round(seconds, 3),
        "events_per_s": round(written.rows / seconds) if seconds else 0,
        "events_in_all": catalog.rows,
        "files_in_all": len(catalog.files),
    }


def _watch(settings: Settings, target: str, *, as_json: bool) -> None:
    """Export until interrupted; a line for each step."""

    def on_step(step: Exported) -> None:
        if as_json:
            click.echo(json.dumps(step._asdict()))
        else:
            click.echo(f"position {step.last}: {step.rows} events, {step.bytes} bytes")

    def on_trouble(error: Exception) -> None:
        click.echo(f"poste: the export waits: {escaped(str(error))}", err=True)

    export = ContinuousExport(settings, target, on_step=on_step, on_trouble=on_trouble)
    with suppress(KeyboardInterrupt):
        export.run(threading.Event())


@contextmanager
def _progress_bar(first: int, end: int) -> Iterator[_Shown]:
    console = Console(stderr=True)
    columns = (
        TextColumn("Exporting"),
        BarColumn(),
        TaskProgressColumn(show_speed=True),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("", total=end - first)
        yield lambda step: bar.update(task, completed=step.last - first)


@contextmanager
def _explained() -> Iterator[None]:
    """What an export that failed means for the user."""
    try:
        yield
    except ExportUnavailable as error:
        remedy = "What was exported stays as it is; the next export goes on from there."
        raise Stop(Exit.UNREACHABLE, f"the export cannot be written: {error}", remedy) from error
    except ExportRefused as error:
        raise Stop(Exit.USAGE, str(error), "Name another place with --to.") from error
    except ExportDamaged as error:
        remedy = "Restore the file, or export to another place."
        raise Stop(Exit.UNSAFE, f"the export is damaged: {error}", remedy) from error
    except LogNotAsSealed as error:
        raise Stop(Exit.UNSAFE, str(error), "See: poste log verify") from error
    except ExportError as error:
        raise Stop(Exit.INTERNAL, str(error)) from error
