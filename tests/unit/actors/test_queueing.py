"""Envelopes are queued under the caps and the owner's own rules, or refused."""

from __future__ import annotations

from typing import Any

import pytest

from actors.core.commands import (
    AcknowledgeMessages,
    Command,
    Page,
    PurgeQueue,
    QueryMessages,
    QueryQueue,
    QueueEnvelopes,
    QueueMessage,
    SaveContract,
    SetQueuePolicy,
    UpdateKeylist,
)
from actors.core.decision import Accepted, MessageRefs
from actors.core.identity import QueuedMessage
from actors.core.limits import IdentityLimits
from actors.core.refusals import Refusal
from actors.core.replies import Done, EnvelopeQueued, EnvelopesWaiting, Purged, QueuePolicy, Refused
from eventstore.log.events import (
    MessageQueued,
    QueuePolicySet,
    QueueRefused,
)
from tests.unit.actors.didcomm import (
    FRIEND,
    KEY,
    Agent,
    agent,
    on_both_protocols,
    removal,
    removed,
)
from tests.unit.actors.given import (
    NOW_MS,
    content,
    contract,
)

BASE: dict[str, Any] = {"at_ms": NOW_MS, "command": b"c" * 16}
QUERY = QueryQueue()
ALL = QueryMessages(Page(0, 100))
FULL = Refusal.RECIPIENT_QUEUE_FULL


# Queueing -----------------------------------------------------------------------------------


@pytest.mark.parametrize("endpoint", ["", "https://me.example"])
@pytest.mark.parametrize("key", ["", KEY])
def test_an_envelope_is_recorded_and_wakes_the_sessions_that_wait_for_it(
    key: str, endpoint: str
) -> None:
    me = agent(endpoint)
    queued = MessageQueued(
        **BASE,
        message_id="fresh",
        protocol="didcomm",
        sender_did="",
        recipient_key=key,
        payload=content(b"sealed"),
    )
    accepted = me.do(QueueEnvelopes(key, [b"sealed"]), fresh_id="fresh")
    reply = EnvelopeQueued("fresh", outbound=bool(endpoint))
    assert accepted == Accepted(reply, [queued], EnvelopesWaiting())


def test_only_keys_of_the_keylist_take_envelopes() -> None:
    me = agent()
    assert me.do(QueueEnvelopes("another", [b"x"])) is Refusal.KEY_UNKNOWN
    me.queue(b"waits", key=KEY)
    me.do(UpdateKeylist([], [KEY]))
    assert me.do(QueueEnvelopes(KEY, [b"x"])) is Refusal.KEY_UNKNOWN
    assert len(me.take()) == 1


def test_a_forward_to_an_unknown_recipient_looks_like_a_forward_to_an_unknown_key() -> None:
    assert Agent().do(QueueEnvelopes(KEY, [b"x"])) is Refusal.KEY_UNKNOWN
    assert agent().do(QueueEnvelopes("another", [b"x"])) is Refusal.KEY_UNKNOWN


@pytest.mark.parametrize(
    ("limits", "first", "refused", "refusal"),
    [
        (IdentityLimits(queue_messages_max=1), b"", b"", FULL),
        (IdentityLimits(queue_bytes_max=4), b"12", b"345", FULL),
        (IdentityLimits(message_bytes_max=4), b"1234", b"12345", Refusal.MESSAGE_TOO_LARGE),
    ],
)
def test_a_cap_refuses_drops_nothing_and_says_so(
    limits: IdentityLimits, first: bytes, refused: bytes, refusal: Refusal
) -> None:
    me = agent()
    waiting = me.queue(first, limits=limits)
    answered = QueueRefused(**BASE, recipient_key=KEY, reason=refusal.value)
    assert me.do(QueueEnvelopes(KEY, [refused]), limits=limits) == Accepted(
        Refused(refusal), [answered]
    )
    assert list(me.state.messages) == waiting


@pytest.mark.parametrize(
    "change", [removal("m4"), PurgeQueue(), SetQueuePolicy(messages_max=1)], ids=type
)
def test_a_refusal_is_recorded_once_until_something_changes(change: Command) -> None:
    me, limits = agent(), IdentityLimits(queue_messages_max=1)
    assert me.queue(b"x") == ["m4"]
    answered = me.do(QueueEnvelopes("", [b"y"]), limits=limits)
    assert isinstance(answered, Accepted)
    assert [type(event) for event in answered.events] == [QueueRefused]
    for _ in range(3):
        assert me.do(QueueEnvelopes("", [b"y"]), limits=limits) is FULL
    me.do(change)
    assert not me.state.refusing
    again = me.do(QueueEnvelopes("", [b"y"]), limits=IdentityLimits(queue_messages_max=0))
    assert isinstance(again, Accepted)
    assert [type(event) for event in again.events] == [QueueRefused]


