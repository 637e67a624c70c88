"""What nothing needs of an agent's traffic, whatever came last; the rest: ``tests/export``."""

from __future__ import annotations

from uuid import UUID

import pytest
from msgspec.structs import replace

from actors.archive.unneeded_rows import not_needed
from actors.core.commands import (
    Command,
    Connect,
    ExpireRecords,
    GrantMediation,
    PurgeQueue,
    QueueEnvelopes,
    RemoveMessages,
    UpdateKeylist,
)
from actors.core.replies import EnvelopeQueued
from actors.host.host import Host
from eventstore.log.event_log import EventLog, LogRow
from eventstore.log.streams import identity_stream
from tests.unit.actors.didcomm import KEY, ME, claimed
from tests.unit.actors.given import HandClock, connection, delivery, host, run, unclaimed

ROUNDS = 20
UNSEEN = 300
"""So many that no retry of a forward of before is known any more."""
LASTS_S = 60


def forwarded(owner: Host, clock: HandClock, number: int) -> str:
    lasting = QueueEnvelopes(KEY, [b"1"], expires_at_s=clock.now_ms // 1_000 + LASTS_S)
    (queued,) = run(owner, replace(unclaimed(ME, lasting), command_key=b"%16d" % number))
    assert isinstance(queued, EnvelopeQueued)
    return queued.message_id


@pytest.mark.parametrize(
    "last", [PurgeQueue(), ExpireRecords(UNSEEN)], ids=lambda last: type(last).__name__
)
def test_the_traffic_of_an_agent_leaves_whatever_came_last(
    last: Command, log: EventLog, clock: HandClock
) -> None:
    """Also where that is no sign of life, and what was the last one stands far before it."""
    owner = host(log, clock=clock)
    run(
        owner,
        unclaimed(ME, Connect(connection())),
        unclaimed(ME, GrantMediation()),
        unclaimed(ME, UpdateKeylist(claimed(KEY), [])),
    )
    for number in range(ROUNDS):
        message_id = forwarded(owner, clock, number)
        run(owner, unclaimed(ME, delivery()))
        clock.now_ms += 1_000
        run(owner, unclaimed(ME, RemoveMessages([message_id], "acknowledged")))
    of_rounds = log.position()
    for number in range(ROUNDS, ROUNDS + UNSEEN):
        forwarded(owner, clock, number)
    clock.now_ms += (LASTS_S + 1) * 1_000
    run(owner, unclaimed(ME, last))
    stored = log.read_log(limit=10_000)
    rows = [
        LogRow(one.id, one.originator_id.bytes, one.originator_version, one.topic, one.state)
        for one in stored
        if isinstance(one.originator_id, UUID)
    ]
    end = rows[-1].position
    leaving = not_needed(lambda: [rows], end, 0, window_ms=60_000)
    own = [
        row.position
        for row in rows
        if row.stream == identity_stream(ME).bytes and row.position <= of_rounds
    ]
    left = [position for position in own if position not in leaving]
    assert len(left) < len(own) / 4
