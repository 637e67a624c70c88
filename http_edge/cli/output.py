"""What commands print and how they end: tables or JSON on stdout, refusals on stderr, exit codes.

Text that comes from elsewhere (a server, a log) is shown with its control characters escaped, so
that it cannot drive the terminal.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import IntEnum
from typing import IO, Any, Self

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text


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
    FINDING = 1, "Done, and something is wrong with what was checked."
    USAGE = 2, "The command line or a setting is wrong; nothing was done."
    UNREACHABLE = 3, "The server or the log cannot be reached."
    UNSAFE = 4, "The log or the keys are not safe to use as they are."
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


def unfinished(error: Exception) -> Stop:
    """The end of a command that found the log of a restore that has not come to its end."""
    remedy = "Run the same poste restore again: it begins anew and then finishes."
    return Stop(Exit.UNSAFE, str(error), remedy)


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, not tables.")


def escaped(value: object) -> str:
    """A value as one line of printable text."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def print_json(value: object) -> None:
    """Print a value as JSON in ASCII."""
    click.echo(json.dumps(value, indent=2, default=str))


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows under columns; numbers stand right."""
    console = Console()
    cells = [[_cell(value) for value in row] for row in rows]
    # Names stay searchable, but a long one in one piece would push the other columns out.
    is_short = all(len(row[0]) <= console.width // 2 for row in cells)
    table = Table(box=SIMPLE_HEAD, show_header=any(columns))
    for index, column in enumerate(columns):
        table.add_column(Text(escaped(column)), overflow="fold", no_wrap=not index and is_short)
    for row in cells:
        table.add_row(*row)
    console.print(Text(title, style="bold"))
    console.print(table)


def print_record(title: str, record: Mapping[str, object]) -> None:
    """Print one record as a table of names and values."""
    print_table(title, ["", ""], record.items())


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr within the block, on a terminal alone; told what is done and of how much."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _cell(value: object) -> Text:
    match value:
        case None:
            return Text("-")
        case bool():
            return Text("yes" if value else "no")
        case int():
            return Text(f"{value:_}", justify="right")
        case float():
            return Text(f"{value:_.3f}".rstrip("0").rstrip("."), justify="right")
        case _:
            return Text(escaped(value))
