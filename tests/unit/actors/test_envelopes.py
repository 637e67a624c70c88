"""Envelopes are handed out on lease, live or not, and leave by removal or age alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace
from typing_extensions import override

from actors.core.commands import (
    Command,
    Connect,
    EndLive,
    Listen,
    PurgeQueue,
    QueryQueue,
    QueueEnvelopes,
    QueueMessage,
    ReleaseLeases,
    SetQueuePolicy,
    StartLive,
)
from actors.core.decide import decide
from actors.core.decision import Accepted, DeliveryRefs, Leasing
from actors.core.evolve import from_snapshot, to_snapshot
from actors.core.identity import QueuedMessage
from actors.core.leases import Lease
from actors.core.limits import IdentityLimits
from actors.core.message_queue import lapsed_messages
from actors.core.refusals import Refusal
from actors.core.replies import Done, EnvelopeDelivered, EnvelopeQueued, EnvelopesWaiting
from actors.core.sessions import LiveMode
from eventstore.log.events import (
    MessagesDelivered,
)
from tests.unit.actors.didcomm import FRIEND, Agent, agent, on_both_protocols, removal, removed
from tests.unit.actors.given import (
    NOW_MS,
    connection,
    context,
    delivery,
)

BASE: dict[str, Any] = {"at_ms": NOW_MS, "command": b"c" * 16}
QUERY = QueryQueue()


# Handing out --------------------------------------------------------------------------------


def test_what_is_handed_out_is_recorded_leased_and_still_waits() -> None:
    me = agent()
    ids = me.queue(b"one", b"two")
    decision = me.do(delivery("phone", lease_ms=5))
    assert isinstance(decision, Accepted)
    assert decision.events == [MessagesDelivered(**BASE, message_ids=ids, channel="pickup/2.0")]
    assert decision.leasing == Leasing(ids, Lease("phone", NOW_MS + 5))
    assert decision.notice is None
    assert list(me.state.messages) == ids


def test_the_oldest_comes_first_up_to_the_limit() -> None:
    me = agent()
    ids = me.queue(b"1", b"2", b"3")
    assert me.take(limit=2) == ids[:2]
    assert me.take(limit=2) == ids[2:]
    assert me.take(limit=2) == []
    assert agent().take() == []


def test_a_limit_of_none_hands_out_none() -> None:
    me = agent()
    me.queue(b"1")
    assert me.take(limit=0) == []
    assert me.take(limit=-1) == []


def test_nothing_that_is_leased_is_offered_to_another_session() -> None:
    me = agent()
    ids = me.queue(b"1", b"2")
    assert me.take("phone", limit=1) == ids[:1]
    assert me.take("laptop") == ids[1:]
    assert me.take("laptop") == me.take("phone") == []
    me.leases.clear()
    assert me.take("laptop") == ids


def test_a_delivery_has_a_size_but_never_less_than_one_message() -> None:
    me = agent()
    ids = me.queue(b"12", b"34", b"567", b"8" * 50, b"9")
    assert me.take(bytes_max=4) == ids[:2]
    assert me.take(bytes_max=4) == ids[2:3]
    assert me.take(bytes_max=4) == ids[3:4]
    assert me.take(bytes_max=4) == ids[4:]


def test_below_the_least_that_is_wanted_nothing_is_handed_out_or_leased() -> None:
    me = agent()
    ids = me.queue(b"1", b"2")
    assert me.take(at_least=3, limit=3) == []
    assert me.leases == {}
    ids += me.queue(b"3")
    assert me.take(at_least=3, limit=3) == ids


def test_the_least_that_is_wanted_does_not_wait_for_what_would_not_fit() -> None:
    me = agent()
    ids = me.queue(b"12", b"34", b"56")
    assert me.take(at_least=5, limit=5, bytes_max=4) == ids[:2]


def test_only_what_came_after_a_version_is_handed_out_when_asked_so() -> None:
    me = agent()
    before = me.queue(b"1", b"2")
    version = me.standing(StartLive("edge-0", "phone")).version
    assert me.take(after_version=version) == []
    after = me.queue(b"3", b"4")
    assert me.take(after_version=version) == after
    assert me.take() == before


def test_one_key_alone_is_served_when_it_is_named() -> None:
    me = agent(keys=("a", "b"))
    one, two = me.queue(b"1", key="a"), me.queue(b"2", key="b")
    own = me.queue(b"3")
    assert me.take(recipient_key="c") == []
    assert me.take(recipient_key="b") == two
    assert me.take(recipient_key="") == own
    assert me.take() == one


def test_a_search_for_one_key_is_charged_for_the_others_that_wait_and_not_for_a_full_queue() -> (
    None
):
    """A wallet that asks for each of its recipients in turn pays for short queues as before."""
    me = agent(keys=("a", "b"))
    me.queue(b"1", key="a")
    picked = delivery(recipient_key="a", lease_ms=0)

    def looked_at(command: Command) -> int:
        decision = me.do(command)
        assert isinstance(decision, Accepted)
        return decision.looked_at

    by_ids = replace(picked, message_ids=["id"])
    commands = picked, by_ids, QueryQueue("a"), QueryQueue()
    assert [looked_at(one) for one in commands] == [0, 0, 0, 0]
    me.queue(*[b"2"] * 5, key="b")
    assert [looked_at(one) for one in commands] == [10, 5, 5, 0]
    assert looked_at(QueryQueue("c")) == 0
    in_turn = replace(picked, waits_for_turn=True)
    large = decide(me.state, in_turn, replace(context(target=me.did), page_bytes_max=0))
    assert isinstance(large, Accepted)
    assert large.looked_at == 10


class _NotSearched(dict[str, Any]):
    """Finds by id, and refuses to be gone through."""

    def values(self) -> Any:
        raise AssertionError("searched")

    items = __iter__ = __reversed__ = values


def test_envelopes_among_messages_of_decentrl_are_found_without_a_look_at_these() -> None:
    """Thousands may wait before one envelope and behind it, for a single owner."""
    me, live = on_both_protocols(), LiveMode("edge-0", "phone", 0, 30_000, 1_000)
    before, _ = me.do(QueueMessage(FRIEND, b"1")), me.queue(b"2")
    behind = me.do(QueueMessage(FRIEND, b"3"))
    assert isinstance(before, Accepted)
    assert isinstance(behind, Accepted)
    (envelope,) = (i for i, message in me.state.messages.items() if message.is_envelope)
    me.state.messages = _NotSearched(me.state.messages)
    assert me.standing(QueryQueue()).messages == 1
    of_key = me.do(QueryQueue(""))
    assert isinstance(of_key, Accepted)
    assert of_key.looked_at == 0
    decision = me.do(delivery("phone", lease_ms=5))
    assert isinstance(decision, Accepted)
    assert decision.leasing == Leasing([envelope], Lease("phone", NOW_MS + 5))
    pushed = me.do(QueueEnvelopes("", [b"4"]), live=live)
    assert isinstance(pushed, Accepted)
    assert isinstance(pushed.notice, EnvelopeDelivered)
    assert me.standing(removal(envelope)).messages == 1


def test_the_owners_age_finds_old_envelopes_without_a_look_at_messages_of_decentrl() -> None:
    """It is compared before every command, also one of a stranger."""
    me = on_both_protocols()
    me.do(SetQueuePolicy(age_s_max=60))
    me.do(QueueMessage(FRIEND, b"1"))
    (old,) = me.queue(b"2")
    me.state.messages = _NotSearched(me.state.messages)
    for waited_ms, gone in ((60_000, None), (60_001, [old])):
        at = context(NOW_MS + waited_ms, limits=IdentityLimits(queue_age_s_max=0))
        expired = lapsed_messages(me.state, at)
        assert (None if expired is None else expired.message_ids) == gone


def test_a_snapshot_leaves_the_index_of_envelopes_alone_and_gives_it_again_in_order() -> None:
    me = on_both_protocols()
    one, two = me.queue(b"1"), me.queue(b"2")
    me.do(QueueMessage(FRIEND, b"3"))
    read = from_snapshot(to_snapshot(me.state))
    assert read == me.state
    assert read is not None
    assert list(read.envelopes) == list(me.state.envelopes) == one + two


def test_named_messages_come_in_the_order_named_and_again_to_the_session_that_has_them() -> None:
    me = agent()
    one, two, three = me.queue(b"1", b"2", b"3")
    assert me.take("phone", message_ids=[three, "unknown", one, three]) == [three, one]
    assert me.take("laptop", message_ids=[three, two, one]) == [two]
    assert me.take("phone", message_ids=[one, two]) == [one]
    assert me.take("phone", message_ids=[]) == []


@pytest.mark.parametrize("session", ["phone", "laptop"])
def test_what_is_only_shown_is_shown_to_any_session_and_neither_leased_nor_recorded(
    session: str,
) -> None:
    me = agent()
    one, two = me.queue(b"1", b"2")
    assert me.take("phone", limit=1) == [one]
    shown = me.do(delivery(session, lease_ms=0, message_ids=[two, one]))
    assert isinstance(shown, Accepted)
    assert isinstance(shown.reply, DeliveryRefs)
    assert shown.reply.versions == [me.state.messages[i].version for i in (two, one)]
    assert shown.reply.state == me.standing(QUERY)
    assert (shown.events, shown.leasing) == ([], None)
    assert me.take("laptop") == [two]


def test_only_so_many_messages_are_on_lease_at_a_time() -> None:
    me, limits = agent(), {"limits": IdentityLimits(leased_max=2)}
    ids = me.queue(b"1", b"2", b"3")
    assert me.take("phone", at=limits) == ids[:2]
    assert me.take("laptop", at=limits) == []
    # Who asks again for what it holds takes no further lease.
    assert me.take("phone", message_ids=ids[:2], at=limits) == ids[:2]
    me.do(removal(ids[0]))
    assert me.take("laptop", at=limits) == ids[2:]


def test_a_message_that_is_handed_out_again_keeps_its_id_and_place() -> None:
    me = agent()
    ids = me.queue(b"1", b"2", b"3")
    for _ in range(3):
        assert me.take() == ids
        me.leases.clear()
    assert [message.version for message in me.state.messages.values()] == [4, 5, 6]


# Removing -----------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", ["acknowledged", "delivered"])
def test_a_removal_ignores_unknown_and_foreign_ids(reason: str) -> None:
    me = agent()
    one, two = me.queue(b"1", b"2")
    version = me.state.messages[two].version
    decision = me.do(removal("unknown", two, "m999", two, reason=reason))
    assert isinstance(decision, Accepted)
    assert decision.events == [removed([version], two, reason=reason)]
    again = me.do(removal("unknown", two))
    assert isinstance(again, Accepted)
    assert again.events == []
    assert again.reply == decision.reply == me.standing(QUERY)
    assert list(me.state.messages) == [one]


def test_what_was_never_handed_out_or_to_another_session_may_be_removed() -> None:
    me = agent()
    one, two = me.queue(b"1", b"2")
    me.take("phone", limit=1)
    assert me.standing(removal(one, two)).messages == 0


# Age ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bound_s", "own_s", "waited_ms", "gone"),
    [
        (0, 0, 10**12, []),
        (60, 0, 60_000, []),
        (60, 0, 60_001, ["message", "envelope"]),
        (0, 60, 60_001, ["envelope"]),
        (90, 60, 60_000, []),
        (90, 60, 60_001, ["envelope"]),
        (90, 60, 90_001, ["message", "envelope"]),
        (60, 90, 60_001, ["message", "envelope"]),
    ],
)
def test_the_operators_age_is_for_all_and_the_owners_for_envelopes(
    bound_s: int, own_s: int, waited_ms: int, gone: list[str]
) -> None:
    both = on_both_protocols()
    both.do(QueueMessage(FRIEND, b"1"), fresh_id="message")
    both.do(QueueEnvelopes("", [b"2"]), fresh_id="envelope")
    both.do(SetQueuePolicy(age_s_max=own_s))
    limits = IdentityLimits(queue_age_s_max=bound_s)
    later = NOW_MS + waited_ms
    expired = lapsed_messages(both.state, context(later, limits=limits))
    if gone:
        assert expired is not None
        assert expired.message_ids == gone
        assert (expired.reason, expired.at_ms) == ("expired", later)
    else:
        assert expired is None


def test_what_came_later_stays_longer() -> None:
    me = agent()
    me.do(SetQueuePolicy(age_s_max=60))
    (old,) = me.queue(b"old")
    me.now_ms += 30_000
    me.queue(b"new")
    expired = lapsed_messages(me.state, context(me.now_ms + 30_001))
    assert expired is not None
    assert expired.message_ids == [old]


# Live mode ----------------------------------------------------------------------------------


def test_only_the_session_that_holds_the_live_mode_delivers_live() -> None:
    me = agent()
    ids = me.queue(b"1")
    for holder in ("", "laptop"):
        assert me.do(delivery("phone", live=True), live=holder) is Refusal.LIVE_ELSEWHERE
    assert me.take("phone", live=True, at={"live": "phone"}) == ids


def test_only_so_many_messages_are_in_flight_live_at_a_time() -> None:
    me, live = agent(), {"live": "phone", "limits": IdentityLimits(live_in_flight_max=3)}
    ids = me.queue(*[b"x"] * 5)
    assert me.take("laptop", limit=1) == ids[:1]
    assert me.take("phone", live=True, at=live, limit=2) == ids[1:3]
    assert me.take("phone", live=True, at=live) == ids[3:4]
    assert me.take("phone", live=True, at=live) == []
    full = me.do(removal(ids[1]), **live)
    assert isinstance(full, Accepted)
    assert full.notice == EnvelopesWaiting()
    assert me.take("phone", live=True, at=live) == ids[4:]


def test_a_live_session_that_is_full_looks_for_no_message_among_those_of_requests() -> None:
    class Unread(set[str]):
        def __iter__(self) -> Iterator[str]:
            raise AssertionError("looked at")

    me, limits = agent(), IdentityLimits(live_in_flight_max=1)
    first, _ = me.queue(b"1", b"2")
    mode = LiveMode("edge-0", "phone", leased=Unread())
    at: dict[str, Any] = {"live": mode, "limits": limits}
    assert me.take("phone", live=True, at=at) == [first]
    assert me.take("phone", live=True, at=at, after_version=1) == []


def test_a_removal_wakes_a_live_session_only_when_it_was_full() -> None:
    me, live = agent(), {"live": "phone", "limits": IdentityLimits(live_in_flight_max=2)}
    ids = me.queue(b"1", b"2")
    assert me.take("phone", live=True, at=live, limit=1) == ids[:1]
    decision = me.do(removal(ids[0]), **live)
    assert isinstance(decision, Accepted)
    assert decision.notice is None


@pytest.mark.parametrize("ending", [PurgeQueue(), removal("m4", "m5")], ids=type)
def test_what_is_gone_is_not_in_flight(ending: Command) -> None:
    """The host forgets the leases of what is gone later, or never."""
    me, live = agent(), {"live": "phone", "limits": IdentityLimits(live_in_flight_max=2)}
    assert len(me.queue(b"1", b"2")) == 2
    assert me.take("phone", live=True, at=live) == ["m4", "m5"]
    me.do(ending, **live)
    ids = me.queue(b"3", b"4")
    assert me.take("phone", live=True, at=live) == ids


def test_starting_and_ending_the_live_mode_tell_how_the_queue_stands() -> None:
    me = agent()
    me.queue(b"1")
    assert me.standing(QUERY).live is False
    assert me.standing(QUERY, live="phone").live is True
    assert me.standing(StartLive("edge-0", "phone")).live is True
    assert me.standing(EndLive("phone"), live="phone").live is False
    assert me.standing(EndLive("phone"), live="laptop").live is True
    assert me.standing(StartLive("edge-0", "phone")).messages == 1


def test_listening_and_releasing_are_done() -> None:
    assert agent().do(Listen("edge-0")) == Accepted(Done())
    assert agent().do(ReleaseLeases("phone")) == Accepted(Done(), notice=EnvelopesWaiting())
    assert Agent().do(ReleaseLeases("phone")) == Accepted(Done(), notice=EnvelopesWaiting())


def test_a_new_endpoint_is_answered_to_the_queuing_edge() -> None:
    me = agent()
    me.do(Connect(connection("https://me.example")))
    decision = me.do(QueueEnvelopes("", [b"x"]))
    assert isinstance(decision, Accepted)
    assert isinstance(decision.reply, EnvelopeQueued)
    assert decision.reply.outbound


class Looks(dict[str, QueuedMessage]):
    """Waiting messages that count how often any is looked at."""

    count = 0

    @override
    def __getitem__(self, message_id: str) -> QueuedMessage:
        self.count += 1
        return super().__getitem__(message_id)


@pytest.mark.parametrize("every", [1, 50], ids=["all remembered", "few remembered"])
def test_a_live_session_is_offered_the_oldest_it_remembers_at_a_cost_of_few(every: int) -> None:
    me = agent()
    remembered = me.queue(*[b"%d" % number for number in range(1_000)])[::every]
    live = LiveMode("edge-0", "phone", me.state.version, 60_000, 1_000_000, {*remembered})
    me.state.messages = looks = Looks(me.state.messages)
    taken = me.do(delivery(live=True, limit=5, after_version=live.since), live=live)
    assert isinstance(taken, Accepted)
    assert taken.leasing is not None
    assert list(taken.leasing.message_ids) == remembered[:5]
    assert looks.count < 100
