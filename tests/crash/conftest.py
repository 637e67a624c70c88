"""Figures of the crash tests, shown at the end of the run, and a disk that can be filled."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeAlias

import pytest

Report: TypeAlias = Callable[[str], None]
DISK_BYTES: Final = 16 * 1024 * 1024
LEFT_BYTES: Final = 2 * 1024 * 1024
_FIGURES: Final = "figures"


class Ballast:
    """A file that leaves little room for others on its disk."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def take(self) -> None:
        """Take all of the disk but ``LEFT_BYTES``."""
        self._path.write_bytes(bytes(shutil.disk_usage(self._path.parent).free - LEFT_BYTES))

    def throw_off(self) -> None:
        """Give it back."""
        self._path.unlink(missing_ok=True)


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Report:
    """Takes one line of figures."""
    # A property of the test, so that it comes with its result from another process, too.
    return lambda line: request.node.user_properties.append((_FIGURES, line))


@pytest.fixture(scope="module")
def small_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A disk of a few megabytes."""
    disk = tmp_path_factory.mktemp("disk")
    options = ["-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs"]
    if subprocess.run(["mount", *options, disk], check=False, capture_output=True).returncode:
        pytest.skip("mounting a tmpfs is not permitted")
    yield disk
    subprocess.run(["umount", "--lazy", disk], check=True)


@pytest.fixture
def ballast(small_disk: Path) -> Iterator[Ballast]:
    """What takes nearly all that is left of the disk, whenever a test wants it."""
    ballast = Ballast(small_disk / "ballast")
    yield ballast
    ballast.throw_off()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    lines = [
        f"{result.nodeid.rpartition('::')[2]}: {line}"
        for results in terminalreporter.stats.values()
        for result in results
        if getattr(result, "when", None) == "call"
        for name, line in result.user_properties
        if name == _FIGURES
    ]
    if lines:
        terminalreporter.section("figures")
        terminalreporter.write("\n".join([*sorted(lines), ""]))
