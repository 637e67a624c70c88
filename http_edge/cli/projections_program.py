"""``poste rebuild``, ``report``, and of ``audit`` what reads much: the program ``projections``.

It is a program of its own, so that the mediator needs neither Spark nor Java. It understands the
arguments itself and calls itself by the name that was typed.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Final

import click

from http_edge.server.exits import Exit, Stop

SUMMARIES: Final = {
    "rebuild": "Rebuild every table from an export alone, as of now or of any time.",
    "report": "Write a page of figures and plots from an export.",
}
_RUN: Final = "from projections.__main__ import projections; projections(prog_name='poste')"
_BY_SIGNAL: Final = 128  # a process that signal n ended: 128 + n, as shells have it


def projections_command(name: str) -> click.Command:
    """The command of this name; it takes all arguments, ``--help`` too, as they are."""
    return program_command(name, SUMMARIES[name])


def program_command(name: str, summary: str, *groups: str) -> click.Command:
    """A command of the program, in these groups of it; see ``projections_command``."""

    def run(arguments: Sequence[str]) -> None:
        run_program([*groups, name, *arguments])

    return click.Command(
        name,
        context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
        add_help_option=False,
        callback=run,
        help=summary,
        params=[click.Argument(["arguments"], nargs=-1, type=click.UNPROCESSED)],
    )


def answer_of_program(arguments: Sequence[str]) -> tuple[int, bytes]:
    """Exit code and output of the program ``projections`` with these arguments.

    Raises:
        Stop: Spark is not installed.
    """
    command = _command(arguments)
    with subprocess.Popen(command, stdout=subprocess.PIPE) as program:  # noqa: S603 - as above
        try:
            answer, _ = program.communicate()
        except BaseException:
            program.terminate()
            raise
    return program.returncode, answer


def run_program(arguments: Sequence[str]) -> None:
    """Run the program ``projections`` with these arguments; it reads and writes as we do.

    Raises:
        Exit: with its exit code, if that is not 0.
        Stop: Spark is not installed.
    """
    with subprocess.Popen(_command(arguments)) as program:  # noqa: S603 - ours; nothing else is run
        try:
            code = program.wait()
        except BaseException:
            program.terminate()
            raise
    if code:
        raise click.exceptions.Exit(code if code > 0 else _BY_SIGNAL - code)


def _command(arguments: Sequence[str]) -> list[str]:
    if find_spec("pyspark") is None:
        raise Stop(
            Exit.USAGE,
            "Spark is not installed here: a mediator runs without it.",
            "Install the package as poste-restante[spark], or use the image with Spark.",
        )
    return [sys.executable, "-c", _RUN, *arguments]
