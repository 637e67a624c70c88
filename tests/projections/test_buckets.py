"""Which buckets of a table new events can change; without Spark."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projections.rebuild.writing import (
    BUCKETS_MAX,
    EVENTS_OF_BUCKET,
    buckets_for,
    buckets_of,
)
from projections.tables.queues import QUEUES
from projections.tables.registry import PROJECTIONS
from projections.tables.seals import NONCES


@pytest.mark.parametrize(
    ("events", "buckets"),
    [
        ({}, 1),
        ({"message-queued": EVENTS_OF_BUCKET - 1}, 1),
        ({"message-queued": EVENTS_OF_BUCKET}, 2),
        ({"message-queued": EVENTS_OF_BUCKET, "messages-removed": 3 * EVENTS_OF_BUCKET}, 8),
        ({"message-queued": EVENTS_OF_BUCKET * BUCKETS_MAX * 9}, BUCKETS_MAX),
        ({"event-saved": EVENTS_OF_BUCKET * 100}, 1),
    ],
)
def test_a_table_has_buckets_by_the_events_that_it_is_made_of(
    events: dict[str, int], buckets: int
) -> None:
    assert buckets_for(QUEUES, events) == buckets


def test_tables_of_partitions_have_one_bucket() -> None:
    assert buckets_for(NONCES, {"batch-sealed": EVENTS_OF_BUCKET * 100}) == 1
    assert buckets_of(NONCES, 1, {}) == {0}


@given(
    slots=st.dictionaries(
        st.sampled_from(sorted({kind for table in PROJECTIONS for kind in table.reads})),
        st.sets(st.integers(0, BUCKETS_MAX - 1)),
    ),
    power=st.integers(0, 8),
)
def test_the_bucket_of_every_stream_with_events_of_a_table_is_written_anew(
    slots: dict[str, set[int]], power: int
) -> None:
    for table in PROJECTIONS:
        if "stream" not in table.columns:
            continue
        found = buckets_of(table, 1 << power, slots)
        wanted = {slot for kind in table.reads for slot in slots.get(kind, ())}
        assert found == {slot % (1 << power) for slot in wanted}
        assert all(0 <= bucket < 1 << power for bucket in found)


def test_every_table_says_by_its_columns_how_it_is_shared_out() -> None:
    for table in PROJECTIONS:
        assert ("stream" in table.columns) != ("partition" in table.columns), table.name
