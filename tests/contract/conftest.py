"""Every test that takes ``log`` or ``log_url`` runs on SQLite and on a real PostgreSQL server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TypeAlias

import pytest

from eventstore.log.event_log import EventLog
from eventstore.stores.open_log import open_log

OpenLog: TypeAlias = Callable[[], EventLog]


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def log_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:{tmp_path / 'log.db'}"
    url: str = request.getfixturevalue("postgres_url")
    return url


@pytest.fixture
def open_another(log_url: str) -> Iterator[OpenLog]:
    """Opens the same log again, as another process would."""
    with ExitStack() as stack:

        def open_it() -> EventLog:
            log = open_log(log_url)
            stack.callback(log.close)
            return log

        yield open_it


@pytest.fixture
def log(open_another: OpenLog) -> EventLog:
    return open_another()
