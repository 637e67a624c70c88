"""Runs the command line as the entry point does, with its exit code and what it printed."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import pytest

from http_edge.cli.main import main
from http_edge.config_reference import PREFIX


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


Run: TypeAlias = Callable[..., Ran]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """``run("keys", "--json")`` in a directory of its own, without settings, on a wide screen."""
    monkeypatch.chdir(tmp_path)
    for variable in [name for name in os.environ if name.startswith(PREFIX)]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("COLUMNS", "200")

    def call(*args: str) -> Ran:
        with pytest.raises(SystemExit) as ended:
            main(args)
        captured = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Ran(int(ended.value.code), captured.out, captured.err)

    return call
