"""``poste log archive``: old rows leave the log, and its file becomes shorter."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any, Final

import click

from actors.host.clock import system_clock
from eventstore.log.errors import RowsStay, SeamRefused
from eventstore.parquet.errors import ExportDamaged, ExportError, ExportUnavailable
from eventstore.parquet.files import ExportPlace, open_place
from http_edge.cli.keys import existing_keys
from http_edge.cli.output import json_option, print_json, print_record, progress_bar
from http_edge.cli.settings import require_existing, with_settings
from http_edge.server.archiving import Archived, let_rows_leave
from http_edge.server.exits import Exit, Stop
from http_edge.server.exporting import OtherExporter, exporter_of, opened_to_read
from http_edge.settings.settings import Settings
from http_edge.settings.sources import Loaded

_MS: Final = 1_000
_PAUSE_S: Final = 0.03
"""Longer than what SQLite waits at first before it looks again whether it may write."""


@click.command()
@json_option
@with_settings("data_dir", "log")
def archive(loaded: Loaded, *, as_json: bool) -> int:
    """Let old rows leave the log for its archive.

    The archive is the export: where export.to says, else the folder archive of the data directory.
    What is not exported yet is exported first. Then rows leave that the archive has, that are older
    than archive.rows_age_s_min, and that nothing refers to which lives: messages that were removed,
    with all that happened to them, and seals. What stays is whole: poste log verify checks it
    without the archive. May run beside a running mediator, and be interrupted.

    From then on the archive is the only place with what has left: save it like the log itself.
    """
    settings = loaded.settings
    if not settings.log_dsn.startswith("sqlite:"):
        raise Stop(
            Exit.USAGE,
            "rows leave logs in SQLite alone so far",
            "In PostgreSQL they stay; poste export copies them all the same.",
        )
    require_existing(settings.log_dsn)
    keys = existing_keys(settings)
    place = open_place(settings.archive_place)
    with (
        _explained(),
        closing(opened_to_read(settings)) as log,
        progress_bar("Archiving") as progress,
    ):
        _export_rest(settings, place)
        archived = let_rows_leave(
            log,
            place,
            keys,
            log.setting("mediator_did", settings.mediator_did),
            until_ms=system_clock() - round(settings.archive.rows_age_s_min * _MS),
            clock=system_clock,
            pause_s=_PAUSE_S,
            progress=progress,
        )
    record = _record(archived, place)
    if as_json:
        print_json(record)
    else:
        print_record("Old rows have left the log", record)
    return Exit.OK


def _export_rest(settings: Settings, place: ExportPlace) -> None:
    """Export what is not in the archive yet; where the mediator does so by itself, let it."""
    export = settings.export.model_copy(update={"to": settings.archive_place})
    settings = settings.model_copy(update={"export": export})
    with (
        suppress(OtherExporter),
        closing(opened_to_read(settings)) as log,
        exporter_of(settings, log, place) as exporter,
    ):
        while (step := exporter.step()) is not None and step.is_full:
            pass


def _record(archived: Archived, place: ExportPlace) -> dict[str, Any]:
    return {
        "archive": place.address(),
        "position": archived.seam,
        "position_before": archived.before,
        "rows_left": archived.left,
        "rows_left_in_all": archived.left_in_all,
        "rows_stayed": archived.stayed,
        "states": archived.states,
    }


@contextmanager
def _explained() -> Iterator[None]:
    """What it means for the user that rows stay."""
    try:
        yield
    except RowsStay as error:
        remedy = "What had left before stays whole. Check: poste log verify, poste verify"
        raise Stop(Exit.UNSAFE, f"no more rows leave: {error}", remedy) from error
    except SeamRefused as error:
        remedy = "See: poste log verify"
        raise Stop(Exit.UNSAFE, f"the seam of the log cannot be used: {error}", remedy) from error
    except ExportUnavailable as error:
        remedy = "Nothing leaves without it; run it again when it is there."
        raise Stop(Exit.UNREACHABLE, f"the archive cannot be used: {error}", remedy) from error
    except ExportDamaged as error:
        remedy = "Nothing leaves. See: poste verify"
        raise Stop(Exit.UNSAFE, f"the archive is damaged: {error}", remedy) from error
    except ExportError as error:
        raise Stop(Exit.UNSAFE, str(error), "See: poste log verify") from error
