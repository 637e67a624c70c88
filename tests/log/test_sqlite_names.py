"""A name that a row of a SQLite log has lost is nowhere that earlier rows of the file were."""

from __future__ import annotations

import random
from collections.abc import Iterable
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Final

import pytest
from msgspec.structs import replace

from eventstore.log.codec import encode, state_of
from eventstore.log.event_log import Changed, ChangedRow, EventLog, QueueDepth
from eventstore.log.streams import identity_stream
from tests.log.samples import AT_MS, OTHER, OWNER, append, message
from tests.log.test_sqlite_erasure import NAME, PART_OF_NAME, found_in, named, opened, until

QUEUES: Final = 12
"""Their rows fit into one page, whatever the depths are."""
ERASED: Final = 4
NAMED: Final = 300
REDACTED: Final = 20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.db"


def depth(number: int, messages: int, *, is_erased: bool = False) -> QueueDepth:
    """The depth of a queue; the first ones have the name whose part is looked for."""
    did = f"{NAME if number < ERASED else 'did:x:another'}{number}"
    return QueueDepth(
        *(identity_stream(did), messages, 700 * messages, AT_MS if messages else None),
        did="" if is_erased else did,
    )


class Depths:
    """Saves depths as a host does, with an event in each transaction."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._versions = count(1)

    def save(self, depths: Iterable[QueueDepth]) -> None:
        event = message()
        self._log.append([encode(OTHER, next(self._versions), event)], [event], list(depths))


@pytest.mark.parametrize("changed", [Changed.OLDEST, Changed.ANYTHING])
@pytest.mark.parametrize("seed", range(10))
def test_the_name_of_an_erased_identity_whose_queue_changed_before_is_in_no_file_any_more(
    path: Path, seed: int, changed: Changed
) -> None:
    chance = random.Random(seed)  # noqa: S311 - a repeatable choice, not a secret
    with closing(opened(path)) as log:
        depths = Depths(log)
        depths.save(depth(number, 0) for number in range(QUEUES))
        for _ in range(60):
            one = depth(chance.randrange(QUEUES), chance.choice([0, 1, 200, 90_000]))
            depths.save([replace(one, changed=changed)])
        assert found_in(path, PART_OF_NAME)
        depths.save(depth(number, 0, is_erased=True) for number in range(ERASED))
    assert found_in(path, PART_OF_NAME) == []


def test_the_name_of_an_erased_queue_leaves_the_files_while_the_log_is_open(path: Path) -> None:
    with closing(opened(path)) as log:
        depths = Depths(log)
        depths.save([depth(0, 1)])
        assert found_in(path, PART_OF_NAME) == ["log.db-wal"]
        depths.save([depth(0, 0, is_erased=True)])
        until(lambda: not found_in(path, PART_OF_NAME))


def test_a_name_in_the_first_rows_of_a_log_leaves_the_file_though_they_have_moved(
    path: Path,
) -> None:
    """SQLite copies the first page of a table once it is full, and then uses it as the root."""
    with closing(opened(path)) as log:
        events = [named(number) for number in range(REDACTED)]
        append(log, OWNER, *events)
        for number in range(NAMED):
            append(log, OTHER, message(message_id=f"{number}"))
        rows = log.read_rows(after=0, rows_max=REDACTED, bytes_max=2**30)
        log.change_rows(
            [
                ChangedRow(row.stream, row.position, row.state, state_of(replace(e, sender_did="")))
                for row, e in zip(rows, events, strict=True)
            ]
        )
    assert found_in(path, PART_OF_NAME) == []
