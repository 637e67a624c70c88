"""How a command or the server ends: exit codes, the reason and its remedy on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import IntEnum
from typing import IO, Any, Final, Self, TypeAlias

import click

from eventstore.log.errors import LogDamaged, LogOfLaterRelease, LogUnfinished

_RESTORE: Final = (
    "If this file is the log, stop the mediator, and restore the log from its export or a backup"
    " into a new directory: deploy/runbooks/restore.md."
)


class Exit(IntEnum):
    """How a command ended; each with the sentence that ``poste --help`` shows."""

    means: str

    def __new__(cls, code: int, means: str) -> Self:
        """A member: its code, and its meaning beside it."""
        member = int.__new__(cls, code)
        member._value_ = code
        member.means = means
        return member

    OK = 0, "Done."
    FINDING = 1, "Done, but the check found something wrong, or its subject does not exist."
    USAGE = 2, "The command line or a setting is wrong, or consent is missing; nothing was done."
    UNREACHABLE = 3, "The server, the log, an export or Spark is missing or cannot be reached."
    UNSAFE = 4, "The log, the keys, an export or tables are damaged or not safe to use."
    BUSY = 5, "Another process writes to the same place; what was done before that is kept."
    UNWRITTEN = 6, "The output has no room on its disk; what the command changes may be changed."
    INTERNAL = 70, "A fault of poste itself."


class Stop(click.ClickException):
    """The end of a command that could not do its work: why, and what to do about it."""

    def __init__(self, code: Exit, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.exit_code = int(code)  # type: ignore[misc]  # click reads it from the instance
        self.remedy = remedy

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the reason, then the remedy, on stderr."""
        click.echo(f"poste: {escaped(self.message)}", file=file or sys.stderr)
        if self.remedy:
            click.echo(f"  {escaped(self.remedy)}", file=file or sys.stderr)


Endings: TypeAlias = Mapping[type[Exception], tuple[Exit, str, str]]
"""How a command ends after an error: its exit code, the reason, in which ``{}`` stands for the text
of the error, and the remedy. The first type that fits counts."""

UNUSABLE_LOG: Final[Endings] = {
    LogDamaged: (Exit.UNSAFE, "the event log is damaged: {}", _RESTORE),
    LogUnfinished: (Exit.UNSAFE, "{}", "Run the same poste restore again: it starts over."),
    LogOfLaterRelease: (Exit.UNSAFE, "{}",
        "Use that release, or restore a backup from before its first start."),
}  # fmt: skip
"""The end of a command, or of a start, that found a log which cannot be opened as it is."""


def stop_after(error: Exception, endings: Endings) -> Stop | None:
    """The end of a command after this error; None for one that is not expected."""
    for kind, (code, reason, remedy) in endings.items():
        if isinstance(error, kind):
            return Stop(code, reason.format(error), remedy)
    return None


@contextmanager
def ended_by(endings: Endings) -> Iterator[None]:
    """End the command after an expected error within the block.

    Raises:
        Stop: in place of the error.
    """
    try:
        yield
    except tuple(endings) as error:
        stop = stop_after(error, endings)
        assert stop is not None
        raise stop from error


def escaped(value: object) -> str:
    """A value as one line of printable text."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
