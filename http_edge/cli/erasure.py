"""``poste identities erase``: erases an identity, and shows, writes and checks the receipt."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from eventstore.log.erasure_receipt import (
    ErasureReceipt,
    ReceiptRefused,
    RowsHaveLeft,
    check_receipt,
    erasure_of,
    sign_receipt,
    verified_receipt,
)
from eventstore.log.errors import LogError, RowsStay
from eventstore.log.name_erasure import NameErasure
from eventstore.log.public_key import PublicKey
from eventstore.log.seam import SEAM
from eventstore.log.streams import identity_stream
from http_edge.cli.arguments import did_argument, require_consent, yes_option
from http_edge.cli.keys import existing_keys
from http_edge.cli.output import (
    counted,
    json_option,
    print_databases,
    print_json,
    print_record,
    progress_bar,
    require_writable,
    write_file,
)
from http_edge.cli.public_key import public_key_option
from http_edge.cli.running_mediator import RunningMediator, unknown_identity, url_option
from http_edge.cli.settings import require_existing, with_settings
from http_edge.crypto.private_files import KeyFileRefused
from http_edge.server.exits import Exit, Stop
from http_edge.server.mediator_log import keys_of, opened_to_read
from http_edge.settings.settings import Settings
from http_edge.settings.sources import Loaded

_ANSWER_S_MAX: Final = 60.0
_FROM_BOTH: Final = "Remove names from both with: poste export compact"
_WAS_REGISTERED: Final = (
    "an agent here had registered this DID. If it is the person's own, erase the account as well,"
    " by its first DID: the did:key of its key, or the long form of this DID, leads to it."
)
_file: Final = partial(click.Path, dir_okay=False, path_type=Path)
receipt_option = click.option(
    "--receipt", "to", type=_file(), help="Write the signed receipt to this file."
)


@click.command()
@did_argument()
@click.option(
    "--foreign", is_flag=True, help="DID need not have registered here: others' data names it."
)
@yes_option
@receipt_option
@json_option
@url_option
@with_settings("data_dir", "log")
def erase(  # noqa: PLR0913 - each is one option of the command
    loaded: Loaded,
    *,
    did: str,
    foreign: bool,
    yes: bool,
    to: Path | None,
    url: str | None,
    as_json: bool,
) -> None:
    """Erase all data of the identity DID, for ever.

    Its registration, contracts, connection and keylist end at once. Its waiting items, saved events
    and public events are erased in small steps, so that other clients need not wait. The log keeps
    only that there was a message, its time and its size: names leave the rows of the log and of its
    export in about a day (at once with poste export compact, or with poste log erase-names if
    nothing is exported). Copies elsewhere stay; the guide lists them on its page about erasure
    requests.

    With --foreign DID may be one that has never registered or connected here, such as a sender to
    others: its name leaves their rows, in the same way, as soon as nothing they have needs it.
    """
    settings, records = loaded.settings, 0
    existing_keys(settings)  # they sign the receipt
    if to is not None:
        require_writable(to, "--receipt")
    require_consent(f"Erase all that {did} has here, for ever?", yes=yes)
    mediator, query = RunningMediator(settings, url), {"did": did}
    if foreign:
        query["foreign"] = "true"
    with progress_bar("Erasing") as progress:
        while True:
            answer = mediator.ask("POST", "/identities/erase", seconds_max=_ANSWER_S_MAX, **query)
            _refuse(did, answer)
            _refuse_away(did, answer)
            records += answer["records"]
            progress(records, records + 1)
            if answer["is_over"]:
                break
            query["begun"] = "true"
    if answer.get("was_registered"):
        click.echo(f"poste: {_WAS_REGISTERED}", err=True)
    try:
        found = _receipt(settings, did, to)
    except (Stop, LogError, OSError) as error:
        raise Stop(
            Exit.FINDING,
            f"{did} is erased, but the receipt could not be made: {error}",
            f"Make it with: poste identities receipt {did} --receipt FILE",
        ) from error
    _show(found, to, as_json=as_json)


@click.command()
@did_argument()
@receipt_option
@json_option
@with_settings("data_dir", "log")
def receipt(loaded: Loaded, *, did: str, to: Path | None, as_json: bool) -> None:
    """Show the receipt of the newest erasure of DID; with --receipt write it, signed."""
    existing_keys(loaded.settings)
    _show(_receipt(loaded.settings, did, to), to, as_json=as_json)


@click.command("check-receipt")
@click.argument("file", type=_file(exists=True))
@public_key_option
@json_option
@with_settings("data_dir", "log")
def check(loaded: Loaded, *, file: Path, public_key: PublicKey | None, as_json: bool) -> int:
    """Check the receipt FILE against the log: was the identity erased, and is its data gone?

    Without --public-key it must be signed with the mediator's key file. Rows that have left for the
    archive are not compared; the output says how many. Exit code 1 if another key signed it, or if
    it differs from the log.
    """
    settings = loaded.settings
    key = public_key or PublicKey(existing_keys(settings).signing_public)
    left, refused = 0, None
    try:
        left = _check_in_any(settings, verified_receipt(file.read_bytes(), key), key)
    except ReceiptRefused as error:
        refused = str(error)
    if as_json:
        print_json({"is_sound": refused is None, "refused": refused, "positions_left": left})
    elif refused is not None:
        click.echo(f"Refused: {refused}")
    elif left:
        what = f"{counted(left, 'position')}, whose rows have left for the archive"
        click.echo(f"The receipt agrees with the rows in the log. Not compared: {what}.")
    else:
        click.echo("The receipt agrees with the log.")
    return Exit.OK if refused is None else Exit.FINDING


@click.command("erase-names")
@json_option
@with_settings("data_dir", "log")
def erase_names(loaded: Loaded, *, as_json: bool) -> None:
    """Remove the names of erased identities from the rows of the log.

    Only for a log that is neither exported nor archived; for others, poste export compact removes
    names from log and export. Each name is replaced by its digest, which is what the seals cover,
    so the log still verifies. A name stays while a live record refers to it, such as a waiting
    message or a contract in force. This may run while the mediator serves, and may be interrupted
    and repeated.
    """
    settings = loaded.settings
    if settings.exported_place is not None:
        where = f"the log is exported to {settings.exported_place}"
        raise Stop(Exit.USAGE, where, _FROM_BOTH)
    require_existing(settings.log_dsn)
    for one in settings.each_database():
        _refuse_archived(one)
    records = [_names_erased(one) for one in settings.each_database()]
    print_databases("Names of erased identities have left the log", records, as_json=as_json)


def _refuse_archived(settings: Settings) -> None:
    """Refuse a log that lacks rows: their names are in an archive, which these settings lack."""
    with closing(opened_to_read(settings)) as log:
        if SEAM in log.settings():
            why = "rows have left the log for an archive, which is not where the settings say"
            raise Stop(Exit.USAGE, why, f"{_FROM_BOTH} --to PLACE")


def _names_erased(settings: Settings) -> dict[str, Any]:
    with closing(opened_to_read(settings)) as log, progress_bar("Erasing names") as progress:
        work = NameErasure(log)
        try:
            while work.step():
                progress(work.reached, work.end)
        except RowsStay as error:
            remedy = "Run this again for the remaining rows."
            raise Stop(Exit.BUSY, str(error), remedy) from error
    return {"identities": len(work.erased), "rows_changed": work.changed, "position": work.reached}


def _refuse(did: str, answer: dict[str, Any]) -> None:
    """Refuse an answer about no identity, or about a DID that speaks for the account of another."""
    if answer.get("speaks_for"):
        named = answer.get("account", "see poste audit identity DID")
        remedy = f"Erase that account by its first DID: {named}"
        raise Stop(Exit.USAGE, f"{did} belongs to the account of another DID", remedy)
    if not answer.get("known"):
        raise unknown_identity(did, answer, "If data of others names it, add --foreign.")


def _refuse_away(did: str, answer: dict[str, Any]) -> None:
    """Refuse an answer after which databases of the log do not know of the erasure."""
    if not answer.get("away"):
        return
    away = ", ".join(f"database {number}" for number in answer["away"])
    kept = f"{did} is erased, but keeps its name there"
    done = kept if answer["is_over"] else "nothing was erased"
    remedy = "Run the same command again once poste status shows that all hosts answer."
    raise Stop(Exit.UNREACHABLE, f"{away} does not answer: {done}", remedy)


def _receipt(settings: Settings, did: str, to: Path | None) -> ErasureReceipt:
    """The receipt of an erasure, from the database that has it; signed in a file if one is named.

    Raises:
        Stop: no database has it, its rows have left the log, the keys are not those of the log, or
            the file cannot be written.
    """
    stream, refused = identity_stream(did), ""
    for one in settings.each_database():
        require_existing(one.log_dsn)
        with closing(opened_to_read(one)) as log:
            try:
                keys = keys_of(one, log)
                found = erasure_of(log, stream, PublicKey(keys.signing_public))
            except KeyFileRefused as error:
                remedy = "Name the key file of this log with --set keys_file=PATH."
                raise Stop(Exit.UNSAFE, str(error), remedy) from error
            except RowsHaveLeft as error:
                remedy = "Restore log and archive into a new directory, and run the command there."
                raise Stop(Exit.FINDING, str(error), remedy) from error
            except ReceiptRefused as error:
                refused = str(error)
                continue
        if to is not None:
            write_file(to, sign_receipt(found, keys.sign), "--receipt")
        return found
    remedy = "Erase it, or finish its erasure, with: poste identities erase DID"
    raise Stop(Exit.FINDING, refused, remedy)


def _check_in_any(settings: Settings, found: ErasureReceipt, key: PublicKey) -> int:
    """Check a receipt against each database, one of which has the erasure.

    Returns:
        How many of its positions have left that database.

    Raises:
        ReceiptRefused: no database agrees with it.
    """
    refused = ReceiptRefused("there is no log")
    for one in settings.each_database():
        require_existing(one.log_dsn)
        with closing(opened_to_read(one)) as log:
            try:
                return check_receipt(log, found, key)
            except ReceiptRefused as error:
                refused = error
    raise refused


def _show(receipt: ErasureReceipt, to: Path | None, *, as_json: bool) -> None:
    record: dict[str, Any] = {
        "stream": receipt.stream,
        "reason": receipt.reason,
        "begun": receipt.begun,
        "ended": receipt.ended,
        "contents": sum(receipt.contents.values()),
    }
    if as_json:
        print_json(record | {"receipt": None if to is None else str(to)})
    else:
        print_record("Erased", record | receipt.contents)