def test_there_is_room_again_when_something_left() -> None:
    me, limits = agent(), IdentityLimits(queue_bytes_max=4)
    (first,) = me.queue(b"1234", limits=limits)
    assert isinstance(me.do(QueueEnvelopes("", [b"5"]), limits=limits), Accepted)
    me.do(removal(first))
    assert len(me.queue(b"5678", limits=limits)) == 1


def test_no_key_takes_all_of_a_queue_that_another_one_needs() -> None:
    me, limits = agent(keys=(KEY, "another")), IdentityLimits(queue_messages_max=4)
    for payload in (b"1", b"2"):
        me.queue(payload, key=KEY, limits=limits)
    refused = me.do(QueueEnvelopes(KEY, [b"3"]), limits=limits, command=b"3" * 16)
    assert isinstance(refused, Accepted)
    assert refused.reply == Refused(FULL)
    for payload in (b"4", b"5"):
        assert len(me.queue(payload, key="another", limits=limits)) == 1


def test_an_owners_own_rules_bound_the_whole_queue_alone() -> None:
    me = agent()
    me.do(SetQueuePolicy(messages_max=2))
    assert len(me.queue(b"1", b"2")) == 2


def test_decentrl_and_didcomm_share_their_caps() -> None:
    both = on_both_protocols()
    limits = IdentityLimits(queue_messages_max=3, queue_bytes_max=10, queue_sender_share_max=1)
    both.do(QueueMessage(FRIEND, b"1234"), limits=limits)
    (envelope,) = both.queue(b"5678", limits=limits)
    assert both.do(QueueMessage(FRIEND, b"901"), limits=limits) is FULL
    assert isinstance(both.do(QueueMessage(FRIEND, b""), limits=limits), Accepted)
    refused = both.do(QueueEnvelopes("", [b""]), limits=limits)
    assert isinstance(refused, Accepted)
    assert refused.reply == Refused(FULL)
    both.do(removal(envelope))
    assert isinstance(both.do(QueueMessage(FRIEND, b"901"), limits=limits), Accepted)


def test_the_owners_own_rules_refuse_no_decentrl_message() -> None:
    both = on_both_protocols()
    both.do(SetQueuePolicy(will_queue=False, messages_max=1, message_bytes_max=1, bytes_max=1))
    for _ in range(2):
        assert isinstance(both.do(QueueMessage(FRIEND, b"1234")), Accepted)


class _LookedAt(dict[str, QueuedMessage]):
    """Counts how many of its values were looked at."""

    count = 0

    def values(self) -> Any:
        for value in super().values():
            self.count += 1
            yield value


@pytest.mark.parametrize(
    ("page", "sender", "found", "total", "looked_at"),
    [
        (Page(0, 10), None, 10, 50, 11),
        (Page(4, 10), None, 10, 50, 51),
        (Page(0, 20), FRIEND, 10, 10, 11),
        (Page(3, 10), "did:x:other", 10, 40, 51),
        (Page(0, 10), "did:x:stranger", 0, 0, 0),
    ],
)
def test_a_page_of_messages_looks_at_none_behind_its_last_one(
    page: Page, sender: str | None, found: int, total: int, looked_at: int
) -> None:
    both = on_both_protocols()
    both.do(SaveContract(contract("did:x:other", both.did)))
    both.queue(b"envelope")
    for number in range(50):
        both.do(QueueMessage(FRIEND if number < 10 else "did:x:other", b"x"))
    both.state.messages = looked = _LookedAt(both.state.messages)
    answer = both.do(QueryMessages(page, sender))
    assert isinstance(answer, Accepted)
    assert isinstance(answer.reply, MessageRefs)
    assert (len(answer.reply.versions), answer.reply.total) == (found, total)
    assert looked.count == looked_at


