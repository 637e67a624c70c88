"""Several envelopes of one message of DIDComm v2, until when they are of use, and from when."""

from __future__ import annotations

from typing import Any

import pytest

from actors.core.commands import QueryQueue, QueueEnvelopes, SetQueuePolicy
from actors.core.decision import Accepted
from actors.core.forwarded import DELAYED_MAX
from actors.core.leases import HELD_BACK, Lease
from actors.core.limits import IdentityLimits
from actors.core.message_queue import lapsed_messages
from actors.core.refusals import Refusal
from actors.core.replies import EnvelopeDelivered, EnvelopeQueued, EnvelopesWaiting, Refused
from actors.core.sessions import LiveMode
from eventstore.log.events import (
    MessageExpirySet,
    MessageQueued,
    MessagesDelivered,
    MessagesRemoved,
    QueueRefused,
)
from tests.unit.actors.didcomm import KEY, Agent, agent, removal
from tests.unit.actors.given import NOW_MS, NOW_S, content, context

BASE: dict[str, Any] = {"at_ms": NOW_MS, "command": b"c" * 16}
FULL = Refusal.RECIPIENT_QUEUE_FULL


def queued(message_id: str, payload: bytes, key: str = KEY) -> MessageQueued:
    fresh_id, _, number = message_id.partition(".")
    return MessageQueued(
        **BASE,
        message_id=message_id,
        protocol="didcomm/v2",
        sender_did="",
        recipient_key=key,
        payload=content(payload, fresh_id, int(number or 0)),
    )


@pytest.mark.parametrize("endpoint", ["", "https://me.example"])
def test_all_envelopes_of_a_message_are_queued_in_its_order(endpoint: str) -> None:
    me = agent(endpoint)
    accepted = me.do(QueueEnvelopes(KEY, [b"1", b"22", b"333"], 2), fresh_id="id")
    assert accepted == Accepted(
        EnvelopeQueued("id.2", outbound=bool(endpoint)),
        [queued("id.0", b"1"), queued("id.1", b"22"), queued("id.2", b"333")],
        EnvelopesWaiting(),
    )
    assert me.take() == ["id.0", "id.1", "id.2"]
    assert [m.is_v2 for m in me.state.messages.values()] == [True] * 3


def test_one_envelope_has_the_plain_id() -> None:
    accepted = agent().do(QueueEnvelopes("", [b"own"], 2), fresh_id="id")
    assert isinstance(accepted, Accepted)
    assert accepted.events == [queued("id", b"own", key="")]


def test_a_message_that_is_sent_again_queues_nothing_twice() -> None:
    me = agent()
    first = me.do(QueueEnvelopes(KEY, [b"1", b"2"]), fresh_id="id")
    again = me.do(QueueEnvelopes(KEY, [b"1", b"2"]))
    assert isinstance(first, Accepted)
    assert first.reply == EnvelopeQueued("id.1", outbound=False)
    assert again == Accepted(EnvelopeQueued("id.1", outbound=False, is_repeat=True))


def test_an_unknown_name_and_a_stranger_look_alike() -> None:
    assert agent().do(QueueEnvelopes("x", [b"1"])) is Refusal.KEY_UNKNOWN
    assert Agent().do(QueueEnvelopes("x", [b"1"])) is Refusal.KEY_UNKNOWN
    assert Agent().do(QueueEnvelopes("", [b"1"])) is Refusal.NOT_CONNECTED


@pytest.mark.parametrize(
    ("limits", "refusal"),
    [
        (IdentityLimits(queue_messages_max=3, queue_sender_share_max=1.0), FULL),
        (IdentityLimits(queue_bytes_max=5, queue_sender_share_max=1.0), FULL),
        (IdentityLimits(queue_messages_max=6), FULL),
        (IdentityLimits(queue_bytes_max=10), FULL),
        (IdentityLimits(message_bytes_max=2), Refusal.MESSAGE_TOO_LARGE),
    ],
)
def test_all_or_none_has_room(limits: IdentityLimits, refusal: Refusal) -> None:
    me = agent(keys=(KEY, "other"))
    me.queue(b"0", key=KEY)
    began = QueueRefused(**BASE, recipient_key=KEY, reason=refusal.value)
    command = QueueEnvelopes(KEY, [b"1", b"2", b"333"])
    assert me.do(command, limits=limits) == Accepted(Refused(refusal), [began])
    assert me.do(command, limits=limits) is refusal
    assert len(me.state.messages) == 1


