"""Arguments for ids and DIDs: these are text, but a word in a shell may be any bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click


def utf8(_: click.Context, param: click.Parameter, value: str) -> str:
    """Check that an argument is UTF-8, as its callback; return its value.

    Raises:
        BadParameter: the argument is not UTF-8.
    """
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise click.BadParameter(f"{value!r} is not UTF-8", param=param) from error
    return value


def did_argument(*, required: bool = True) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command the argument ``did``, which is refused unless it is a DID."""
    return click.argument("did", required=required, callback=_did)


def _did(context: click.Context, param: click.Parameter, did: str | None) -> str | None:
    if did is not None and not utf8(context, param, did).startswith("did:"):
        raise click.BadParameter(f"{did!r} is not a DID, which begins with did:", param=param)
    return did
