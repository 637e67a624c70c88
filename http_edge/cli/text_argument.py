"""Arguments that name something: an id or a DID is text, which a word of a shell need not be."""

from __future__ import annotations

import click


def utf8(_: click.Context, param: click.Parameter, value: str) -> str:
    """The value of an argument, as its callback.

    Raises:
        BadParameter: it is not UTF-8.
    """
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise click.BadParameter(f"{value!r} is not UTF-8", param=param) from error
    return value
