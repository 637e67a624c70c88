"""``compare``: compares the memory of a running mediator with its exported log."""

from __future__ import annotations

from typing import Final

import click
import msgspec
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from eventstore.parquet.errors import ExportDamaged
from eventstore.parquet.opening import position_text
from projections.compare.compare import Comparison, compare
from projections.errors import FINDING
from projections.spark.program import explaining, open_named, spark_options
from projections.spark.session import open_session

_TRIES: Final = 3


@click.command("compare")
@spark_options
@click.option("--live", "folder", required=True, help="The dump that poste verify --live made.")
@click.pass_context
@explaining()
def compare_command(
    context: click.Context,
    *,
    source: str,
    folder: str,
    master: str | None,
    memory_mib: int,
    as_json: bool,
) -> None:
    """Compare the memory of a mediator with a rebuild; exit code 1 if anything differs.

    poste verify --live makes the dump and runs this.
    """
    with open_session(master, memory_mib=memory_mib) as spark:
        found = _compared(spark, source, folder)
    click.echo(msgspec.json.encode(found) if as_json else _text(found))
    context.exit(FINDING if found.differences else 0)


def _compared(spark: SparkSession, source: str, folder: str) -> Comparison:
    """Compare; try again if a compaction removed files meanwhile, as the dump does not change."""
    for _ in range(_TRIES - 1):
        export = open_named(source)
        try:
            return compare(spark, export, folder)
        except (PySparkException, Py4JError, ExportDamaged):
            parts = zip(export.parts, open_named(source).parts, strict=True)
            files = [(old.catalog.files, new.catalog.files) for old, new in parts]
            if all(new[: len(old)] == old for old, new in files):
                raise
    return compare(spark, open_named(source), folder)


def _text(found: Comparison) -> str:
    width = max(len(table.name) for table in found.tables)
    tables = [
        f"  {table.name:{width}}  {table.rows:>12,} rows  {table.differences:>8,} differences"
        for table in found.tables
    ]
    rows = [
        f"  {each.table} {each.identity} {each.key} {each.column}:"
        f" live {each.live}, rebuilt {each.rebuilt}"
        for each in found.listed
    ]
    head = (
        f"{found.identities:,} identities, the log up to position {position_text(found.positions)}"
    )
    return "\n".join([head, *tables, *rows])
