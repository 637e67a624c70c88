"""The program: ``python -m projections rebuild``; also what ``spark-submit`` is given."""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime
from typing import Final

import click
import msgspec
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from eventstore.parquet.errors import ExportError
from projections.java import JavaMissing
from projections.read import AsOf, NotExported, open_export
from projections.rebuild import PROJECTIONS, RebuildRefused, rebuild
from projections.session import MEMORY_MIB, open_session
from projections.tables import Tables, TablesDamaged

_CAUSE: Final = re.compile(r"\[[A-Z_.]+\] [^\n]*")
_REFUSED: Final = (ExportError, JavaMissing, NotExported, RebuildRefused, TablesDamaged)


def moment(text: str) -> AsOf:
    """A position of the log, or a time in ISO 8601; in UTC if it names no zone.

    Raises:
        BadParameter: the text is neither.
    """
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise click.BadParameter(
            f"{text!r} is neither a position nor a time like 2030-12-31T23:59:59Z"
        ) from error
    return at if at.tzinfo else at.replace(tzinfo=UTC)


@click.group()
def projections() -> None:
    """Rebuild what the mediator knows from an export of its log."""


@projections.command("rebuild")
@click.option("--from", "source", required=True, help="The export: a folder or a URI.")
@click.option("--to", "target", required=True, help="The tables: a folder or a URI.")
@click.option(
    "--as-of",
    type=moment,
    metavar="TIME|POSITION",
    help="Rebuild as the log stood then; else all of it.",
)
@click.option("--incremental", is_flag=True, help="Continue from the tables that are there.")
@click.option("--master", help="Where Spark runs, e.g. local[2]; else all cores of this machine.")
@click.option("--memory-mib", default=MEMORY_MIB, show_default=True, help="Heap of local Java.")
@click.option("--json", "as_json", is_flag=True, help="Print the catalog of the tables.")
def rebuild_command(  # noqa: PLR0913 - one for each option
    *,
    source: str,
    target: str,
    as_of: AsOf,
    incremental: bool,
    master: str | None,
    memory_mib: int,
    as_json: bool,
) -> None:
    """Rebuild every table from the Parquet files alone."""
    try:
        export = open_export(source)
        bar = click.progressbar(
            length=len(PROJECTIONS),
            label="Rebuilding",
            file=sys.stderr,
            hidden=not sys.stderr.isatty(),
        )
        with open_session(master, memory_mib=memory_mib) as spark, bar:

            def progress(_name: str, _rows: int) -> None:
                bar.update(1)

            tables = rebuild(
                spark, export, target, as_of=as_of, incremental=incremental, progress=progress
            )
    except _REFUSED as error:
        raise click.ClickException(str(error)) from error
    except (PySparkException, Py4JError) as error:
        raise click.ClickException(cause(str(error))) from error
    click.echo(msgspec.json.encode(tables) if as_json else _told(tables))


def cause(text: str) -> str:
    """The cause in what Spark says, which names the file; the rest is the state of its threads."""
    causes: list[str] = _CAUSE.findall(text)
    return causes[-1] if causes else text.strip().splitlines()[0]


def _told(tables: Tables) -> str:
    at = datetime.fromtimestamp(tables.at_ms / 1000, UTC).isoformat(timespec="milliseconds")
    width = max(len(table.name) for table in tables.tables)
    rows = [f"  {table.name:{width}}  {table.rows:>12,}" for table in tables.tables]
    return "\n".join([f"The log up to position {tables.position:,}, recorded {at}", *rows])


if __name__ == "__main__":
    projections(prog_name="python -m projections")
