"""``poste log archive``: old rows leave the log, and its file becomes shorter."""

from __future__ import annotations

import time
from typing import Any, Final

import click

from eventstore.log.errors import RowsStay, SeamRefused, TurnLost
from eventstore.parquet.errors import ExportDamaged, ExportError, ExportUnavailable
from eventstore.parquet.files import open_place
from http_edge.cli.keys import existing_keys, require_owner
from http_edge.cli.output import json_option, print_databases, progress_bar
from http_edge.cli.settings import require_existing, with_settings
from http_edge.server.archive_round import archive_once
from http_edge.server.exits import Endings, Exit, Stop, ended_by
from http_edge.settings.settings import Settings
from http_edge.settings.sources import Loaded

_ENDINGS: Final[Endings] = {
    TurnLost: (Exit.BUSY, "{}",
        "The other process does the same. Run this again for the remaining rows."),
    RowsStay: (Exit.UNSAFE, "no more rows leave: {}",
        "Rows that left earlier are not affected. Check: poste log verify, poste verify"),
    SeamRefused: (Exit.UNSAFE, "the seam of the log cannot be used: {}", "See: poste log verify"),
    ExportUnavailable: (Exit.UNREACHABLE, "the archive cannot be used: {}",
        "No row leaves without the archive; run this again when it is available."),
    ExportDamaged: (Exit.UNSAFE, "the archive is damaged: {}", "No row leaves. See: poste verify"),
    ExportError: (Exit.UNSAFE, "{}", "See: poste log verify"),
}  # fmt: skip


@click.command()
@json_option
@with_settings("data_dir", "log")
def archive(loaded: Loaded, *, as_json: bool) -> None:
    """Move old rows from the log to its archive.

    The archive is the export at export.to, or else the folder archive in the data directory. Rows
    not yet exported are exported first. Then those rows leave that the archive has, that are older
    than archive.rows_age_s_min, and that no live record refers to: removed messages with their
    history, and seals. The log stays complete: poste log verify checks it without the archive. A
    serving mediator does the same by itself (archive.enabled); this command may run at the same
    time, and may be interrupted.

    For a log in PostgreSQL only the export can be the archive (export.to). The table reuses the
    space of removed rows after autovacuum has run.

    From then on only the archive has these rows: back it up like the log itself.
    """
    settings = loaded.settings
    if not settings.log_dsn.startswith("sqlite:") and settings.export.to is None:
        raise Stop(
            Exit.USAGE,
            "only an export can be the archive of a log in PostgreSQL, and none is named",
            "Name a place that all nodes can reach: --set export.to=PLACE.",
        )
    require_existing(settings.log_dsn)
    existing_keys(settings)  # they sign the seam
    require_owner(settings)
    records = [_archived(one) for one in settings.each_database()]
    print_databases("Old rows have left the log", records, as_json=as_json)


def _archived(settings: Settings) -> dict[str, Any]:
    """Let rows leave one database of the log; return a record of the result."""
    with ended_by(_ENDINGS), progress_bar("Archiving") as progress:
        archived = archive_once(
            settings,
            is_checked=True,
            after_step=lambda: time.sleep(settings.archive.pause_s),
            progress=progress,
        )
    assert archived is not None
    return {
        "archive": open_place(settings.archive_place).address(),
        "position": archived.seam,
        "position_before": archived.before,
        "rows_left": archived.left,
        "rows_left_in_all": archived.left_in_all,
        "rows_stayed": archived.stayed,
        "states": archived.states,
    }
