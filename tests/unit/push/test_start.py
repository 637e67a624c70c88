"""A mediator that could not notify any device does not start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from http_edge.server.exits import Exit
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
    tmp_path: Path, content: bytes | None, code: Exit, words: str
) -> None:
    path = tmp_path / "account.json"
    if content is not None:
        private(path, content)
    start = "from http_edge.cli.main import main; main()"
    options = ("--data-dir", str(tmp_path / "data"), "--listen", "127.0.0.1:0")
    done = subprocess.run(
        [
            *(sys.executable, "-c", start, "serve", *options),
            *("--set", f"push.fcm_credentials_file={path}"),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == code
    assert str(path) in done.stderr
    assert words in done.stderr
    assert "starting Ray" not in done.stderr
