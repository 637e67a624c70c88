"""Commands of ``poste`` beside a mediator, in this process: a new one takes longer than they do.

That a process of its own does the same is shown by ``tests/unit/cli/test_main.py``.
"""

from __future__ import annotations

import json
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

from http_edge.cli.main import main
from http_edge.server.exits import Exit


class Ended(NamedTuple):
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str


def ended(*arguments: str | Path) -> Ended:
    """Run a command to its end; one at a time, for all write to the same place."""
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as end:
            code = end.code
    assert isinstance(code, int)
    return Ended(int(code), out.getvalue(), err.getvalue())


def poste(*arguments: str | Path, code: int = Exit.OK) -> str:
    """What a command says, which has to end with this code."""
    done = ended(*arguments)
    assert done.code == code, done.out + done.err
    return done.out


def poste_json(*arguments: str | Path) -> dict[str, Any]:
    """What a command with ``--json`` says."""
    found: dict[str, Any] = json.loads(poste(*arguments, "--json"))
    return found
