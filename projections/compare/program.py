"""``compare``: compares the memory of a running mediator with its exported log."""

from __future__ import annotations

from typing import Final

import click
import msgspec
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from eventstore.parquet.errors import ExportDamaged
from projections.compare.compare import Comparison, compare
from projections.errors import FINDING
from projections.spark.export import open_export
from projections.spark.program import explaining, session_options, source_option
from projections.spark.session import open_session

_TRIES: Final = 3


@click.command("compare")
@session_options
@source_option
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
    skip_hashes: bool,
) -> None:
    """Compare the memory of a mediator with a rebuild; print the differences as JSON.

    poste verify --live makes the dump and runs this. Exit code 1 if anything differs.
    """
    with open_session(master, memory_mib=memory_mib) as spark:
        found = _compared(spark, source, folder, skip_hashes=skip_hashes)
    click.echo(msgspec.json.encode(found))
    context.exit(FINDING if found.differences else 0)


def _compared(spark: SparkSession, source: str, folder: str, *, skip_hashes: bool) -> Comparison:
    """Compare; try again if a compaction removed files meanwhile, as the dump does not change."""
    export = open_export(source, skip_hashes=skip_hashes)
    for _ in range(_TRIES - 1):
        try:
            return compare(spark, export, folder)
        except (PySparkException, Py4JError, ExportDamaged):
            before, export = export, open_export(source, skip_hashes=skip_hashes)
            parts = zip(before.parts, export.parts, strict=True)
            files = [(old.catalog.files, new.catalog.files) for old, new in parts]
            if all(new[: len(old)] == old for old, new in files):
                raise
    return compare(spark, export, folder)
