"""Fixtures: a log of its own for each test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from eventstore.log.event_log import EventLog
from eventstore.stores.open_log import open_log
from tests.unit.actors.given import HandClock


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EventLog]:
    with closing(open_log(f"sqlite:{tmp_path}/log.db")) as log:
        yield log
