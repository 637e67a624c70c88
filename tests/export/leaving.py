"""Logs whose old rows leave, and what is to be the same before and after."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from actors.archive.departure import Archived, let_rows_leave
from actors.archive.unneeded_rows import ReadRows, not_needed
from actors.core.evolve import to_snapshot
from actors.host.owned_partition import load
from actors.host.stored_states import read_identity, wrong_snapshots
from eventstore.log.event_log import EventLog
from eventstore.log.events import SEAL_TOPIC
from eventstore.log.faults import Finding
from eventstore.log.verify import Summary, verify
from eventstore.parquet.files import ExportPlace, open_place
from eventstore.parquet.write.pruning import Positions
from eventstore.parquet.write.step import Bounds
from eventstore.stores.open_log import open_log, open_store
from eventstore.stores.recorder_log import wrong_read_models
from http_edge.crypto.mediator_keys import MediatorKeys, create
from http_edge.server.archive_round import archive_once
from http_edge.settings.settings import Settings
from tests.export.samples import OWNER, SEED, SIGNED_BY, export_all, exporter, whole_log
from tests.histories import LIMITS, PARTITIONS, Act, History, random_script

KEYS = MediatorKeys(SEED, bytes(32))
LATER_MS = 4_000_000_000_000
BOUNDS = Bounds(rows_max=300, bytes_max=1_000_000)


def settings_of(data_dir: Path, **sections: Any) -> Settings:
    """The settings of a mediator whose keys are in its data directory."""
    data_dir.mkdir(exist_ok=True)
    if not (keys := data_dir / "mediator-keys.json").exists():
        create(keys, KEYS)
    return Settings(data_dir=data_dir, did=OWNER.mediator_did, shards=OWNER.shards, **sections)


def opened_as_first(settings: Settings) -> EventLog:
    """The log of the mediator with these settings, as its first start makes it."""
    opened = open_log(settings.log_dsn)
    opened.setting("mediator_did", settings.mediator_did)
    opened.setting("shards", str(settings.shards))
    return opened


@pytest.fixture
def log(settings: Settings) -> Iterator[EventLog]:
    """Such a log."""
    with closing(opened_as_first(settings)) as opened:
        yield opened


@pytest.fixture
def place(settings: Settings) -> ExportPlace:
    """Its archive."""
    return open_place(settings.archive_place)


def played(log: EventLog, acts: int = 400, seed: int = 11) -> History:
    """A log with a random history, whose host is still there."""
    history = History(log)
    history.play(random_script(seed, acts))
    return history


def read_ids(history: History) -> None:
    """Let a history read the ids that it was given, before rows leave that have them."""
    history.acknowledge_messages(Act(0, 0, 40, 0))
    history.commit()


def leave(log: EventLog, place: ExportPlace, **how: Any) -> Archived:
    """Export the rest; then let leave what may, as ``leave_for``."""
    export_all(log, place, BOUNDS)
    return leave_for(log, place, **how)


def leave_for(
    log: EventLog,
    place: ExportPlace,
    *,
    until_ms: int = LATER_MS,
    section_rows: int = 150,
    rows_max: int = 1_000,
    is_checked: bool = True,
) -> Archived:
    """Let leave what may for an archive as it is."""
    return let_rows_leave(
        log,
        place,
        KEYS,
        OWNER.mediator_did,
        until_ms=until_ms,
        window_ms=LIMITS.timestamp_window_ms,
        clock=lambda: LATER_MS,
        section_rows=section_rows,
        rows_per_step_max=rows_max,
        is_checked=is_checked,
    )


def plan(read: ReadRows, pruned_up_to: int) -> Positions:
    """What nothing needs, under the window of these histories; states in several parts."""
    window_ms = LIMITS.timestamp_window_ms
    return not_needed(read, pruned_up_to, window_ms=window_ms, streams_at_once=7)


def prune(log: EventLog, place: ExportPlace, *, until_ms: int = LATER_MS) -> int:
    """Remove from an archive what is older and nothing needs; how many rows."""
    with closing(exporter(log, place, BOUNDS)) as export:
        return export.prune(until_ms, plan)


def streams_of(log: EventLog) -> list[UUID]:
    """The streams of identities."""
    rows = whole_log(log)
    return sorted({UUID(bytes=row.stream) for row in rows if row.topic != SEAL_TOPIC})


def states_of(log: EventLog, streams: Sequence[UUID]) -> dict[UUID, bytes]:
    """What a host would make of each of these streams."""
    return {stream: to_snapshot(read_identity(log, stream)[0]) for stream in streams}


def nonces_of(log: EventLog) -> list[Any]:
    """What a new owner of each partition would know."""
    found = []
    for name in PARTITIONS:
        one = load(log, name, now_ms=LATER_MS, window_ms=LIMITS.timestamp_window_ms)
        packed = one.nonces.packed()
        keys = {
            bucket: sorted(some[i : i + 16] for i in range(0, len(some), 16))
            for bucket, some in packed.items()
        }
        found.append((one.version, one.epoch, one.digest, keys, one.nonces.forgotten_before_ms))
    return found


def faults_in(log: EventLog) -> list[str]:
    """What the check of the log finds, by kind."""
    found = verify(log, key=SIGNED_BY)
    return [one.fault.value for one in found if isinstance(one, Finding)]


def summary_of(log: EventLog) -> Summary:
    """The end of a check that finds nothing."""
    *findings, summary = verify(log, key=SIGNED_BY)
    assert findings == []
    assert isinstance(summary, Summary)
    return summary


def assert_whole(log: EventLog, dsn: str) -> None:
    """Nothing is wrong with a log, nor with what is made from it."""
    assert faults_in(log) == []
    assert list(wrong_snapshots(log)) == []
    with closing(open_store(dsn)) as store:
        assert list(wrong_read_models(store)) == []


def leave_older(settings: Settings, history: History, age_s: float = 600) -> int:
    """Let leave what is older than the last of a history by so much; the position of the seam."""
    age_s += (LATER_MS - history.now_ms) / 1000
    archive = settings.archive.model_copy(update={"rows_age_s_min": age_s})
    settings = settings.model_copy(update={"archive": archive})
    archived = archive_once(settings, is_checked=True, clock=lambda: LATER_MS)
    assert archived is not None
    return archived.seam
