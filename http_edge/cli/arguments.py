"""Arguments that several commands have: ids and DIDs, exports, consent to what cannot be undone."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from http_edge.server.exits import Exit, Stop
from http_edge.settings.settings import Settings

_T = TypeVar("_T")
_Text = TypeVar("_Text", str, str | None)


def utf8(_: click.Context, param: click.Parameter, value: _Text) -> _Text:
    """Check that an argument is UTF-8, as its callback; a word in a shell may be any bytes.

    Raises:
        BadParameter: the argument is not UTF-8.
    """
    try:
        (value or "").encode()
    except UnicodeEncodeError as error:
        raise click.BadParameter(f"{value!r} is not UTF-8", param=param) from error
    return value


def named_place(context: click.Context, param: click.Parameter, value: _Text) -> _Text:
    """Check that an option names a folder, a URI or a log, as its callback; read ``~`` as a home.

    Raises:
        BadParameter: it is empty, which would be the working directory, begins with ``~`` of a user
            without a known home directory, or is not UTF-8.
    """
    if value == "":
        raise click.BadParameter("an empty text names no place", param=param)
    if value and value.startswith("~"):
        try:
            value = str(Path(value).expanduser())
        except RuntimeError as error:
            raise click.BadParameter(f"{value}: {error}", param=param) from error
    return utf8(context, param, value)


def parsed(
    parse: Callable[[str], _T], refused: type[Exception] = ValueError
) -> Callable[[str], _T]:
    """The type of an option whose value ``parse`` reads; the text of ``refused`` is the reason."""

    def run(text: str) -> _T:
        try:
            return parse(text)
        except refused as error:
            raise click.BadParameter(str(error)) from error

    return run


def did_argument(*, required: bool = True) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command the argument ``did``, which is refused unless it is a DID."""
    return click.argument("did", required=required, callback=_did)


def _did(context: click.Context, param: click.Parameter, did: str | None) -> str | None:
    if did is not None and not utf8(context, param, did).startswith("did:"):
        raise click.BadParameter(f"{did!r} is not a DID, which begins with did:", param=param)
    return did


source_option = click.option(
    "--from",
    "source",
    metavar="DIR|URI",
    callback=named_place,
    help="The export; else what export.to says, or the archive of data_dir.",
)


def export_named(settings: Settings, source: str | None) -> str:
    """The place of the export that ``source_option`` or the settings name.

    Raises:
        Stop: no place is named.
    """
    target = source or settings.exported_place
    if target is None:
        raise Stop(Exit.USAGE, "no export is named", "Name a folder or URI with --from.")
    return target


yes_option = click.option("--yes", is_flag=True, help="Do not ask.")


def require_consent(question: str, *, yes: bool) -> None:
    """Ask for consent on the terminal, unless ``yes`` gives it.

    Raises:
        Stop: there is no terminal to ask on, or the answer is no.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        why = "this needs consent, but there is no terminal for the question; nothing was done"
        raise Stop(Exit.USAGE, why, "Repeat the command with --yes.")
    if not click.confirm(question, err=True):
        raise Stop(Exit.USAGE, "nothing was done")
