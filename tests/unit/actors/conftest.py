"""Fixtures: a log of its own for each test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from eventstore.log import EventLog
from eventstore.sqlite_log import open_sqlite_log
from tests.unit.actors.given import HandClock


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EventLog]:
    with closing(open_sqlite_log(tmp_path / "log.db")) as log:
        yield log
