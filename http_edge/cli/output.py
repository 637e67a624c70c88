"""The output of commands: tables or JSON on stdout, progress on stderr, files that options name.

Control characters in text from elsewhere (a server, a log) are escaped, so that it cannot drive the
terminal.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeAlias

import click
from rich.cells import cell_len
from rich.console import Console
from rich.progress import Progress
from rich.text import Text

from http_edge.server.exits import Exit, Stop, escaped
from http_edge.server.status_files import of_databases

ProgressBar: TypeAlias = Callable[[str, int], Callable[[int], None]]
"""Makes a bar from a title and a total; the bar is called with how much is done."""
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, not tables.")
_GAP: Final = "  "
_RULE: Final = "\u2500"
_MOVED: Final = "\u2193"


def print_json(value: object) -> None:
    """Print a value as JSON in ASCII."""
    click.echo(json.dumps(value, indent=2, default=str))


def can_print(text: str) -> bool:
    """Can stdout encode every character of this text?"""
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows under columns; columns of numbers are aligned right.

    A value is never broken: if it is too long for its column, an arrow takes its place, and the
    value is printed whole on a line below the row, where it can be copied. If not even the heads
    fit beside each other, each row is printed as a record of names and values.
    """
    console = Console()
    heads = [escaped(column) for column in columns]
    values = [list(row) for row in rows]
    console.print(Text(title, style="bold"))
    console.print()
    if not values:
        console.print(" none\n")
    elif sum(map(cell_len, heads)) <= _room(console, heads):
        _print_rows(console, heads, values)
    else:
        for row in values:
            _print_rows(console, ["", ""], [*zip(heads, row, strict=True)])


def _print_rows(console: Console, heads: Sequence[str], values: Sequence[Sequence[object]]) -> None:
    lines = [[_cell(value) for value in row] for row in values]
    widths = _widths(heads, lines, _room(console, heads))
    right = [
        all(row[index] is None or type(row[index]) in {int, float} for row in values)
        for index in range(len(heads))
    ]
    if any(heads):
        _print_line(console, heads, widths, right, "bold")
        rule = _RULE if can_print(_RULE) else "-"
        console.print(f" {rule * (sum(widths) + len(_GAP) * (len(widths) - 1))}")
    for cells in lines:
        fits = [cell_len(cell) <= width for cell, width in zip(cells, widths, strict=True)]
        moved = _MOVED if can_print(_MOVED) else "v"
        shown = [cell if fit else moved for cell, fit in zip(cells, fits, strict=True)]
        _print_line(console, shown, widths, right)
        for cell, fit in zip(cells, fits, strict=True):
            if not fit:
                console.print(Text(f"   {cell}"), soft_wrap=True)
    console.print()


def _room(console: Console, heads: Sequence[str]) -> int:
    """The width of a line of the terminal without the gaps between these columns."""
    return console.width - 1 - len(_GAP) * (len(heads) - 1)


def _widths(heads: Sequence[str], lines: Sequence[Sequence[str]], room: int) -> list[int]:
    """The widths of the columns within ``room``: as wide as needed, with the widest cut first."""
    least = [max(cell_len(head), 1) for head in heads]
    widths = [
        max([least[index], *(cell_len(line[index]) for line in lines)])
        for index in range(len(heads))
    ]
    while sum(widths) > room and widths != least:
        widest = max(range(len(widths)), key=lambda i: (widths[i] > least[i], widths[i]))
        left = room - sum(widths) + widths[widest]
        sizes = [cell_len(line[widest]) for line in lines]
        widths[widest] = max([least[widest], *(size for size in sizes if size <= left)])
    return widths


def _print_line(
    console: Console,
    cells: Sequence[str],
    widths: Sequence[int],
    right: Sequence[bool],
    style: str = "",
) -> None:
    """Print one line of a table; ``right`` says which columns are aligned right."""
    padded = []
    for cell, width, is_right in zip(cells, widths, right, strict=True):
        space = " " * (width - cell_len(cell))
        padded.append(space + cell if is_right else cell + space)
    console.print(Text(f" {_GAP.join(padded)}".rstrip(), style=style), soft_wrap=True)


def print_databases(title: str, records: Iterable[Mapping[str, Any]], *, as_json: bool) -> None:
    """Print the records of each database of a log: together as JSON, else each when it is made."""
    if as_json:
        print_json(of_databases(list(records)))
        return
    for record in records:
        print_record(title, record)


def counted(number: int, noun: str) -> str:
    """A number with its noun, in the plural if needed."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def print_record(title: str, record: Mapping[str, object]) -> None:
    """Print one record as a table of names and values."""
    print_table(title, ["", ""], record.items())


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar on stderr within the block, only on a terminal; yield the function that moves it.

    Its arguments are the amount done and the total.
    """
    with _bars() as bars:
        task = bars.add_task(title, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)


@contextmanager
def progress_bars() -> Iterator[ProgressBar]:
    """Show bars on stderr within the block, only on a terminal."""
    with _bars() as bars:

        def add(title: str, total: int) -> Callable[[int], None]:
            task = bars.add_task(title, total=total)
            return lambda done: bars.update(task, completed=done)

        yield add


def _bars() -> Progress:
    console = Console(stderr=True)
    return Progress(console=console, transient=True, disable=not console.is_terminal)


def _cell(value: object) -> str:
    match value:
        case None | "" | []:
            return "-"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.3f}".rstrip("0").rstrip(".")
        case _:
            return escaped(value)


def write_file(path: Path, content: bytes, option: str) -> None:
    """Write the file that this option names; if the disk is full, leave what is there as it is.

    It is written where it is: one that took its place would have other rights, and be unknown to
    hard links and open descriptors (``/dev/stdout``); a mounted file has no other place.

    Raises:
        Stop: the file cannot be written.
    """
    with _writing(path, option):
        is_new = not path.exists()
        former = path.read_bytes() if path.is_file() else b""
        try:
            path.write_bytes(content)
        except OSError:
            if is_new:
                Path(os.path.realpath(path)).unlink(missing_ok=True)
            elif former:
                path.write_bytes(former)  # its room is free again
            raise


def require_writable(path: Path, option: str) -> None:
    """Refuse a file that cannot be written, before an irreversible action; leave it as it is.

    Raises:
        Stop: the file cannot be written.
    """
    with _writing(path, option):
        if path.is_fifo():
            return  # its reader would take the end of this test for the end of the file
        is_new = not path.exists()
        # A file is opened as by ``write_file``, which reads what it has to put back.
        with path.open("a+b" if path.is_file() else "ab"):
            pass
        if is_new:
            Path(os.path.realpath(path)).unlink()


def require_folder(path: Path, option: str) -> None:
    """Make a folder for its owner alone if it is missing, and refuse one that cannot be written.

    Raises:
        Stop: the folder cannot be made or written.
    """
    with _writing(path, option):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass


@contextmanager
def _writing(path: Path, option: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Stop(
            Exit.USAGE,
            f"{path} cannot be written: {error.strerror or error}",
            f"Name a place that this user can write to with {option}.",
        ) from error
