"""``rebuild``: every table from the Parquet files alone."""

from __future__ import annotations

import sys
from datetime import UTC, datetime

import click
import msgspec

from projections.program import as_of_option, explaining, pseudonymise_option, spark_options
from projections.read import AsOf, open_export, told
from projections.rebuild import PROJECTIONS, rebuild
from projections.session import open_session
from projections.tables import Tables


@click.command("rebuild")
@spark_options
@click.option("--to", "target", required=True, help="The tables: a folder or a URI.")
@as_of_option
@click.option("--incremental", is_flag=True, help="Continue from the tables that are there.")
@pseudonymise_option
@explaining()
def rebuild_command(  # noqa: PLR0913 - one for each option
    *,
    source: str,
    target: str,
    as_of: AsOf,
    incremental: bool,
    key: bytes | None,
    master: str | None,
    memory_mib: int,
    as_json: bool,
) -> None:
    """Rebuild every table from an export alone, as of now or of any moment.

    With --json the catalog of the tables is printed.
    """
    export = open_export(source, key=key)
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
    click.echo(msgspec.json.encode(tables) if as_json else _told(tables))


def _told(tables: Tables) -> str:
    at = datetime.fromtimestamp(tables.at_ms / 1000, UTC).isoformat(timespec="milliseconds")
    width = max(len(table.name) for table in tables.tables)
    rows = [f"  {table.name:{width}}  {table.rows:>12,}" for table in tables.tables]
    return "\n".join([f"The log up to position {told(tables.at)}, recorded {at}", *rows])
