"""The sums over queues in PostgreSQL after queues have left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from eventstore.log.event_log import EventLog, QueueDepth
from eventstore.read_models import queue_depths
from eventstore.stores.open_log import open_log
from eventstore.stores.postgres_log import PostgresStore
from tests.log.raw_sql import run_sql
from tests.log.samples import OTHER, OWNER, OWNER_DID

pytestmark = pytest.mark.postgres


@pytest.fixture
def log(postgres_url: str) -> Iterator[EventLog]:
    with closing(open_log(postgres_url)) as opened:
        yield opened


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
