"""Runs the program ``projections``, with Spark, for ``poste rebuild``, ``report`` and others.

It is a separate program, so that the mediator needs neither Spark nor Java. ``rebuild`` and
``report`` parse their arguments there, and show the name that was typed in their messages.
``poste audit`` and ``poste verify --live`` ask the program and print its answer.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from importlib.util import find_spec
from typing import Any, Final, NoReturn

import click

from http_edge.server.exits import Exit, Stop

SUMMARIES: Final = {
    "rebuild": "Rebuild every table from an export, as of now or of any earlier time.",
    "report": "Write a page of figures and plots from an export.",
}
_RUN: Final = """
import signal
signal.signal(signal.SIGINT, signal.SIG_DFL)
from projections.program import projections
from projections.spark.session import end_with_stdin, interrupted
signal.signal(signal.SIGINT, interrupted)
end_with_stdin()
projections(prog_name="poste")
"""
"""An interrupt during the imports ends the program without a traceback. Its stdin is a pipe, whose
end says that this process has ended, also if it was killed."""
PROGRAM: Final = (sys.executable, "-c", _RUN)
_NEEDED: Final = ("pyspark", "matplotlib", "jinja2")
"""What the program imports, whichever command it runs, that the mediator does not need."""
_BY_SIGNAL: Final = 128  # a process that signal n ended: 128 + n, as shells have it


def spark_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command options for Spark, and pass it ``spark``, the arguments of the program."""

    @click.option("--master", help="Spark master, e.g. local[2]; else all cores of this machine.")
    @click.option(
        "--memory-mib", help="Heap of the Java that Spark starts.", type=click.IntRange(512)
    )
    @wraps(command)
    def run(*args: Any, master: str | None, memory_mib: int | None, **options: Any) -> Any:
        where = [] if master is None else ["--master", master]
        memory = [] if memory_mib is None else ["--memory-mib", str(memory_mib)]
        return command(*args, spark=[*where, *memory], **options)

    return run


def projections_command(name: str) -> click.Command:
    """The command of this name, which passes all arguments on, also ``--help``."""
    return click.Command(
        name,
        context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
        add_help_option=False,
        callback=lambda arguments: run_program([name, *arguments]),
        help=SUMMARIES[name],
        params=[click.Argument(["arguments"], nargs=-1, type=click.UNPROCESSED)],
    )


def answer_of_program(arguments: Sequence[str]) -> tuple[int, bytes]:
    """Run the program ``projections`` with these arguments; return its exit code and output.

    Raises:
        Stop: Spark, or what the program needs with it, is not installed.
    """
    with _running(arguments, stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        answer = program.stdout.read()
        program.wait()
    return _as_shells_have_it(program.returncode), answer


def run_program(arguments: Sequence[str]) -> None:
    """Run the program ``projections`` with these arguments, on our own stdout.

    Raises:
        Exit: with the program's exit code, if that is not 0.
        Stop: Spark, or what the program needs with it, is not installed.
    """
    with _running(arguments) as program:
        code = program.wait()
    if code:
        raise click.exceptions.Exit(_as_shells_have_it(code))


@contextmanager
def _running(
    arguments: Sequence[str], stdout: int | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run the program within the block; at its end the program and its Java have ended.

    In the block its stdin stays open: the program would be interrupted.
    """
    require_program()
    command = [*PROGRAM, *arguments]
    with (
        raised_if_terminated(),
        subprocess.Popen(  # noqa: S603 - nothing else
            command, stdin=subprocess.PIPE, stdout=stdout
        ) as program,
    ):
        try:
            yield program
        except BaseException:
            # If a terminal has interrupted the program as well, it ignores this signal.
            program.send_signal(signal.SIGINT)
            program.wait()
            raise


@contextmanager
def raised_if_terminated() -> Iterator[None]:
    """Let SIGTERM end the block by an exception, so that what the block has made is removed.

    Raises:
        Exit: the signal came; with the exit code that shells give to it.
    """
    before = signal.signal(signal.SIGTERM, _terminated)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminated(number: int, _frame: object) -> NoReturn:
    raise click.exceptions.Exit(_BY_SIGNAL + number)


def _as_shells_have_it(code: int) -> int:
    return code if code >= 0 else _BY_SIGNAL - code


def require_program() -> None:
    """Refuse to go on without what the program ``projections`` needs.

    Raises:
        Stop: Spark, or what the program needs with it, is not installed.
    """
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise Stop(
            Exit.UNREACHABLE,
            f"Spark is not installed here, or not whole (missing: {', '.join(missing)});"
            " the mediator itself does not need it.",
            "Install it where the source of poste is: pip install --constraint constraints.txt"
            " '.[spark]'. Or use the image with Spark.",
        )
