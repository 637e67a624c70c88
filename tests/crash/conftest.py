"""Figures of the crash tests, shown at the end of the run whether they pass or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pytest

Report: TypeAlias = Callable[[str], None]
_FIGURES = pytest.StashKey[list[str]]()


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Report:
    """Takes one line of figures."""
    lines = request.config.stash.setdefault(_FIGURES, [])
    return lambda line: lines.append(f"{request.node.name}: {line}")


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    lines = config.stash.get(_FIGURES, [])
    if lines:
        terminalreporter.section("figures")
        terminalreporter.write("\n".join([*sorted(lines), ""]))