def test_each_of_several_counts_in_the_share_of_its_name_from_the_first_on() -> None:
    me, limits = agent(), IdentityLimits(queue_messages_max=4)
    assert isinstance(me.do(QueueEnvelopes(KEY, [b"1", b"2"]), limits=limits), Accepted)
    refused = me.do(QueueEnvelopes("", [b"1", b"2", b"3"]), limits=limits, command=b"d" * 16)
    assert isinstance(refused, Accepted)
    assert refused.reply == Refused(FULL)


def test_the_owners_own_rules_count_them_too() -> None:
    me = agent()
    me.do(SetQueuePolicy(messages_max=2))
    refused = me.do(QueueEnvelopes(KEY, [b"1", b"2", b"3"]))
    assert isinstance(refused, Accepted)
    assert refused.reply == Refused(FULL)
    assert isinstance(me.do(QueueEnvelopes(KEY, [b"1", b"2"])), Accepted)


# Until when ---------------------------------------------------------------------------------


def test_what_has_expired_is_not_queued() -> None:
    me = agent()
    assert me.do(QueueEnvelopes(KEY, [b"1"], expires_at_s=NOW_S)) is Refusal.MESSAGE_EXPIRED
    assert me.state.messages == {}


def test_a_message_leaves_when_its_senders_time_is_over() -> None:
    me = agent()
    me.do(QueueEnvelopes(KEY, [b"1", b"2"], expires_at_s=NOW_S + 10), fresh_id="a")
    me.do(QueueEnvelopes(KEY, [b"3"], expires_at_s=NOW_S + 5), fresh_id="b", command=b"d" * 16)
    me.queue(b"stays", key=KEY)
    assert lapsed_messages(me.state, context(NOW_MS + 4_999)) is None
    first = lapsed_messages(me.state, context(NOW_MS + 5_000))
    assert first is not None
    assert (first.message_ids, first.reason) == (["b"], "expired")
    me.record(first)
    assert lapsed_messages(me.state, context(NOW_MS + 9_999)) is None
    second = lapsed_messages(me.state, context(NOW_MS + 10_000))
    assert second is not None
    assert second.message_ids == ["a.0", "a.1"]
    me.record(second)
    assert me.state.expiring == {}
    assert me.state.expires_first_s == 0
    assert len(me.state.messages) == 1
    assert lapsed_messages(me.state, context(NOW_MS + 10**9)) is None


def test_the_expiry_is_stored_with_the_messages() -> None:
    accepted = agent().do(QueueEnvelopes(KEY, [b"1", b"2"], expires_at_s=NOW_S + 1), fresh_id="a")
    assert isinstance(accepted, Accepted)
    assert accepted.events[2:] == [
        MessageExpirySet(**BASE, message_ids=["a.0", "a.1"], expires_at_s=NOW_S + 1)
    ]


def test_what_was_removed_does_not_expire_and_the_rest_does() -> None:
    me = agent()
    for number in range(3):
        command = QueueEnvelopes(KEY, [b"x"], expires_at_s=NOW_S + 1 + number)
        me.do(command, fresh_id=f"{number}", command=b"%d" % number * 16)
    me.do(removal("0"))
    assert me.state.expires_first_s == NOW_S + 2
    gone = lapsed_messages(me.state, context(NOW_MS + 10_000))
    assert gone is not None
    assert gone.message_ids == ["1", "2"]


def test_both_an_age_and_an_expiry_end_a_message_once() -> None:
    me, limits = agent(), IdentityLimits(queue_age_s_max=5)
    me.do(QueueEnvelopes(KEY, [b"1"], expires_at_s=NOW_S + 5), fresh_id="a")
    gone = lapsed_messages(me.state, context(NOW_MS + 6_000, limits=limits))
    assert isinstance(gone, MessagesRemoved)
    assert gone.message_ids == ["a"]


