"""States are what they were after the archive has lost what nothing needs any more."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from actors.archive.archived_states import fold_again
from eventstore.log.event_log import EventLog
from eventstore.log.events import QueueRefused, topics_of
from eventstore.parquet.files import ExportPlace
from http_edge.settings.settings import Settings
from tests.export.leaving import (
    KEYS,
    assert_whole,
    leave,
    log,
    place,
    prune,
    settings_of,
    states_of,
    streams_of,
)
from tests.export.samples import OWNER, exported_log, whole_log
from tests.export.test_across_the_seam import _of_earlier_release
from tests.histories import LIMITS, Act, History
from tests.log.raw_sql import run_sql

__all__ = ["log", "place"]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_of(tmp_path / "data")


def test_a_new_release_makes_a_state_anew_whose_newest_row_was_pruned(
    settings: Settings, log: EventLog, place: ExportPlace
) -> None:
    """What a queue refused is needed until it accepts again; the state does not move on by that."""
    history = History(log)
    history.play([])
    history.queue_envelope(Act(0, 0, 1, 0))
    history.remove(Act(0, 0, 40, 0))
    for _ in range(LIMITS.identity.queue_messages_max + 1):
        history.queue_envelope(Act(0, 0, 1, 0))
    leave(log, place)
    refused = next(row for row in whole_log(log) if row.topic in topics_of(QueueRefused))
    archived = log.load_archived_state(UUID(bytes=refused.stream))
    assert archived is not None
    assert archived.version == refused.version
    history.set_policy(Act(0, 0, 1, 1))
    history.commit()
    leave(log, place)
    streams = streams_of(log)
    states = states_of(log, streams)
    assert prune(log, place)
    assert refused.position not in {row.position for row in exported_log(place)}
    _of_earlier_release(log)
    run_sql(settings.log_dsn, "DELETE FROM snapshots")
    fold_again(log, place, KEYS, OWNER.mediator_did)
    assert states_of(log, streams) == states
    assert_whole(log, settings.log_dsn)
