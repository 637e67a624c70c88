"""``rebuild``: every table from the Parquet files alone."""

from __future__ import annotations

from datetime import UTC, datetime

import click
import msgspec

from projections.rebuild.catalog import Tables
from projections.rebuild.rebuild import rebuild
from projections.spark.export import AsOf, open_export, position_text
from projections.spark.program import (
    ProgressSteps,
    as_of_option,
    explaining,
    pseudonymise_option,
    spark_options,
)
from projections.spark.session import open_session
from projections.tables.registry import PROJECTIONS


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
    """Rebuild every table from an export alone, as of now or of any time.

    With --json the catalog of the tables is printed.
    """
    export = open_export(source, key=key)
    with ProgressSteps("Rebuilding", len(PROJECTIONS) + 1) as steps:
        steps.begin("Spark")
        with open_session(master, memory_mib=memory_mib) as spark:
            steps.done("tables")
            tables = rebuild(
                spark,
                export,
                target,
                as_of=as_of,
                incremental=incremental,
                progress=lambda name, _rows: steps.done(name),
            )
    click.echo(msgspec.json.encode(tables) if as_json else _text(tables))


def _text(tables: Tables) -> str:
    at = datetime.fromtimestamp(tables.at_ms / 1000, UTC).isoformat(timespec="milliseconds")
    width = max(len(table.name) for table in tables.tables)
    rows = [f"  {table.name:{width}}  {table.rows:>12,}" for table in tables.tables]
    return "\n".join([f"The log up to position {position_text(tables.at)}, recorded {at}", *rows])
