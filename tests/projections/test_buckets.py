"""Which part of a table new events can change; without Spark."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from projections.generations.generation import GenerationTable, TableFile
from projections.rebuild.writing import (
    BUCKETS_MAX,
    EVENTS_OF_BUCKET,
    RECENT_FILES_MAX,
    Parts,
    all_parts,
    buckets_for,
    buckets_of,
    parts_to_write,
)
from projections.tables import PROJECTIONS
from projections.tables.queues import QUEUES
from projections.tables.seals import NONCES

QUEUED = "message-queued"
MANY = EVENTS_OF_BUCKET * 8


def table_of(files: Collection[TableFile], buckets: int = 8) -> GenerationTable:
    rows = sum(file.rows for file in files)
    return GenerationTable("queues", "", 0, rows, "", buckets, [], [*files])


def file_of(bucket: int, rows: int, number: int = 0) -> TableFile:
    return TableFile(f"run/bucket={bucket}/{number}", bucket, rows, 0, "", "")


BASE = [file_of(bucket, 1_000) for bucket in range(8)]


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


def test_tables_of_partitions_are_written_as_a_whole() -> None:
    assert buckets_for(NONCES, {"batch-sealed": EVENTS_OF_BUCKET * 100}) == 1
    earlier = table_of([file_of(0, 9)], 1)
    parts = parts_to_write(NONCES, earlier, {}, {"batch-sealed": MANY}, {"batch-sealed": 1})
    assert parts == all_parts(1, earlier.files)


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


def test_new_streams_change_no_file() -> None:
    parts = parts_to_write(QUEUES, table_of(BASE), {}, {QUEUED: MANY}, {QUEUED: 5_000})
    assert parts == Parts(8, set(), 1, [])
    parts = parts_to_write(
        QUEUES, table_of(BASE), {}, {QUEUED: MANY}, {QUEUED: EVENTS_OF_BUCKET * 2}
    )
    assert (parts.recent, parts.replaced) == (4, [])


def test_older_streams_change_their_bucket_and_the_recent_one() -> None:
    earlier = table_of([*BASE, file_of(8, 10)])
    new = {QUEUED: 5_000}
    parts = parts_to_write(QUEUES, earlier, {QUEUED: {3, 11, 16}}, {QUEUED: MANY}, new)
    assert (parts.buckets, parts.written) == (8, {0, 3})
    assert {file.bucket for file in parts.replaced} == {0, 3, 8}
    # Events that the table is not made of change nothing of it.
    parts = parts_to_write(QUEUES, earlier, {"event-saved": {3}}, {QUEUED: MANY}, new)
    assert parts.replaced == []


@pytest.mark.parametrize(
    ("recent", "new_events"),
    [
        ([file_of(8, 2_700)], 5_000),
        ([file_of(8, 1, number) for number in range(RECENT_FILES_MAX + 1)], 5_000),
        ([], MANY // 3),
    ],
)
def test_a_table_is_written_as_a_whole_once_much_of_it_is_recent(
    recent: list[TableFile], new_events: int
) -> None:
    earlier = table_of([*BASE, *recent])
    parts = parts_to_write(QUEUES, earlier, {}, {QUEUED: MANY * 2}, {QUEUED: new_events * 2})
    assert parts == all_parts(32, earlier.files)


@given(seed=st.integers(0, 1_000_000))
@settings(max_examples=60)
def test_the_rows_of_a_stream_always_stand_together_and_are_read_before_they_change(
    seed: int,
) -> None:
    """Rows are numbers of streams; each step has events of streams of before and of new ones."""
    chance = random.Random(seed)  # noqa: S311 - not for secrets
    buckets = 1 << chance.randint(0, 3)
    files: dict[TableFile, list[int]] = {}
    streams: set[int] = set()
    for step in range(chance.randint(2, 30)):
        begun = set(chance.sample(range(100_000), chance.choice((0, 1, 5, 200)))) - streams
        older = set(chance.sample(sorted(streams), min(len(streams), chance.choice((0, 0, 1, 9)))))
        earlier = table_of(files, buckets)
        slots: Mapping[str, set[int]] = {QUEUED: {each % BUCKETS_MAX for each in older}}
        new = {QUEUED: len(begun | older)}
        parts = parts_to_write(QUEUES, earlier, slots, {QUEUED: len(streams) + new[QUEUED]}, new)
        read = [stream for file in parts.replaced for stream in files.pop(file)]
        assert older <= set(read)
        written: dict[int, list[int]] = {}
        for stream in {*read, *begun}:
            bucket = stream % BUCKETS_MAX % parts.buckets
            place = bucket if bucket in parts.written else parts.buckets
            written.setdefault(place, []).append(stream)
        for bucket, rows in written.items():
            files[file_of(bucket, len(rows), step)] = rows
        buckets, streams = parts.buckets, streams | begun
        found = [stream for rows in files.values() for stream in rows]
        assert sorted(found) == sorted(streams)


def test_every_table_says_by_its_columns_how_it_is_shared_out() -> None:
    for table in PROJECTIONS:
        assert ("stream" in table.columns) != ("partition" in table.columns), table.name
