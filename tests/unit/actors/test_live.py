"""What goes to a live session as it is queued, and what it has to fetch."""

from __future__ import annotations

from typing import Any

import pytest

from actors.core.commands import QueueEnvelopes
from actors.core.decision import Accepted, Leasing
from actors.core.leases import Lease
from actors.core.limits import IdentityLimits
from actors.core.refusals import Refusal
from actors.core.replies import (
    DeliveredMessage,
    EnvelopeDelivered,
    EnvelopeQueued,
    EnvelopesWaiting,
    Notice,
)
from actors.core.sessions import LiveMode
from eventstore.log.events import MessageQueued, MessagesDelivered
from tests.unit.actors.didcomm import KEY, Agent, agent, removal
from tests.unit.actors.given import NOW_MS, content, delivery

BASE: dict[str, Any] = {"at_ms": NOW_MS, "command": b"c" * 16}
SINCE = agent().state.version
PHONE = LiveMode("edge-0", "phone", SINCE, lease_ms=5_000, bytes_max=10)


def queued(me: Agent, payload: bytes, **at: Any) -> Notice | None:
    """Queue an envelope; the notice of it."""
    command = me.state.version.to_bytes(16)
    decision = me.do(QueueEnvelopes(KEY, [payload]), **({"live": PHONE, "command": command} | at))
    assert isinstance(decision, Accepted)
    return decision.notice


def is_pushed(me: Agent, payload: bytes = b"x", **at: Any) -> bool:
    return isinstance(queued(me, payload, **at), EnvelopeDelivered)


def test_a_live_session_gets_a_message_in_the_transaction_that_queues_it() -> None:
    me = agent()
    decision = me.do(QueueEnvelopes("", [b"hello"]), live=PHONE)
    assert isinstance(decision, Accepted)
    assert isinstance(decision.reply, EnvelopeQueued)
    message_id = decision.reply.message_id
    assert decision.events == [
        MessageQueued(
            **BASE,
            message_id=message_id,
            protocol="didcomm",
            sender_did="",
            recipient_key="",
            payload=content(b"hello", message_id),
        ),
        MessagesDelivered(**BASE, message_ids=[message_id], channel="live"),
    ]
    assert decision.leasing == Leasing([message_id], Lease("phone", NOW_MS + 5_000))
    message = DeliveredMessage(message_id, "", b"hello", NOW_MS)
    assert decision.notice == EnvelopeDelivered("phone", message)
    assert list(me.state.messages) == [message_id]


def test_without_a_session_that_has_gone_live_and_fetched_a_message_is_only_notified() -> None:
    for live in (LiveMode(), LiveMode("edge-0", "phone", SINCE)):
        assert queued(agent(), b"x", live=live) == EnvelopesWaiting()


def test_nothing_passes_a_message_that_waits_for_the_session() -> None:
    me = agent()
    assert queued(me, b"1", live=LiveMode()) == EnvelopesWaiting()
    assert not is_pushed(me)
    assert len(me.take("phone", live=True, at={"live": PHONE})) == 2
    assert is_pushed(me)


def test_what_waited_before_the_live_mode_holds_nothing_up() -> None:
    me = agent()
    me.queue(b"old")
    assert is_pushed(me, live=LiveMode("edge-0", "phone", me.state.version, 5_000, 10))


def test_a_session_holds_so_many_messages_and_the_rest_waits() -> None:
    bounds: dict[str, Any] = {"limits": IdentityLimits(live_in_flight_max=2)}
    me = agent()
    assert [is_pushed(me, **bounds) for _ in range(3)] == [True, True, False]
    bounds = {"limits": IdentityLimits(leased_max=1)}
    me = agent()
    assert [is_pushed(me, **bounds) for _ in range(2)] == [True, False]


def test_a_session_holds_so_many_bytes_but_never_less_than_one_message() -> None:
    me = agent()
    assert is_pushed(me, b"x" * 50)
    assert not is_pushed(me, b"x")
    me = agent()
    assert [is_pushed(me, b"x" * 5) for _ in range(3)] == [True, True, False]


def test_what_others_hold_leaves_room_for_the_session() -> None:
    me = agent()
    me.queue(b"1", b"2" * 9)
    assert len(me.take("laptop")) == 2
    assert is_pushed(me, b"x" * 9)


def test_what_senders_delay_takes_no_room_of_the_session() -> None:
    me = agent()
    me.do(QueueEnvelopes(KEY, [b"1"], delay_ms=500), fresh_id="later")
    assert is_pushed(me, limits=IdentityLimits(leased_max=1))


@pytest.mark.parametrize("is_removed", [True, False])
def test_what_is_acknowledged_makes_room(*, is_removed: bool) -> None:
    me = agent()
    bounds: dict[str, Any] = {"limits": IdentityLimits(live_in_flight_max=1)}
    assert is_pushed(me, **bounds)
    if is_removed:
        me.do(removal(*me.state.messages))
    assert is_pushed(me, **bounds) is is_removed


@pytest.mark.parametrize(
    ("implicit", "is_refused"), [("", True), ("phone", True), ("laptop", False)]
)
def test_implicit_pickup_goes_on_beside_a_live_session_only_if_it_began_later(
    implicit: str, *, is_refused: bool
) -> None:
    me = agent()
    me.queue(b"x")
    decision = me.do(delivery("laptop", implicit=True), live=PHONE, implicit=implicit)
    assert (decision is Refusal.LIVE_ELSEWHERE) is is_refused


def test_a_session_is_notified_once_all_sessions_together_hold_less_than_they_may() -> None:
    me, at = agent(), {"limits": IdentityLimits(leased_max=2), "live": PHONE}
    me.queue(b"1", b"2", b"3")
    held = me.take("laptop", at=at)
    assert len(held) == 2
    assert me.take("phone", live=True, after_version=1, at=at) == []
    for message_id, notice in zip(held, [EnvelopesWaiting(), None], strict=True):
        removed = me.do(removal(message_id), **at)
        assert isinstance(removed, Accepted)
        assert removed.notice == notice


def test_a_message_that_is_sent_twice_is_pushed_once() -> None:
    me = agent()
    answered = [queued(me, b"x", command=b"once" * 4) for _ in range(2)]
    assert (type(answered[0]), answered[1]) == (EnvelopeDelivered, None)
    assert len(me.state.messages) == 1
