"""How a queue stands is what one would count, whatever happened before."""

from __future__ import annotations

from itertools import chain, combinations
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.core.commands import (
    AcknowledgeMessages,
    Command,
    DeliverMessages,
    PurgeQueue,
    QueryQueue,
    QueueEnvelopes,
    QueueMessage,
    RemoveMessages,
    SaveContract,
    SetQueuePolicy,
)
from actors.core.decision import Accepted, DeliveryRefs
from actors.core.leases import HELD_BACK, SET_ASIDE, Lease
from actors.core.message_queue import lapsed_messages
from actors.core.replies import QueueState
from eventstore.log.events import Event, MessageQueued, MessagesDelivered, MessagesRemoved
from tests.examples import examples
from tests.unit.actors.didcomm import ME, Agent, agent
from tests.unit.actors.given import NOW_S, context, contract, delivery, registration

FRIEND: Final = "did:x:friend"
KEYS: Final = ("a", "b")
FIGURES: Final = (
    "messages",
    "bytes",
    "available",
    "oldest_ms",
    "newest_ms",
    "last_added_ms",
    "last_delivered_ms",
    "last_removed_ms",
    "version",
)
IDS: Final = st.lists(st.integers(5, 30).map("m{}".format), max_size=5)
COMMANDS: Final = st.one_of(
    st.builds(
        QueueEnvelopes,
        st.sampled_from(["", *KEYS]),
        st.lists(st.binary(max_size=9), min_size=1, max_size=2),
    ),
    st.builds(QueueMessage, st.just(FRIEND), st.binary(max_size=9)),
    st.builds(
        delivery,
        st.sampled_from(["phone", "laptop"]),
        limit=st.integers(0, 3),
        bytes_max=st.integers(0, 20),
        recipient_key=st.sampled_from([None, "", *KEYS]),
        message_ids=st.none() | IDS,
    ),
    st.builds(RemoveMessages, IDS, st.just("acknowledged")),
    st.builds(AcknowledgeMessages, IDS),
    st.builds(SetQueuePolicy, age_s_max=st.sampled_from([None, 0, 2])),
    st.just(PurgeQueue()),
)


def both(*, with_decentrl: bool) -> Agent:
    made = agent(keys=KEYS)
    if with_decentrl:
        made.do(registration(ME, NOW_S + 9_000))
        made.do(SaveContract(contract(FRIEND, ME, NOW_S + 9_000)))
    return made


def recounted(me: Agent, history: list[Event], key: str | None) -> dict[str, int]:
    """The figures of a queue, from its events alone."""
    gone = {i for e in history if isinstance(e, MessagesRemoved) for i in e.message_ids}
    queued = [e for e in history if isinstance(e, MessageQueued)]
    waiting = [
        e
        for e in queued
        if e.message_id not in gone and e.protocol == "didcomm" and key in (None, e.recipient_key)
    ]
    times: dict[type[Event], int] = {type(event): event.at_ms for event in history}
    return {
        "messages": len(waiting),
        "bytes": sum(e.payload.size_bytes for e in waiting),
        "available": sum(e.message_id not in me.leases for e in waiting),
        "oldest_ms": min((e.at_ms for e in waiting), default=0),
        "newest_ms": max((e.at_ms for e in waiting), default=0),
        "last_added_ms": times.get(MessageQueued, 0),
        "last_delivered_ms": times.get(MessagesDelivered, 0),
        "last_removed_ms": times.get(MessagesRemoved, 0),
        "version": me.state.version,
    }


def figures(standing: QueueState) -> dict[str, int]:
    return {name: getattr(standing, name) for name in FIGURES}


@pytest.mark.parametrize("with_decentrl", [False, True])
@examples(150)
@given(steps=st.lists(st.tuples(COMMANDS, st.sampled_from([0, 1, 1_500])), max_size=25))
def test_a_queue_stands_as_one_would_count(
    steps: list[tuple[Command, int]], with_decentrl: bool
) -> None:
    me = both(with_decentrl=with_decentrl)
    history: list[Event] = []
    for number, (command, pause_ms) in enumerate(steps):
        me.now_ms += pause_ms
        expired = lapsed_messages(me.state, context(me.now_ms))
        if expired is not None:
            history.append(expired)
            me.record(expired)
        decision = me.do(command, command=bytes([number]) * 16)  # no repeat of one before
        history += decision.events if isinstance(decision, Accepted) else []
        for key in (None, "", *KEYS):
            assert figures(me.standing(QueryQueue(key))) == recounted(me, history, key)
        if isinstance(decision, Accepted):
            reply = decision.reply
            said = reply.state if isinstance(reply, DeliveryRefs) else reply
            key = command.recipient_key if isinstance(command, DeliverMessages) else None
            if isinstance(said, QueueState):
                assert said == me.standing(QueryQueue(key))


FOUR: Final = range(4)


@pytest.mark.parametrize("gone", [*chain(*(combinations(FOUR, count) for count in range(5)))])
def test_a_removal_says_how_the_queue_stands_from_then_on(gone: tuple[int, ...]) -> None:
    """Whatever it takes, from either end, and whether that was leased, delayed or neither."""
    me = both(with_decentrl=True)
    for size in FOUR:
        me.now_ms += 1_000
        me.do(QueueEnvelopes(KEYS[size % 2], [bytes(1 << size)]), command=bytes([size]) * 16)
    ids = list(me.state.envelopes)
    me.do(delivery("phone", message_ids=[ids[0], ids[2]]))
    me.leases[ids[1]] = Lease(HELD_BACK, me.now_ms + 60_000)
    me.now_ms += 1_000
    removed = me.do(RemoveMessages([ids[number] for number in gone], "acknowledged"))
    assert isinstance(removed, Accepted)
    assert removed.reply == me.standing(QueryQueue())
    assert list(me.state.envelopes) == [ids[number] for number in FOUR if number not in gone]


def test_what_a_session_sets_aside_is_counted_apart_and_held_by_no_session() -> None:
    me = both(with_decentrl=False)
    me.do(QueueEnvelopes(KEYS[0], [b"refused", b"accepted"]))
    refused, accepted = me.state.envelopes
    me.do(delivery("edge"))
    aside = me.do(delivery("edge", message_ids=[refused], sets_aside=True))
    assert isinstance(aside, Accepted)
    assert isinstance(aside.reply, DeliveryRefs)
    assert aside.reply.state == me.standing(QueryQueue())
    assert (aside.reply.state.available, aside.reply.state.set_aside) == (0, 1)
    assert {i: lease.session for i, lease in me.leases.items()} == {
        refused: SET_ASIDE,
        accepted: "edge",
    }
    again = me.do(delivery("edge", message_ids=[refused, accepted]))
    assert isinstance(again, Accepted)
    assert isinstance(again.reply, DeliveryRefs)
    assert again.reply.versions == [me.state.messages[accepted].version]
