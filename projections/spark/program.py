"""What all Spark commands share: their options, their progress, and how they end.

A command is a click command in a module of its own (``<name>/program.py``), with the options of
``spark_options`` and its work inside ``explaining()``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final, Self

import click
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from eventstore.parquet.errors import ExportError, ExportUnavailable
from projections.errors import UNREACHABLE, UNSAFE, ProjectionError
from projections.spark.export import AsOf
from projections.spark.pseudonyms import KeyRefused, read_key
from projections.spark.session import MEMORY_MIB

_CAUSE: Final = re.compile(r"\[[A-Z_.]+\] [^\n]*")


def point_in_log(text: str) -> AsOf:
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
    type=point_in_log,
    metavar="TIME|POSITION",
    help="Take the log as it stood then; else all of it.",
)
pseudonymise_option: Final = click.option(
    "--pseudonymise",
    "key",
    type=pseudonym_key,
    metavar="KEYFILE",
    help="Replace names by their hash under the key in this file.",
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
    """Say in one sentence what cannot be done, and end with its exit code; also a decorator.

    Raises:
        ClickException: says why, and names the file that is at fault, if it is one.
    """
    try:
        yield
    except ProjectionError as error:
        raise ended(error.exit_code, str(error)) from error
    except ExportUnavailable as error:
        raise ended(UNREACHABLE, f"the export cannot be read: {error}") from error
    except ExportError as error:
        raise ended(UNSAFE, f"the export is damaged: {error}") from error
    except (PySparkException, Py4JError) as error:
        # Mostly a file that changed after it was checked, or a target that cannot be written.
        raise ended(UNREACHABLE, cause(str(error))) from error


def ended(exit_code: int, message: str) -> click.ClickException:
    """The end of a program with this code, for this reason."""
    error = click.ClickException(message)
    error.exit_code = exit_code  # type: ignore[misc]  # click reads it from the instance
    return error


class ProgressSteps:
    """The steps of a program as a bar on stderr, if that is a terminal; a context manager."""

    def __init__(self, label: str, count: int) -> None:
        self._bar = click.progressbar(
            length=count,
            label=label,
            file=sys.stderr,
            hidden=not sys.stderr.isatty(),
            item_show_func=lambda step: step or "",
            show_pos=True,
        )

    def __enter__(self) -> Self:
        """Show the bar."""
        self._bar.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        """End its line."""
        self._bar.render_finish()

    def begin(self, step: str) -> None:
        """Show what is done now."""
        self._bar.current_item = step
        self._bar.render_progress()

    def done(self, step: str) -> None:
        """Count one more step."""
        self._bar.update(1, step)


def cause(text: str) -> str:
    """The cause in what Spark says, which names the file; the rest is the state of its threads."""
    causes: list[str] = _CAUSE.findall(text)
    return causes[-1] if causes else text.strip().splitlines()[0]
