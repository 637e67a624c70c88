"""What all Spark commands share: their options, and how a refusal is told.

A command is a click command in a module of its own (``<name>_program.py``), with the options of
``spark_options`` and its work inside ``explaining()``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final

import click
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from eventstore.parquet.errors import ExportError
from projections.java import JavaMissing
from projections.pseudonyms import KeyRefused, read_key
from projections.read import AsOf, NotExported
from projections.rebuild import RebuildRefused
from projections.session import MEMORY_MIB
from projections.tables import TablesDamaged

_CAUSE: Final = re.compile(r"\[[A-Z_.]+\] [^\n]*")
_REFUSED: Final = (ExportError, JavaMissing, NotExported, RebuildRefused, TablesDamaged)


def moment(text: str) -> AsOf:
    """A position of the log, or a time in ISO 8601; in UTC if it names no zone.

    Raises:
        BadParameter: the text is neither.
    """
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise click.BadParameter(
            f"{text!r} is neither a position nor a time like 2030-12-31T23:59:59Z"
        ) from error
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def pseudonym_key(path: str) -> bytes:
    """The key of the pseudonyms in a file.

    Raises:
        BadParameter: it cannot be used.
    """
    try:
        return read_key(path)
    except KeyRefused as error:
        raise click.BadParameter(str(error)) from error


as_of_option: Final = click.option(
    "--as-of",
    type=moment,
    metavar="TIME|POSITION",
    help="Take the log as it stood then; else all of it.",
)
pseudonymise_option: Final = click.option(
    "--pseudonymise",
    "key",
    type=pseudonym_key,
    metavar="KEYFILE",
    help="Replace names by their hash under the key in this file; see projections.pseudonyms.",
)


def spark_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """A command with the options of all: ``source``, ``master``, ``memory_mib``, ``as_json``."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print JSON, not tables."),
        click.option(
            "--memory-mib", default=MEMORY_MIB, show_default=True, help="Heap of local Java."
        ),
        click.option(
            "--master", help="Where Spark runs, e.g. local[2]; else all cores of this machine."
        ),
        click.option(
            "--from",
            "source",
            required=True,
            help="The export, or the place of those of all databases: a folder or a URI.",
        ),
    ):
        command = option(command)
    return command


@contextmanager
def explaining() -> Iterator[None]:
    """Tell what cannot be done in one sentence and end with exit code 1; also a decorator.

    Raises:
        ClickException: says why, and names the file if one is to blame.
    """
    try:
        yield
    except _REFUSED as error:
        raise click.ClickException(str(error)) from error
    except (PySparkException, Py4JError) as error:
        raise click.ClickException(cause(str(error))) from error


def cause(text: str) -> str:
    """The cause in what Spark says, which names the file; the rest is the state of its threads."""
    causes: list[str] = _CAUSE.findall(text)
    return causes[-1] if causes else text.strip().splitlines()[0]
