"""What an append to PostgreSQL refuses, and the sums over queues after queues have left."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import closing

import pytest

from eventstore.log.codec import encode
from eventstore.log.errors import AppendConflict
from eventstore.log.event_log import EventLog, QueueDepth
from eventstore.log.seal import GENESIS, seal
from eventstore.log.streams import partition_stream
from eventstore.read_models import queue_depths
from eventstore.stores.open_log import open_log
from eventstore.stores.postgres_log import PostgresStore
from tests.log.raw_sql import run_sql
from tests.log.samples import AT_MS, OTHER, OWNER, OWNER_DID

pytestmark = pytest.mark.postgres


@pytest.fixture
def log(postgres_url: str) -> Iterator[EventLog]:
    with closing(open_log(postgres_url)) as opened:
        yield opened


@pytest.mark.parametrize("versions", [[2], [1, 3], [1, 2, 4]])
def test_a_seal_whose_predecessor_is_missing_is_a_conflict(
    log: EventLog, versions: list[int]
) -> None:
    stream = partition_stream("shard-0")
    *_, last = versions
    for version in versions:
        sealed = seal(
            [], [], partition="shard-0", epoch=1, at_ms=AT_MS, window_ms=1, nonces=b"",
            previous=GENESIS,
        )  # fmt: skip
        refused = pytest.raises(AppendConflict) if version == last else contextlib.nullcontext()
        with refused:
            log.append([encode(stream, version, sealed)], [sealed])
    assert [row.originator_version for row in log.read_stream(stream)] == versions[:-1]


def test_queues_that_leave_leave_the_sums(log: EventLog, postgres_url: str) -> None:
    with closing(PostgresStore(postgres_url)) as store:
        with store.writing() as session:
            depths = [QueueDepth(OWNER, 1, 7, 5, OWNER_DID), QueueDepth(OTHER, 2, 9, 5, "did:x:o")]
            queue_depths.save(session, depths)
            # As many bytes as before, and one message more.
            queue_depths.save(session, [QueueDepth(OTHER, 3, 9, 5, "did:x:o")])
        assert log.figures().queue_messages == 4
        run_sql(postgres_url, "DELETE FROM queue_depths WHERE messages = 3")
        figures = log.figures()
        assert (figures.identities, figures.queue_messages, figures.queue_bytes) == (1, 1, 7)
