"""All states that stand for archived rows are stored, in transactions of a bounded size."""

from __future__ import annotations

from uuid import UUID

import pytest

from actors.archive.seam_writer import NewState, SeamWriter
from actors.core.identity import FOLD
from eventstore.log.event_log import EventLog, Snapshot
from eventstore.log.seam_check import check_before
from http_edge.crypto.mediator_keys import new_keys

MIB = 1024 * 1024


@pytest.mark.parametrize(
    ("number", "size_bytes", "transactions"),
    [(0, 1, 0), (1, 1, 1), (100, 1, 1), (101, 1, 2), (3, 2 * MIB, 2)],
)
def test_every_state_is_stored_in_transactions_of_a_bounded_size(
    log: EventLog, number: int, size_bytes: int, transactions: int
) -> None:
    seams = list[str | None]()
    writer = SeamWriter(
        log, new_keys(), "did:web:mediator",
        clock=lambda: 1, after_step=lambda: seams.append(writer.text),
    )  # fmt: skip
    for version in (1, 2):
        seams.clear()
        old = dict(log.archived_states())
        new = {UUID(int=n): Snapshot(version, FOLD, bytes(size_bytes)) for n in range(number)}
        writer.store_states(NewState(one, state, old.get(one)) for one, state in new.items())
        assert len(seams) == transactions
        assert dict(log.archived_states()) == new
        assert list(check_before(log, writer.seam)) == []
