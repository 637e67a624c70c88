"""``rebuild``: rebuilds every table from the Parquet files alone."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial

import click
import msgspec

from eventstore.log.public_key import PublicKey
from eventstore.parquet.files import open_place
from eventstore.parquet.opening import AsOf, position_text, signer_said
from projections.generations.generation import Generation
from projections.generations.place import Kept, only_rebuild
from projections.rebuild.rebuild import KEPT, rebuild
from projections.spark.export import open_export
from projections.spark.program import (
    as_of_option,
    explaining,
    json_option,
    progress_steps,
    pseudonymise_option,
    public_key_option,
    session_options,
    source_option,
)
from projections.spark.session import open_session
from projections.tables import PROJECTIONS


@click.command("rebuild")
@source_option
@session_options
@json_option
@click.option("--to", "target", required=True, help="Target for the tables: a folder or a URI.")
@as_of_option
@click.option("--incremental", is_flag=True, help="Continue from the existing tables.")
@click.option(
    "--keep",
    type=click.IntRange(1),
    default=KEPT.newest,
    show_default=True,
    help="Generations to keep, including the new one.",
)
@click.option(
    "--keep-s",
    type=click.IntRange(0),
    default=int(KEPT.replaced_s),
    show_default=True,
    help=(
        "Seconds for which an older generation is also kept, counted from the next one:"
        " longer than any program reads it."
    ),
)
@pseudonymise_option
@public_key_option
@explaining()
def rebuild_command(  # noqa: PLR0913 - one for each option
    *,
    source: str,
    target: str,
    as_of: AsOf,
    incremental: bool,
    keep: int,
    keep_s: int,
    key: bytes | None,
    signer: PublicKey | None,
    master: str | None,
    memory_mib: int,
    skip_hashes: bool,
    as_json: bool,
) -> None:
    """Rebuild every table from an export, as of now or of any earlier time.

    A generation is one version of each table, all from the same position. Earlier generations stay
    unchanged until they are removed. --json prints the description of the new generation.
    """
    export = open_export(source, signer, key, skip_hashes=skip_hashes)
    export.require(as_of)
    with only_rebuild(open_place(target)):
        pass  # raises before Spark starts, if another rebuild runs already
    with (
        progress_steps("Rebuilding", len(PROJECTIONS) + 1) as steps,
        open_session(master, memory_mib=memory_mib) as spark,
    ):
        steps.update(1, "tables")
        tables = rebuild(
            spark,
            export,
            target,
            as_of=as_of,
            incremental=incremental,
            kept=Kept(keep, keep_s),
            progress=partial(steps.update, 1),
        )
    click.echo(msgspec.json.encode(tables) if as_json else _text(tables))
    if not as_json:
        click.echo(f"Signed by {signer_said(export.head.public_key, signer)}")


def _text(tables: Generation) -> str:
    at = datetime.fromtimestamp(tables.at_ms / 1000, UTC).isoformat(timespec="milliseconds")
    width = max(len(table.name) for table in tables.tables)
    rows = [
        f"  {table.name:{width}}  {table.rows:>12,}  version {table.version}"
        for table in tables.tables
    ]
    log = f"The log up to position {position_text(tables.at)}, recorded {at}"
    return "\n".join([f"Generation {tables.generation}", log, *rows])