def test_decentrl_and_didcomm_never_see_or_remove_each_others_messages() -> None:
    both = on_both_protocols()
    both.do(QueueMessage(FRIEND, b"decentrl"), fresh_id="message")
    both.do(QueueEnvelopes(KEY, [b"didcomm"]), fresh_id="envelope")
    version = both.state.messages["message"].version
    assert both.do(ALL) == Accepted(MessageRefs([version], 1, 8))
    assert both.do(QueryMessages(Page(0, 9), FRIEND)) == Accepted(MessageRefs([version], 1, 8))
    assert both.take() == ["envelope"]
    assert both.take("laptop", message_ids=["message", "envelope"]) == []
    assert both.do(AcknowledgeMessages(["envelope"])) == Accepted(Done())
    both.standing(removal("message"))
    assert both.standing(QUERY).messages == 1
    assert list(both.state.messages) == ["message", "envelope"]
    versions = [message.version for message in both.state.messages.values()]
    assert both.do(PurgeQueue()) == Accepted(
        Purged(2), [removed(versions, "message", "envelope", reason="purged")]
    )
    assert both.do(PurgeQueue()) == Accepted(Purged(0))


# The owner's own rules ----------------------------------------------------------------------


def test_the_owners_rules_count_within_the_operators_bounds() -> None:
    me = agent()
    limits = IdentityLimits(
        queue_messages_max=10, queue_bytes_max=100, message_bytes_max=50, queue_age_s_max=60
    )

    def in_force(**own: Any) -> QueuePolicy:
        return me.standing(SetQueuePolicy(**own), limits=limits).policy

    assert in_force() == QueuePolicy(True, 60, 10, 50, 100)
    assert in_force(messages_max=3) == QueuePolicy(True, 60, 3, 50, 100)
    assert in_force(bytes_max=7, message_bytes_max=5) == QueuePolicy(True, 60, 3, 5, 7)
    assert in_force(age_s_max=30, will_queue=False) == QueuePolicy(False, 30, 3, 5, 7)
    beyond = {"messages_max": 11, "bytes_max": 101, "message_bytes_max": 51, "age_s_max": 61}
    assert in_force(**beyond) == QueuePolicy(False, 60, 10, 50, 100)
    no_own = dict.fromkeys(beyond, 0)
    assert in_force(**no_own, will_queue=True) == QueuePolicy(True, 60, 10, 50, 100)
    unbounded = me.standing(SetQueuePolicy(age_s_max=900)).policy
    assert unbounded.age_s_max == 900


def test_a_change_of_the_rules_is_recorded_and_none_is_not() -> None:
    me = agent()
    own = SetQueuePolicy(will_queue=False, bytes_max=7)
    decision = me.do(own)
    assert isinstance(decision, Accepted)
    assert decision.events == [
        QueuePolicySet(
            **BASE,
            will_queue=False,
            age_s_max=0,
            messages_max=0,
            message_bytes_max=0,
            bytes_max=7,
        )
    ]
    again = me.do(own)
    assert isinstance(again, Accepted)
    assert again.events == []
    assert again.reply == decision.reply == me.standing(QUERY)


@pytest.mark.parametrize(
    ("own", "first", "refused", "refusal"),
    [
        (SetQueuePolicy(messages_max=1), b"", b"", FULL),
        (SetQueuePolicy(bytes_max=4), b"12", b"345", FULL),
        (SetQueuePolicy(message_bytes_max=4), b"1234", b"12345", Refusal.MESSAGE_TOO_LARGE),
    ],
)
def test_the_owners_rules_are_kept(
    own: SetQueuePolicy, first: bytes, refused: bytes, refusal: Refusal
) -> None:
    me = agent()
    me.do(own)
    me.queue(first)
    decision = me.do(QueueEnvelopes("", [refused]))
    assert isinstance(decision, Accepted)
    assert decision.reply == Refused(refusal)


def test_who_wants_nothing_queued_gets_it_only_while_listening_and_keeps_what_waits() -> None:
    me = agent()
    waiting = me.queue(b"one", b"two")
    me.do(SetQueuePolicy(will_queue=False))
    refused = me.do(QueueEnvelopes("", [b"three"]))
    assert isinstance(refused, Accepted)
    assert refused.reply == Refused(Refusal.NOT_QUEUING)
    assert list(me.state.messages) == waiting
    (three,) = me.queue(b"three", listening=True)
    assert me.take() == [*waiting, three]
    me.do(SetQueuePolicy(will_queue=True))
    assert len(me.queue(b"four")) == 1
