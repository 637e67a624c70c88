"""A mediator that could not notify any device does not start."""

from __future__ import annotations

from pathlib import Path

import pytest

from http_edge.server.exits import Exit
from tests.unit.cli.conftest import Run
from tests.unit.push.devices import private


@pytest.mark.parametrize(
    ("content", "code", "words"),
    [
        (b"{}", Exit.UNSAFE, "Generate new private key"),
        (None, Exit.USAGE, "No such file"),
    ],
    ids=["another file", "no file"],
)
def test_a_file_of_credentials_that_cannot_be_used_ends_the_start_with_its_name(
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    content: bytes | None,
    code: Exit,
    words: str,
) -> None:
    monkeypatch.setattr("http_edge.server.serve._start_ray", None)  # calling it is a fault
    path = tmp_path / "account.json"
    if content is not None:
        private(path, content)
    options = ("--data-dir", str(tmp_path / "data"), "--listen", "127.0.0.1:0")
    ran = run("serve", *options, "--set", f"push.fcm_credentials_file={path}")
    assert ran.code == code
    assert str(path) in ran.err
    assert words in ran.err
