"""``poste invite``: an invitation to this mediator, as a URL and as a QR code.

The command needs only the data directory: it makes the invitation's id with the mediator's key, and
the server checks the id with the same key. The URL is the one that was last served from there.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from contextlib import suppress
from io import BytesIO, StringIO
from pathlib import Path
from typing import Final, get_args
from urllib.parse import urlsplit

import click
import segno

from actors.host.clock import new_id, system_clock
from http_edge.cli.arguments import parsed
from http_edge.cli.keys import existing_keys, served_url
from http_edge.cli.output import can_print, json_option, print_json, print_record, write_file
from http_edge.cli.running_mediator import exchange
from http_edge.cli.settings import with_settings
from http_edge.crypto.mediator_keys import MediatorKeys, service_seed
from http_edge.didcomm.envelopes.keys import KeyPair
from http_edge.didcomm.protocols.invitations import (
    LABEL_CHARS_MAX,
    Invitations,
    MediatorInvitation,
    Protocol,
    is_label,
)
from http_edge.dids.document import read_document
from http_edge.server.exits import Exit, Stop
from http_edge.settings.settings import Settings
from http_edge.settings.sources import DEFAULT, Loaded

_SECONDS: Final = {"": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400}
_PERIOD: Final = re.compile(r"([0-9]{1,9})([smhd]?)")
_PERIOD_S_MAX: Final = 3_650 * _SECONDS["d"]
"""Ten years; for a longer time, leave the expiry out."""
_BORDER: Final = 2
"""Light modules around a QR code; the standard has four, but few terminals are that wide."""
_PNG_SCALE: Final = 6
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})


def _period_s(text: str) -> int:
    """Read a length of time as seconds: 7d, 12h, 90m, or seconds.

    Raises:
        ValueError: the text is none, or one of more than ten years.
    """
    found = _PERIOD.fullmatch(text)
    seconds = int(found[1]) * _SECONDS[found[2]] if found else 0
    if not 0 < seconds <= _PERIOD_S_MAX:
        raise ValueError(f"{text!r} is not a period up to ten years, such as 7d, 12h, 90m")
    return seconds


def _checked_label(_: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is None or is_label(value):
        return value
    raise click.BadParameter(f"1 to {LABEL_CHARS_MAX} printable characters", param=param)


@click.command()
@click.option("--single-use", is_flag=True, help="Valid for one wallet; else for any number.")
@click.option(
    "--expires",
    metavar="PERIOD",
    type=parsed(_period_s),
    help="Expire after 7d, 12h, 90m, or seconds; else never.",
)
@click.option("--label", callback=_checked_label, help="Name that the wallet shows to its owner.")
@click.option(
    "--protocol",
    type=click.Choice(get_args(Protocol)),
    default="out-of-band",
    help="connections: for wallets that support nothing newer; out-of-band-2: only for DIDComm v2.",
)
@click.option("--png", type=click.Path(path_type=Path), help="Write the QR code to this file.")
@click.option("--qr", is_flag=True, help="Print the QR code even if the output is not a terminal.")
@click.option(
    "--long", is_flag=True, help="Put the long URL in the QR code, which a wallet can read offline."
)
@click.option(
    "--url",
    help=("Running mediator to ask for its public URL. Without this the mediator need not run."),
)
@json_option
@with_settings("data_dir", "public_url")
def invite(  # noqa: PLR0913 - one argument for each option
    loaded: Loaded,
    *,
    single_use: bool,
    expires: int | None,
    label: str | None,
    protocol: Protocol,
    png: Path | None,
    qr: bool,
    long: bool,
    url: str | None,
    as_json: bool,
) -> None:
    """Make an invitation to this mediator, as a URL and a QR code for wallets.

    A Decentrl identity registers with the id of the invitation if protocol.registration requires
    one.

    The URL is for wallets of both versions of DIDComm, unless --protocol says otherwise.

    The invitation is valid at once for every server with the same key file, which need not be
    informed. It cannot be revoked; set an expiry for strangers.

    The QR code holds a short URL, from which a wallet fetches the invitation.
    """
    settings = loaded.settings
    _check(settings)
    keys = existing_keys(settings)
    base = _public_url(loaded, keys, url)
    invitations = Invitations(
        KeyPair.from_seed(service_seed(keys)), settings.didcomm.label, f"{base}/didcomm"
    )
    expires_at_s = None if expires is None else system_clock() // 1000 + expires
    invitation = invitations.make(
        single_use=single_use, expires_at_s=expires_at_s, label=label, new_id=new_id
    )
    long_url, short_url = invitation.url(base, protocol), invitation.short_url(base, protocol)
    in_code = invitation.code_url(base, protocol) if long else short_url
    code = segno.make_qr(in_code, error="l")
    if png is not None:
        picture = BytesIO()
        code.save(picture, kind="png", scale=_PNG_SCALE)
        write_file(png, picture.getvalue(), "--png")
    if as_json:
        print_json(_record(invitation, protocol, base))
        return
    words = {
        "label": invitation.label,
        "terms": invitation.terms.in_words(),
        "protocol": protocol,
        "id": invitation.terms.id,
    }
    print_record("Invitation", words)
    click.echo(f"{long_url}\n\nShort URL, for wallets that can reach the mediator:\n{short_url}")
    if qr or sys.stdout.isatty():
        _print_code(code)


def _record(invitation: MediatorInvitation, protocol: Protocol, base: str) -> dict[str, object]:
    """The invitation as a record for programs; ``base`` is the mediator's URL."""
    terms = invitation.terms
    return {
        "id": terms.id,
        "label": invitation.label,
        "single_use": terms.single_use,
        "expires_at_s": terms.expires_at_s,
        "protocol": protocol,
        "url": invitation.url(base, protocol),
        "short_url": invitation.short_url(base, protocol),
        "invitation": invitation.message(protocol),
        "invitation_2": invitation.message("out-of-band-2"),
    }


