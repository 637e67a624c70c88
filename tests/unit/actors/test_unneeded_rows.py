"""What nothing needs of an agent's traffic, whatever came last; the rest: ``tests/export``."""

from __future__ import annotations

from uuid import UUID

import pytest
from msgspec.structs import replace

from actors.archive.unneeded_rows import fold_rest, not_needed
from actors.core.commands import (
    Command,
    Connect,
    ExpireRecords,
    GrantMediation,
    PurgeQueue,
    QueueEnvelopes,
    RemoveMessages,
    SeeAgent,
    UpdateKeylist,
)
from actors.core.identity import Identity
from actors.core.idle_agents import seen_every_s
from actors.core.limits import HostLimits, IdentityLimits
from actors.core.replies import EnvelopeQueued
from actors.host.host import Host
from eventstore.log.event_log import EventLog, LogRow
from eventstore.log.events import AgentSeen, topics_of
from eventstore.log.streams import identity_stream
from tests.unit.actors.didcomm import KEY, ME, claimed
from tests.unit.actors.given import HandClock, connection, delivery, host, run, unclaimed

ROUNDS = 20
UNSEEN = 300
"""So many that no retry of a forward of before is known any more."""
LASTS_S = 60
AGE_S = 100_000
"""After which idle agents end."""


def forwarded(owner: Host, clock: HandClock, number: int) -> str:
    lasting = QueueEnvelopes(KEY, [b"1"], expires_at_s=clock.now_ms // 1_000 + LASTS_S)
    (queued,) = run(owner, replace(unclaimed(ME, lasting), command_key=b"%16d" % number))
    assert isinstance(queued, EnvelopeQueued)
    return queued.message_id


def rows_of(log: EventLog) -> list[LogRow]:
    stored = log.read_log(limit=10_000)
    return [
        LogRow(one.id, one.originator_id.bytes, one.originator_version, one.topic, one.state)
        for one in stored
        if isinstance(one.originator_id, UUID)
    ]


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
    rows = rows_of(log)
    leaving = not_needed(lambda: [rows], 0, window_ms=60_000)
    own = [
        row.position
        for row in rows
        if row.stream == identity_stream(ME).bytes and row.position <= of_rounds
    ]
    left = [position for position in own if position not in leaving]
    assert len(left) < len(own) / 4


def test_of_the_signs_of_life_of_an_agent_the_newest_stays(log: EventLog, clock: HandClock) -> None:
    limits = IdentityLimits(idle_agents_age_s_max=AGE_S)
    owner = host(log, clock=clock, limits=HostLimits(identity=limits))
    run(
        owner,
        unclaimed(ME, Connect(connection())),
        unclaimed(ME, GrantMediation()),
        unclaimed(ME, UpdateKeylist(claimed(KEY), [])),
    )
    for _ in range(3):
        clock.now_ms += seen_every_s(AGE_S) * 1_000
        run(owner, unclaimed(ME, SeeAgent()))
    forwarded(owner, clock, 1)
    rows = rows_of(log)
    *older, newest = [row.position for row in rows if row.topic in topics_of(AgentSeen)]
    leaving = not_needed(lambda: [rows], 0, window_ms=60_000)
    assert [position in leaving for position in (*older, newest)] == [True, True, False]
    own = [row for row in rows if row.stream == identity_stream(ME).bytes]
    whole, rest = Identity(), Identity()
    for row in own:
        fold_rest(whole, row, 0)
        if row.position not in leaving:
            fold_rest(rest, row, rows[-1].position)
    assert rest == whole
