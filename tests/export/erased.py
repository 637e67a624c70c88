"""A log whose export has contents that were erased since, and its copies."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from eventstore.log.event_log import EventLog
from eventstore.parquet.files import ExportPlace, open_place
from eventstore.parquet.write.step import Bounds
from eventstore.stores.open_log import open_log
from tests.export.leaving import read_ids
from tests.export.samples import export_all
from tests.histories import History, random_script

STEPS = Bounds(rows_max=80, bytes_max=1_000_000)


@pytest.fixture
def dsn(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path / 'log.db'}"


@pytest.fixture
def log(dsn: str) -> Iterator[EventLog]:
    with closing(open_log(dsn)) as opened:
        yield opened


def with_erased(log: EventLog, place: ExportPlace) -> History:
    """A history that was exported step by step, and erased much of it afterwards."""
    history = History(log)
    for seed in range(6):
        history.play(random_script(seed, 60))
        export_all(log, place, STEPS)
    read_ids(history)
    history.play(random_script(7, 60))
    return history


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with such a log and its export, which every test copies."""
    folder = tmp_path_factory.mktemp("erased")
    with closing(open_log(f"sqlite:{folder / 'log.db'}")) as log:
        with_erased(log, open_place(str(folder / "export")))
    return folder


@pytest.fixture
def erased(prepared: Path, tmp_path: Path) -> None:
    """Let a test begin with them."""
    shutil.copytree(prepared, tmp_path, dirs_exist_ok=True)