# From when ----------------------------------------------------------------------------------


def test_a_delayed_message_is_held_back_for_its_time() -> None:
    me = agent()
    accepted = me.do(QueueEnvelopes(KEY, [b"1", b"2"], delay_ms=500), fresh_id="a")
    assert isinstance(accepted, Accepted)
    assert accepted.notice is None
    assert set(me.leases.values()) == {Lease(HELD_BACK, NOW_MS + 500)}
    assert me.take() == []
    assert me.standing(QueryQueue()).available == 0
    me.leases.clear()
    assert me.take() == ["a.0", "a.1"]


def test_delayed_messages_take_nothing_of_what_may_be_handed_out() -> None:
    me, limits = agent(), IdentityLimits(leased_max=1)
    me.do(QueueEnvelopes(KEY, [b"1", b"2"], delay_ms=500), fresh_id="a")
    (now,) = me.queue(b"now", key=KEY)
    assert me.take(at={"limits": limits}) == [now]


def test_so_many_messages_are_held_back_and_those_beyond_come_without_a_delay() -> None:
    """Commands for the queue look at each, so their number must not be up to strangers."""
    me = agent()
    for number in range(DELAYED_MAX - 1):
        me.do(
            QueueEnvelopes(KEY, [b"1"], delay_ms=500),
            fresh_id=f"held-{number}",
            command=number.to_bytes(16, "big"),
        )
    me.do(QueueEnvelopes(KEY, [b"1", b"2"], delay_ms=500), fresh_id="now", command=b"n" * 16)
    me.do(QueueEnvelopes(KEY, [b"1"], delay_ms=500), fresh_id="last", command=b"l" * 16)
    me.do(QueueEnvelopes(KEY, [b"1"], delay_ms=500), fresh_id="too", command=b"t" * 16)
    assert me.take() == ["now.0", "now.1", "too"]


# Live mode ----------------------------------------------------------------------------------

LIVE = LiveMode("edge-0", "phone", 0, 30_000, 1_000)


def test_one_envelope_goes_to_the_live_session_as_it_is_queued() -> None:
    me = agent()
    accepted = me.do(QueueEnvelopes(KEY, [b"1"], expires_at_s=NOW_S + 9), fresh_id="a", live=LIVE)
    assert isinstance(accepted, Accepted)
    assert list(map(type, accepted.events)) == [MessageQueued, MessageExpirySet, MessagesDelivered]
    assert isinstance(accepted.notice, EnvelopeDelivered)


def test_several_and_delayed_ones_do_not_and_the_next_waits_behind_them() -> None:
    me = agent()
    several = me.do(QueueEnvelopes(KEY, [b"1", b"2"]), live=LIVE)
    assert isinstance(several, Accepted)
    assert several.notice == EnvelopesWaiting()
    behind = me.do(QueueEnvelopes(KEY, [b"3"]), live=LIVE, command=b"d" * 16)
    assert isinstance(behind, Accepted)
    assert behind.notice == EnvelopesWaiting()


def test_a_delayed_one_does_not_hold_up_what_comes_after_it() -> None:
    me = agent()
    me.do(QueueEnvelopes(KEY, [b"1"], delay_ms=500), live=LIVE)
    behind = me.do(QueueEnvelopes(KEY, [b"2"]), live=LIVE, command=b"d" * 16)
    assert isinstance(behind, Accepted)
    assert isinstance(behind.notice, EnvelopeDelivered)


def test_nothing_passes_what_waits_for_the_live_session_behind_a_delayed_one() -> None:
    me = agent()
    me.do(QueueEnvelopes(KEY, [b"1", b"2"]), live=LIVE)
    me.do(QueueEnvelopes(KEY, [b"3"], delay_ms=500), live=LIVE, command=b"d" * 16)
    behind = me.do(QueueEnvelopes(KEY, [b"4"]), live=LIVE, command=b"e" * 16)
    assert isinstance(behind, Accepted)
    assert behind.notice == EnvelopesWaiting()
