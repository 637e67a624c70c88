"""What cannot be undone needs a consent: on a terminal, or by --yes."""

from __future__ import annotations

import os
import pty
import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest

from http_edge.crypto.mediator_keys import load_or_create
from http_edge.server.exits import Exit
from tests.unit.cli.conftest import Run, answering, data_dir_of

DID = "did:x:y"
ANSWERS = {"/queues": (200, b'{"known": true, "queues": []}')}
"""No order is answered: a command that gave one would end as unreachable."""
FORMS = (["queue", "purge"], ["identities", "erase"])


@pytest.fixture
def data_dir(tmp_path: Path) -> Iterator[str]:
    load_or_create(tmp_path / "mediator-keys.json")
    with answering(ANSWERS) as listen:
        yield data_dir_of(tmp_path, listen)


@pytest.mark.parametrize("form", FORMS)
def test_without_a_terminal_the_remedy_is_named_and_nothing_is_done(
    run: Run, data_dir: str, monkeypatch: pytest.MonkeyPatch, form: list[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", StringIO("y\n"))
    ran = run(*form, DID, "--data-dir", data_dir)
    assert (ran.code, ran.out) == (Exit.USAGE, "")
    assert "nothing was done" in ran.err
    assert "--yes" in ran.err


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("answer", "code"), [("n", Exit.USAGE), ("y", Exit.UNREACHABLE)])
def test_an_answer_decides_and_no_is_no_interrupt(
    run: Run,
    data_dir: str,
    monkeypatch: pytest.MonkeyPatch,
    form: list[str],
    answer: str,
    code: Exit,
) -> None:
    terminal, program = pty.openpty()
    os.write(terminal, f"{answer}\n".encode())
    with os.fdopen(program) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        ran = run(*form, DID, "--data-dir", data_dir)
    os.close(terminal)
    assert (ran.code, ran.out) == (code, "")
    assert ("nothing was done" in ran.err) == (answer == "n")
