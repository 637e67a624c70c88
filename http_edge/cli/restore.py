"""``poste restore``: rebuilds a mediator's log from its export, or moves it to another store."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

from eventstore.log.errors import (
    CorruptRow,
    EndsTooEarly,
    ImportRefused,
    LogDamaged,
    LogUnavailable,
    NotAsSealed,
    SeamRefused,
    TargetHoldsLog,
    UnknownTopic,
)
from eventstore.parquet.errors import ExportDamaged, ExportUnavailable
from eventstore.parquet.opening import AsOf, point_in_log
from eventstore.stores.restore import Restored
from http_edge.cli.arguments import named_place, parsed
from http_edge.cli.output import json_option, print_databases, progress_bar
from http_edge.cli.settings import with_settings
from http_edge.server.exits import Endings, Exit, ended_by
from http_edge.server.restoring import (
    LaterErasure,
    Source,
    Target,
    keys_for,
    later_erasures,
    opened_source,
    run,
    target_of,
)
from http_edge.settings.sources import Loaded

_ERASED: Final = (
    "contents that were erased since then are missing by design; a message without content"
    " leaves its queue when a client requests it"
)
_ERASE: Final = ("poste", "identities", "erase")
_REFUSED: Final = "cannot restore into the target: {}"
_ANOTHER: Final = "Name an empty data directory or database with --to."
_PERHAPS_WHOLE: Final = (
    "If a restore was interrupted at its end, that log is whole: check it with poste log verify."
    " Else, or to see who was erased later, name an empty data directory or database with --to."
)
_OF_ANOTHER_RELEASE: Final = "Restore with the release that wrote it."
_STOPPED: Final = (
    Exit.UNREACHABLE,
    "the restore stopped: {}",
    "Correct this and run the same command again: it starts over.",
)
_ENDINGS: Final[Endings] = {
    TargetHoldsLog: (Exit.USAGE, _REFUSED, _PERHAPS_WHOLE),
    ImportRefused: (Exit.USAGE, _REFUSED, _ANOTHER),
    ExportDamaged: (Exit.UNSAFE, "the export is damaged: {}",
        "Replace the file with an intact copy. For all faults: poste verify."),
    SeamRefused: (Exit.UNSAFE, "the seam of the log cannot be used: {}",
        "Name the keys of the log's mediator with --keys."),
    EndsTooEarly: (Exit.USAGE, "{}", "Name a later position with --as-of, or omit it."),
    NotAsSealed: (Exit.UNSAFE, "the source does not match its seals: {}",
        "Restore from another copy, or end before this row with --as-of."),
    UnknownTopic: (Exit.UNSAFE, "UnknownTopic: {}", _OF_ANOTHER_RELEASE),
    CorruptRow: (Exit.UNSAFE, "CorruptRow: {}", _OF_ANOTHER_RELEASE),
    LogDamaged: (Exit.UNSAFE, "the source is damaged: {}",
        "Restore from the export, or from a backup of the log."),
    ExportUnavailable: _STOPPED,
    LogUnavailable: _STOPPED,
}  # fmt: skip


@click.command()
@click.option(
    "--from",
    "origin",
    required=True,
    metavar="DIR|URI|DSN",
    callback=named_place,
    help="The export, or a log: a SQLite file or the URL of a log.",
)
@click.option(
    "--to",
    "destination",
    required=True,
    metavar="DATA-DIR|DSN",
    callback=named_place,
    help="An empty data directory, or the URL of an empty log.",
)
@click.option(
    "--keys",
    "backup",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The backup of the mediator's key file; else the one in the data directory.",
)
@click.option(
    "--archive",
    metavar="DIR|URI",
    callback=named_place,
    help="Export or archive of the log, for rows that have left it; else export.to, or archive"
    " beside its file.",
)
@click.option(
    "--as-of",
    "until",
    type=parsed(point_in_log),
    metavar="TIME|POSITION",
    help="End with the last complete transaction before this time, or up to this position.",
)
@json_option
@with_settings("data_dir")
def restore(  # noqa: PLR0913 - one for each option
    loaded: Loaded,
    *,
    origin: str,
    destination: str,
    backup: Path | None,
    archive: str | None,
    until: AsOf,
    as_json: bool,
) -> None:
    """Restore a log from its export, or move it to another store.

    Every row is checked against the seals before it is stored, and every file of an export against
    its signed manifest. Rows that have left a log are read from its archive. The new log cannot be
    opened until it is complete; an interrupted restore starts over when it is run again, unless the
    log was complete by then, which is refused as a target. Stop the mediator before you move its
    log.

    At its end it names the identities that were erased behind the end of the new log and are in it
    again, as far as the source, or an export that went on further, says so.

    With a URL as --to, --data-dir is the directory of the mediator that will use that log.
    """
    target = target_of(destination, loaded.settings.data_dir)
    started = time.monotonic()
    with ended_by(_ENDINGS):
        keys = keys_for(target, backup)
        archive = archive or loaded.settings.export.to
        with opened_source(origin, target, keys, until, archive) as source:
            end = source.last if source.until is None else source.until
            with progress_bar("Restoring") as progress:
                restored = run(source, target, keys, lambda position, _: progress(position, end))
            record = _record(source, target, restored, time.monotonic() - started)
            found, known_to = later_erasures(source, target.dsn, restored.position)
    of_target = ["--data-dir", str(target.data_dir)]
    erased = [
        {"stream": stream, "did": one.did, "next": shlex.join([*_erase(one), *of_target])}
        for stream, one in found.items()
    ]
    if as_json:
        record |= {"erased_later": erased, "erasures_known_to": known_to}
    print_databases("The log is restored", [record], as_json=as_json)
    if not as_json:
        _say_erased(erased, known_to)
    if until is not None:
        click.echo(f"poste: {_ERASED}", err=True)


def _erase(one: LaterErasure) -> list[str]:
    """The command that erases who was erased later again."""
    return [*_ERASE, one.did or "DID", *(["--foreign"] if one.is_foreign else [])]


def _say_erased(erased: Sequence[Mapping[str, Any]], known_to: int) -> None:
    """Say who was erased behind the end of the log and is in it again, and what is not known."""
    if erased:
        click.echo("The log has identities that were erased later. Once the mediator serves:")
    for one in erased:
        click.echo(f"  {one['next']}    (stream {one['stream']})")
    check = "poste identities check-receipt FILE"
    click.echo(f"Erasures behind position {known_to} are unknown here; for each receipt: {check}")


def _record(source: Source, target: Target, restored: Restored, seconds: float) -> dict[str, Any]:
    constants = source.constants
    did, shards = constants["mediator_did"], constants["shards"]
    next_step = ["poste", "serve", "--data-dir", str(target.data_dir)]
    # No log from an export has the URL, from which the DIDs of DIDComm v2 follow.
    next_step += ["--did", did, "--shards", shards, "--public-url", "URL"]
    is_elsewhere = target.dsn.startswith("postgres")
    return {
        "source": source.name,
        "source_position": source.last,
        "position": restored.position,
        "events": restored.rows,
        "seals": restored.seals,
        "streams": restored.streams,
        "identities": restored.identities,
        "mediator_did": did,
        "shards": int(shards),
        "seconds": round(seconds, 3),
        "events_per_s": round(restored.rows / seconds) if seconds else 0,
        # Without the URL of a server, which may hold a password.
        "next": shlex.join(next_step) + (" --log URL" if is_elsewhere else ""),
    }
