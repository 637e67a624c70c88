"""What an edge refused is recorded once, however often it is reported, and costs no memory."""

from __future__ import annotations

from typing import Final

from actors.core.commands import Command, CountRefusals
from actors.core.decision import Accepted
from actors.core.evolve import from_snapshot, to_snapshot
from actors.core.identity import RECENT_COUNTS_MAX
from actors.core.replies import Done
from eventstore.log.codec import decode
from eventstore.log.event_log import EventLog
from eventstore.log.events import RefusalsCounted, RefusedCommands
from eventstore.log.streams import identity_stream
from tests.unit.actors.didcomm import Agent
from tests.unit.actors.given import NOW_MS, host, run, unclaimed

TARGET: Final = "edge:edge-0"
REFUSED: Final = [
    RefusedCommands("decentrl", "QUERY_EVENTS", "DUPLICATE_NONCE", "did:x:1", 3, 5, 7),
    RefusedCommands("didcomm", "", "not-an-envelope", "", 2, 5, 6),
]
COUNTS: Final = CountRefusals("edge-0", 4, 8, REFUSED)


def recorded(by: Agent, command: Command, key: int = 0) -> int:
    """How many events a command is worth."""
    decision = by.do(command, command=key.to_bytes(16, "big"))
    assert isinstance(decision, Accepted)
    assert decision.reply == Done()
    return len(decision.events)


def test_counts_are_recorded_as_they_were_reported() -> None:
    edge = Agent(TARGET)
    assert edge.do(COUNTS, command=b"k" * 16) == Accepted(
        Done(),
        [
            RefusalsCounted(
                at_ms=NOW_MS,
                command=b"k" * 16,
                edge="edge-0",
                since_ms=4,
                until_ms=8,
                refusals=REFUSED,
            )
        ],
    )


def test_the_same_command_again_records_nothing() -> None:
    edge = Agent(TARGET)
    assert [recorded(edge, COUNTS, key) for key in (1, 1, 2, 1, 2)] == [1, 0, 1, 0, 0]


def test_a_retry_is_known_across_a_snapshot() -> None:
    edge = Agent(TARGET)
    recorded(edge, COUNTS, 1)
    state = from_snapshot(to_snapshot(edge.state))
    assert state is not None
    edge.state = state
    assert recorded(edge, COUNTS, 1) == 0


def test_nothing_refused_is_nothing_recorded() -> None:
    assert recorded(Agent(TARGET), CountRefusals("edge-0", 4, 8, [])) == 0


def test_the_state_of_an_edge_does_not_grow() -> None:
    edge = Agent(TARGET)
    weights = []
    for key in range(100):
        assert recorded(edge, COUNTS, key) == 1
        weights.append(edge.state.weight_bytes())
    assert edge.state.version == 100
    assert len(edge.state.recent) == RECENT_COUNTS_MAX
    assert weights[RECENT_COUNTS_MAX:] == [max(weights)] * (100 - RECENT_COUNTS_MAX)
    assert len(to_snapshot(edge.state)) < 1_000


def test_a_host_stores_counts_in_the_stream_of_the_edge_and_once(log: EventLog) -> None:
    owner = host(log)
    answered = unclaimed(TARGET, COUNTS)
    assert run(owner, answered, answered) == [Done(), Done()]
    restarted = host(log, name="host-1")
    assert run(restarted, answered) == [Done()]
    (row,) = log.read_stream(identity_stream(TARGET))
    event = decode(row.topic, row.state)
    assert isinstance(event, RefusalsCounted)
    assert event.refusals == REFUSED
