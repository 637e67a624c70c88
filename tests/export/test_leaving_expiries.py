"""The expiry time of a message leaves the log with the message, and stays while it waits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

import pytest

from actors.archive.archive_check import check_archive
from actors.host.stored_states import read_identity
from eventstore.log.codec import decode
from eventstore.log.event_log import EventLog, LogRow
from eventstore.log.events import MessageExpirySet
from eventstore.log.seam import seam_of
from eventstore.parquet.files import ExportPlace
from eventstore.parquet.verify.findings import ExportFinding
from http_edge.settings.settings import Settings
from tests.export.leaving import (
    assert_whole,
    leave,
    log,
    place,
    played,
    prune,
    read_ids,
    settings_of,
    states_of,
    streams_of,
)
from tests.export.samples import SIGNED_BY, exported_log, whole_log
from tests.histories import random_script

__all__ = ["log", "place"]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_of(tmp_path / "data")


def expiries_in(rows: Sequence[LogRow]) -> list[tuple[LogRow, MessageExpirySet]]:
    events = ((row, decode(row.topic, row.state)) for row in rows)
    return [(row, event) for row, event in events if isinstance(event, MessageExpirySet)]


def is_of_waiting(log: EventLog, row: LogRow, event: MessageExpirySet) -> bool:
    state, _ = read_identity(log, UUID(bytes=row.stream))
    return row.version == state.version or not state.messages.keys().isdisjoint(event.message_ids)


def faults(log: EventLog, place: ExportPlace) -> list[object]:
    seam = seam_of(log, SIGNED_BY)
    assert seam is not None
    found = check_archive(log, place, seam, SIGNED_BY, marks=None)
    return [one.fault for one in found if isinstance(one, ExportFinding)]


@pytest.mark.parametrize("seed", [11, 12])
def test_the_expiry_time_of_a_removed_message_leaves_and_that_of_a_waiting_one_stays(
    settings: Settings, log: EventLog, place: ExportPlace, seed: int
) -> None:
    history, left, stayed = played(log, seed=seed), 0, 0
    for more in range(2):
        read_ids(history)
        before, states = expiries_in(whole_log(log)), states_of(log, streams_of(log))
        leave(log, place)
        after = expiries_in(whole_log(log))
        left, stayed = left + len(before) - len(after), stayed + len(after)
        waiting = [row for row, event in before if is_of_waiting(log, row, event)]
        assert [row for row, _ in after] == waiting
        assert {row.position for row, _ in before} <= {r.position for r in exported_log(place)}
        assert states_of(log, streams_of(log)) == states
        assert_whole(log, settings.log_dsn)
        assert faults(log, place) == []
        if more:
            assert prune(log, place) > 0
            assert faults(log, place) == []
        history.play(random_script(seed + 10, 150))
    assert left
    assert stayed
