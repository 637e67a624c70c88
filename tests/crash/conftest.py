"""Figures of the crash tests, shown at the end of the run, and a disk that can be filled."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeAlias

import pytest

Report: TypeAlias = Callable[[str], None]
DISK_BYTES: Final = 8 * 1024 * 1024
_FIGURES = pytest.StashKey[list[str]]()


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Report:
    """Takes one line of figures."""
    lines = request.config.stash.setdefault(_FIGURES, [])
    return lambda line: lines.append(f"{request.node.name}: {line}")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of a few megabytes."""
    disk = tmp_path / "disk"
    disk.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs"]
    if subprocess.run(["mount", *options, disk], check=False, capture_output=True).returncode:
        pytest.skip("mounting a tmpfs is not permitted")
    yield disk
    subprocess.run(["umount", "--lazy", disk], check=True)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    lines = config.stash.get(_FIGURES, [])
    if lines:
        terminalreporter.section("figures")
        terminalreporter.write("\n".join([*sorted(lines), ""]))
