"""A log to audit, with events of every kind, its export and its key of pseudonyms."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

from actors.core import commands as c
from eventstore.log import events as e
from eventstore.stores.open_log import open_log
from tests.histories import AGENTS, IDENTITIES, History, random_script
from tests.projections.exports import export_log
from tests.projections.folding import Stored, fold, stored_events

SECRET = b"no command shows this"
KEY = bytes(range(40))
REFUSED = [
    e.RefusedCommands("decentrl", "queue", "DUPLICATE_NONCE", IDENTITIES[0], 3, 60_000, 70_000),
    e.RefusedCommands("decentrl", "", "INVALID_SIGNATURE", "", 9, 61_000, 119_000),
    e.RefusedCommands("didcomm", "keylist-update", "TIMESTAMP_OUT_OF_RANGE", AGENTS[0], 1, 1, 1),
]
REFUSED_LATER = [
    e.RefusedCommands("decentrl", "queue", "DUPLICATE_NONCE", IDENTITIES[0], 2, 130_000, 140_000),
]


@dataclass(frozen=True)
class SampleLog:
    """A random log of both protocols, its events and its tables, and the export of it."""

    events: list[Stored]
    queues: set[tuple[Any, ...]]
    export: Path
    rows: dict[int, dict[str, Any]] = field(init=False)
    """The rows of the exported files, by position."""

    def __post_init__(self) -> None:
        rows = ds.dataset(self.export / "events", format="parquet", exclude_invalid_files=True)
        found = {row["position"]: row for row in rows.to_table().to_pylist()}
        object.__setattr__(self, "rows", found)

    def of(self, *kinds: type[e.Event]) -> list[Stored]:
        return [stored for stored in self.events if isinstance(stored.event, kinds)]

    @property
    def last_position(self) -> int:
        return self.events[-1].position

    @property
    def last(self) -> datetime:
        return datetime.fromtimestamp(max(s.event.at_ms for s in self.events) / 1000, UTC)


@pytest.fixture(scope="session")
def sample(tmp_path_factory: pytest.TempPathFactory) -> SampleLog:
    folder = tmp_path_factory.mktemp("sample")
    with closing(open_log(f"sqlite:{folder / 'log.db'}")) as log:
        history = History(log)
        history.play(random_script(5, 400))
        history._ask(IDENTITIES[1], IDENTITIES[0], c.QueueMessage(IDENTITIES[1], SECRET))
        for edge, refused in (("edge-0", REFUSED), ("edge-1", REFUSED_LATER)):
            counted = c.CountRefusals(edge, 60_000, 140_000, refused)
            history._ask(edge, f"edge:{edge}", counted)
        history.commit()
        export_log(log, folder / "export", rows_max=300)
        return SampleLog(list(stored_events(log)), fold(log)["queues"], folder / "export")


@pytest.fixture
def key(tmp_path: Path) -> str:
    path = tmp_path / "key"
    path.write_bytes(KEY)
    path.chmod(0o600)
    return str(path)


def iso(at_ms: int) -> str:
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def ids_in(event: e.Event) -> list[str]:
    match event:
        case e.MessageQueued(message_id=message_id):
            return [message_id]
        case e.MessagesDelivered(message_ids=ids) | e.MessagesRemoved(message_ids=ids):
            return ids
        case _:
            return []
