"""``DID``: the argument of commands that ask the mediator about one identity."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from http_edge.cli.text_argument import utf8


def _checked(context: click.Context, param: click.Parameter, did: str | None) -> str | None:
    if did is not None and not utf8(context, param, did).startswith("did:"):
        raise click.BadParameter(f"{did!r} is not a DID: it begins with did:", param=param)
    return did


def did_argument(*, required: bool = True) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A command with the argument ``did``, which is refused unless it is one."""
    return click.argument("did", required=required, callback=_checked)
