"""A sender without the answer "accepted" sends the same bytes again: they wait once."""

from __future__ import annotations

from actors.core.commands import QueueEnvelopes, RemoveMessages
from actors.core.decision import Accepted
from actors.core.evolve import from_snapshot, to_snapshot
from actors.core.identity import RECENT_MAX
from actors.core.replies import EnvelopeQueued
from tests.unit.actors.didcomm import KEY, agent

FIRST, SECOND = b"1" * 16, b"2" * 16


def queued(decision: object) -> tuple[str, int]:
    """The id that a sender is answered, and how many events were stored for it."""
    assert isinstance(decision, Accepted)
    assert isinstance(decision.reply, EnvelopeQueued)
    return decision.reply.message_id, len(decision.events)


def test_a_retry_makes_no_second_message_and_gets_the_first_answer() -> None:
    me = agent()
    assert queued(me.do(QueueEnvelopes(KEY, [b"x"]), command=FIRST, fresh_id="a")) == ("a", 1)
    assert queued(me.do(QueueEnvelopes(KEY, [b"x"]), command=FIRST, fresh_id="b")) == ("a", 0)
    assert list(me.state.messages) == ["a"]


def test_a_retry_is_known_when_the_first_is_gone_already() -> None:
    me = agent()
    me.do(QueueEnvelopes(KEY, [b"x"]), command=FIRST, fresh_id="a")
    me.do(RemoveMessages(["a"], "acknowledged"))
    assert queued(me.do(QueueEnvelopes(KEY, [b"x"]), command=FIRST, fresh_id="b")) == ("a", 0)
    assert not me.state.messages


def test_a_retry_is_known_by_whichever_key_it_finds_its_owner() -> None:
    me = agent(keys=(KEY, "other"))
    me.do(QueueEnvelopes(KEY, [b"x"]), command=FIRST, fresh_id="a")
    assert queued(me.do(QueueEnvelopes("other", [b"x"]), command=FIRST, fresh_id="b")) == ("a", 0)


def test_the_same_content_sent_anew_is_another_message() -> None:
    me = agent()
    me.do(QueueEnvelopes(KEY, [b"x"]), command=FIRST, fresh_id="a")
    assert queued(me.do(QueueEnvelopes(KEY, [b"x"]), command=SECOND, fresh_id="b")) == ("b", 1)


def test_answers_of_the_mediator_are_no_retries_of_one_another() -> None:
    me = agent()
    me.do(QueueEnvelopes("", [b"x"]), command=FIRST, fresh_id="a")
    assert queued(me.do(QueueEnvelopes("", [b"y"]), command=FIRST, fresh_id="b")) == ("b", 1)


def test_a_retry_is_known_across_a_snapshot() -> None:
    me = agent()
    me.do(QueueEnvelopes(KEY, [b"x"]), command=FIRST, fresh_id="a")
    state = from_snapshot(to_snapshot(me.state))
    assert state is not None
    me.state = state
    assert queued(me.do(QueueEnvelopes(KEY, [b"x"]), command=FIRST, fresh_id="b")) == ("a", 0)


def test_only_the_latest_are_remembered() -> None:
    me = agent()
    for number in range(RECENT_MAX + 1):
        command = number.to_bytes(16, "big")
        me.do(QueueEnvelopes(KEY, [b"x"]), command=command, fresh_id=f"id-{number}")
    assert len(me.state.recent) == RECENT_MAX
    first, second = bytes(16), (1).to_bytes(16, "big")
    assert queued(me.do(QueueEnvelopes(KEY, [b"x"]), command=second, fresh_id="b")) == ("id-1", 0)
    assert queued(me.do(QueueEnvelopes(KEY, [b"x"]), command=first, fresh_id="a")) == ("a", 1)
