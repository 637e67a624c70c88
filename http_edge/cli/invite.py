"""``poste invite``: an invitation to this mediator, as a URL and as a QR code.

It needs the key file and the settings alone, no server: an invitation is known by its id, which
the key makes and the server checks.
"""

from __future__ import annotations

import re
import shutil
import sys
from io import StringIO
from pathlib import Path
from typing import Final, get_args

import click
import segno

from actors.clock import new_id, system_clock
from http_edge.cli.output import Exit, Stop, json_option, print_json, print_record
from http_edge.cli.settings import with_settings
from http_edge.config import Settings
from http_edge.config_sources import Loaded
from http_edge.didcomm.invitations import (
    LABEL_CHARS_MAX,
    Invitations,
    Protocol,
    is_label,
)
from http_edge.didcomm.keys import service_key
from http_edge.mediator_keys import load_or_create

_SECONDS: Final = {"": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400}
_PERIOD: Final = re.compile(r"([0-9]{1,9})([smhd]?)")
_PERIOD_S_MAX: Final = 3_650 * _SECONDS["d"]
"""Ten years; what shall last longer has no expiry."""
_BORDER: Final = 2
"""Light modules around a QR code on a terminal; four are the rule, and few terminals that wide."""
_PNG_SCALE: Final = 6


class Period(click.ParamType[int]):
    """A length of time: 7d, 12h, 90m, or seconds."""

    name = "period"

    def convert(
        self, value: str | int, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Its seconds."""
        if isinstance(value, int):
            return value
        found = _PERIOD.fullmatch(value)
        seconds = int(found[1]) * _SECONDS[found[2]] if found else 0
        if not 0 < seconds <= _PERIOD_S_MAX:
            self.fail(
                f"{value!r} is not a period up to ten years, such as 7d, 12h, 90m", param, ctx
            )
        return seconds


def _checked_label(_: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is None or is_label(value):
        return value
    raise click.BadParameter(f"1 to {LABEL_CHARS_MAX} printable characters", param=param)


@click.command()
@click.option("--single-use", is_flag=True, help="For one wallet; else for any number.")
@click.option("--expires", type=Period(), help="End after 7d, 12h, 90m, or seconds; else never.")
@click.option("--label", callback=_checked_label, help="Name that the wallet shows to its owner.")
@click.option(
    "--protocol",
    type=click.Choice(get_args(Protocol)),
    default="out-of-band",
    help="connections is for wallets that know no other.",
)
@click.option("--png", type=click.Path(path_type=Path), help="Write the QR code to this file.")
@click.option("--qr", is_flag=True, help="Print the QR code where no terminal is seen, too.")
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
    as_json: bool,
) -> None:
    """Make an invitation to this mediator, as a URL and a QR code for wallets.

    It is valid for the server that has the same key file, at once and without a word to it. It
    cannot be taken back; give an expiry to what is handed to strangers.
    """
    settings = loaded.settings
    _check(settings)
    invitations = Invitations(
        service_key(load_or_create(settings.keys_path)),
        settings.didcomm.label,
        f"{settings.url}/didcomm",
    )
    expires_at_s = None if expires is None else system_clock() // 1000 + expires
    invitation = invitations.make(
        single_use=single_use, expires_at_s=expires_at_s, label=label, new_id=new_id
    )
    url = invitation.url(settings.url, protocol)
    code = segno.make_qr(url, error="l")
    if png is not None:
        code.save(str(png), kind="png", scale=_PNG_SCALE)
    if as_json:
        terms = invitation.terms
        record = {
            "id": terms.id,
            "label": invitation.label,
            "single_use": terms.single_use,
            "expires_at_s": terms.expires_at_s,
            "protocol": protocol,
            "url": url,
            "invitation": invitation.message(protocol),
        }
        print_json(record)
        return
    words = {"label": invitation.label, "terms": invitation.terms.in_words(), "protocol": protocol}
    print_record("Invitation", words)
    click.echo(url)  # on a line of its own, to be copied
    if qr or sys.stdout.isatty():
        _print_code(code)


def _check(settings: Settings) -> None:
    """Refuse to invite to what takes nobody; say what will not work for others."""
    didcomm = settings.didcomm
    if not didcomm.enabled:
        raise Stop(Exit.USAGE, "didcomm.enabled is off: there is nothing to invite to")
    if didcomm.registration == "closed":
        remedy = "Let it be open, invitation or allow_list."
        raise Stop(Exit.USAGE, "didcomm.registration is closed: nobody can connect", remedy)
    if settings.public_url is None:
        click.echo(f"poste: public_url is not set; wallets need to reach {settings.url}", err=True)


def _print_code(code: segno.QRCode) -> None:
    """The QR code in half blocks, light on dark whatever the colours of the terminal are."""
    columns = code.symbol_size(border=_BORDER)[0]
    if columns > shutil.get_terminal_size().columns:
        note = f"poste: the QR code needs {columns} columns; widen the terminal, or use --png FILE"
        click.echo(note, err=True)
        return
    text = StringIO()
    code.terminal(out=text, border=_BORDER, compact=True)
    for line in text.getvalue().splitlines():
        click.echo(click.style(line, fg="bright_white", bg="black"))