def _check(settings: Settings) -> None:
    """Refuse to invite to a mediator that accepts no wallets; name the setting that is why."""
    didcomm = settings.didcomm
    if settings.protocol.registration == "invitation":
        return  # Decentrl identities use its id
    if not didcomm.enabled:
        raise Stop(Exit.USAGE, "didcomm.enabled is off, so no wallet can be invited")
    if didcomm.registration == "closed":
        remedy = "Set it to open, invitation or allow_list."
        raise Stop(Exit.USAGE, "didcomm.registration is closed: no wallet can connect", remedy)


def _public_url(loaded: Loaded, keys: MediatorKeys, url: str | None) -> str:
    """The URL for wallets: the one that the mediator at ``url`` names, else ``served_url``."""
    base = served_url(loaded) if url is None else _url_at(url, loaded.settings, keys)
    is_set = url is None and loaded.sources["public_url"] != DEFAULT
    if urlsplit(base).hostname in _LOOPBACK and not is_set:
        click.echo(
            f"poste: wallets can reach {base} only from this machine\n  Set --public-url to"
            " the URL at which others reach this mediator.",
            err=True,
        )
    return base


def _url_at(url: str, settings: Settings, keys: MediatorKeys) -> str:
    """The public URL that the mediator listening at ``url`` names.

    Raises:
        Stop: the mediator does not answer, or has other keys.
    """
    _, body = exchange("GET", url, "/.well-known/did.json")
    with suppress(ValueError, LookupError, TypeError, RecursionError):  # no such text
        value = json.loads(body)
        document = read_document(value["id"], value)
        endpoint = value["service"][0]["serviceEndpoint"]["uri"]
        signing_keys = {} if document is None else document.signing_keys
        if keys.signing_public in signing_keys.values() and isinstance(endpoint, str):
            return endpoint
    raise Stop(
        Exit.USAGE,
        f"{url} is not the mediator with the keys in {settings.keys_path}",
        "Name its data directory with --data-dir, its address with --url, or its public"
        " URL with --public-url.",
    )


def _print_code(code: segno.QRCode) -> None:
    """Print the QR code in half blocks, light on dark whatever colours the terminal has."""
    columns = code.symbol_size(border=_BORDER)[0]
    if columns > shutil.get_terminal_size().columns:
        note = f"poste: the QR code needs {columns} columns; widen the terminal, or use --png FILE"
        click.echo(note, err=True)
        return
    text = StringIO()
    code.terminal(out=text, border=_BORDER, compact=True)
    if not can_print(text.getvalue()):
        click.echo("poste: this terminal cannot show a QR code; use --png FILE", err=True)
        return
    for line in text.getvalue().splitlines():
        click.echo(click.style(line, fg="bright_white", bg="black"))
