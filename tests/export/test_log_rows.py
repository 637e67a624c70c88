from __future__ import annotations

import pytest

from eventstore.log.event_log import EventLog, LogRow
from tests.export.samples import Growing
from tests.log.samples import OWNER, append, message


def test_rows_read_in_bulk_are_those_of_the_log(log: EventLog) -> None:
    Growing(log).grow(5)
    contents = log.read_contents(after=0, until=log.position())
    assert contents
    expected = [
        LogRow(
            row.id,
            row.originator_id.bytes,
            row.originator_version,
            row.topic,
            row.state,
            contents.get(row.id),
        )
        for row in log.read_log(limit=1_000)
        if not isinstance(row.originator_id, str)
    ]
    assert list(log.read_rows(after=0, rows_max=1_000, bytes_max=10**9)) == expected
    assert list(log.read_rows(after=7, rows_max=3, bytes_max=10**9)) == expected[7:10]
    assert not log.read_rows(after=expected[-1].position, rows_max=3, bytes_max=10**9)


@pytest.mark.parametrize(("bytes_max", "rows"), [(0, 1), (2_999, 2), (10**6, 5)])
def test_a_bulk_of_rows_is_bounded_by_bytes_but_is_one_row_at_least(
    log: EventLog, bytes_max: int, rows: int
) -> None:
    append(log, OWNER, *[message(bytes(900)) for _ in range(5)])
    found = log.read_rows(after=0, rows_max=9, bytes_max=bytes_max)
    assert [row.version for row in found] == list(range(1, rows + 1))
