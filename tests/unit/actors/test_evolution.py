"""``evolve``: the same events give the same state, from the first or from a snapshot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.core.commands import Connection
from actors.core.evolve import evolve, evolve_all, from_snapshot, to_snapshot
from actors.core.identity import PRIOR_DIDS_MAX, PRIOR_SPEAKERS_MAX, Correspondent, Depth, Identity
from actors.core.replies import QueuePolicy
from eventstore.log.content import Content
from eventstore.log.errors import CorruptRow
from eventstore.log.events import (
    TOPIC_BY_TYPE,
    AccountEnded,
    AccountExpired,
    AccountRotated,
    AgentSeen,
    BatchSealed,
    ConnectionEstablished,
    ContractExpired,
    ContractRequested,
    ContractRequested1,
    ContractRequestsAcknowledged,
    ContractRequestsAcknowledged1,
    ContractRequestsExpired,
    ContractStored,
    Event,
    EventSaved,
    EventSaved1,
    EventTagsUpdated,
    IdentityDedicated,
    IdentityErased,
    IdentityErasureBegun,
    IdentityRegistered,
    IdentityReleased,
    InvitationUsed,
    KeyClaimed,
    KeylistUpdated,
    KeyReleased,
    MediationGranted,
    MessageExpirySet,
    MessageQueued,
    MessageQueued1,
    MessagesDelivered,
    MessagesRemoved,
    MessagesRemoved1,
    PublicEventPublished,
    PublicEventPublished1,
    PublicEventsDeleted,
    PublicEventsDeleted1,
    PublicEventsExpired,
    PushDeviceSet,
    QueuePolicySet,
    QueueRefused,
    RefusalsCounted,
    SavedEventsErased,
    SavedEventsUnlisted,
    SpeakerNamed,
)
from tests.examples import examples

IDS = st.sampled_from(["a", "b", "c", "d"])
DIDS = st.sampled_from(["did:x:1", "did:x:2", "did:x:3"])
MESSAGE_IDS = st.integers(0, 9).map(str)
SECONDS = st.one_of(st.integers(0, 10), st.floats(0, 10))
BASE: dict[str, Any] = {"at_ms": st.integers(0, 10), "command": st.just(b"c" * 16)}


KINDS: set[type[Event]] = set()
"""The kinds of events that are drawn below."""


def _events(kind: type[Event], **members: st.SearchStrategy[object]) -> st.SearchStrategy[Event]:
    KINDS.add(kind)
    return st.builds(kind, **BASE, **members)


CONTENTS = st.builds(Content.of, st.binary(max_size=5), st.just(bytes(16)))
VERSIONS = st.lists(st.integers(1, 9))
OF_CONTRACTS = st.one_of(
    _events(
        ContractStored,
        contract_id=IDS,
        requestor_did=DIDS,
        recipient_did=DIDS,
        expires_at_s=SECONDS.map(lambda at_s: at_s + 1),  # 0 is no contract
        digest=st.binary(min_size=1, max_size=1),
        contract=st.just(b"c"),
    ),
    _events(
        ContractExpired,
        contract_id=IDS,
        digest=st.binary(min_size=1, max_size=1),
        reason=st.just("expired"),
    ),
)
OF_ACCOUNTS = st.one_of(
    _events(
        ConnectionEstablished,
        did=DIDS,
        peer_did=DIDS,
        label=st.text(max_size=3),
        endpoint=st.sampled_from(["", "https://me.example"]),
        routing_keys=st.lists(IDS, max_size=2),
        protocol=st.just("connections/1.0"),
        invitation_id=IDS,
    ),
    _events(AccountRotated, speaker_did=DIDS, prior_did=DIDS, issued_at_s=SECONDS),
    _events(AccountEnded, prior_did=DIDS, issued_at_s=SECONDS),
)
EVENTS = st.one_of(
    OF_CONTRACTS,
    OF_ACCOUNTS,
    _events(IdentityRegistered, did=DIDS, expires_at_s=SECONDS, contract=st.just(b"c")),
    _events(
        ContractRequested,
        request_id=IDS,
        sender_did=DIDS,
        encrypted_contract_request=CONTENTS,
        requestor_ephemeral_public_key=st.just("k"),
    ),
    _events(
        ContractRequested1,
        request_id=IDS,
        sender_did=DIDS,
        encrypted_contract_request=st.just("x"),
        requestor_ephemeral_public_key=st.just("k"),
    ),
    _events(ContractRequestsAcknowledged1, request_ids=st.lists(IDS)),
    _events(ContractRequestsAcknowledged, request_ids=st.lists(IDS), versions=VERSIONS),
    _events(
        ContractRequestsExpired,
        request_ids=st.lists(IDS),
        reason=st.just("expired"),
        versions=VERSIONS,
    ),
    _events(
        MessageQueued,
        message_id=MESSAGE_IDS,
        protocol=st.sampled_from(["decentrl", "didcomm", "didcomm/v2"]),
        sender_did=DIDS,
        recipient_key=IDS,
        payload=CONTENTS,
    ),
    _events(
        MessageQueued1,
        message_id=MESSAGE_IDS,
        protocol=st.sampled_from(["decentrl", "didcomm", "didcomm/v2"]),
        sender_did=DIDS,
        recipient_key=IDS,
        payload=st.binary(max_size=5),
    ),
    _events(MessagesDelivered, message_ids=st.lists(MESSAGE_IDS), channel=st.just("pickup/2.0")),
    _events(
        MessagesRemoved,
        message_ids=st.lists(MESSAGE_IDS),
        reason=st.just("acknowledged"),
        versions=VERSIONS,
    ),
    _events(MessagesRemoved1, message_ids=st.lists(MESSAGE_IDS), reason=st.just("acknowledged")),
    _events(QueueRefused, recipient_key=IDS, reason=st.just("NOT_QUEUING")),
    _events(
        QueuePolicySet,
        will_queue=st.booleans(),
        age_s_max=st.integers(0, 9),
        messages_max=st.integers(0, 9),
        message_bytes_max=st.integers(0, 9),
        bytes_max=st.integers(0, 9),
    ),
    _events(MediationGranted),
    st.builds(
        lambda event, claim: msgspec.structs.replace(event, claims=[claim] * len(event.added)),
        _events(KeylistUpdated, added=st.lists(IDS), claims=st.just([]), removed=st.lists(IDS)),
        st.integers(1, 9),
    ),
    _events(
        PushDeviceSet,
        channel=st.sampled_from(["", "fcm", "apns"]),
        device_token=IDS,
        device_platform=st.just("ios"),
    ),
    _events(KeyClaimed, key=IDS, owner_did=DIDS),
    _events(KeyReleased, key=IDS),
    _events(MessageExpirySet, message_ids=st.lists(MESSAGE_IDS), expires_at_s=SECONDS),
    _events(SpeakerNamed, did=DIDS, account_did=DIDS),
    _events(AccountExpired, reason=st.just("idle")),
    _events(AgentSeen),
    _events(InvitationUsed, invitation_id=IDS, by_did=DIDS),
    _events(IdentityDedicated, did=DIDS, reason=st.sampled_from(["operator", "load"])),
    _events(IdentityErasureBegun, reason=st.sampled_from(["operator", "owner"])),
    _events(SavedEventsErased, after=st.integers(0, 9), count=st.integers(0, 9)),
    _events(SavedEventsUnlisted, count=st.integers(1, 9)),
    _events(IdentityErased),
    _events(IdentityReleased, did=DIDS, reason=st.sampled_from(["operator", "load"])),
    _events(
        RefusalsCounted,
        edge=st.just("edge-0"),
        since_ms=st.just(1),
        until_ms=st.just(2),
        refusals=st.just([]),
    ),
    _events(
        EventSaved,
        event_id=IDS,
        sender_did=DIDS,
        recipient_did=DIDS,
        contract_id=st.none(),
        timestamp_s=SECONDS,
        payload=CONTENTS,
        encrypted_tags=st.just([]),
        processed=st.booleans(),
    ),
    _events(
        EventSaved1,
        event_id=IDS,
        sender_did=DIDS,
        recipient_did=DIDS,
        contract_id=st.none(),
        timestamp_s=SECONDS,
        payload=st.just("p"),
        encrypted_tags=st.just([]),
        processed=st.booleans(),
    ),
    _events(EventTagsUpdated, event_id=IDS, encrypted_tags=st.just([])),
    _events(
        PublicEventPublished,
        event_id=IDS,
        channel_id=IDS,
        event=CONTENTS,
        tags=st.just([]),
        timestamp_s=SECONDS,
        event_signature=st.just("s"),
    ),
    _events(
        PublicEventPublished1,
        event_id=IDS,
        channel_id=IDS,
        event=st.just("e"),
        tags=st.just([]),
        timestamp_s=SECONDS,
        event_signature=st.just("s"),
    ),
    _events(PublicEventsDeleted, event_ids=st.lists(IDS), channel_id=st.none(), versions=VERSIONS),
    _events(
        PublicEventsExpired, event_ids=st.lists(IDS), reason=st.just("expired"), versions=VERSIONS
    ),
    _events(PublicEventsDeleted1, event_ids=st.lists(IDS), channel_id=st.none()),
)


def _with_own_ids(history: list[Event]) -> list[Event]:
    """An id of a record is given once, and a contract has one digest."""
    seen: set[str] = set()
    kept: list[Event] = []
    for event in history:
        match event:
            case MessageQueued() | MessageQueued1():
                given = "message " + event.message_id
            case ContractRequested() | ContractRequested1():
                given = "request " + event.request_id
            case PublicEventPublished() | PublicEventPublished1():
                given = "public event " + event.event_id
            case ContractStored():
                given = "contract " + event.contract_id
            case _:
                given = ""
        if given in seen:
            continue
        seen |= {given} - {""}
        kept.append(_with_own_digest(event))
    return kept


def _with_own_digest(event: Event) -> Event:
    if isinstance(event, ContractStored | ContractExpired):
        return msgspec.structs.replace(event, digest=event.contract_id.encode())
    return event


HISTORIES = st.lists(EVENTS, max_size=40).map(_with_own_ids)
OF_ONE_KIND = st.lists(OF_CONTRACTS, max_size=12) | st.lists(OF_ACCOUNTS, max_size=12)
BASE_OF: dict[str, Any] = {"at_ms": 7, "command": b"c" * 16}


def fold(history: list[Event], state: Identity | None = None) -> Identity:
    state = state or Identity()
    for event in history:
        evolve(state, event)
    return state


@examples(200)
@given(HISTORIES, st.integers(0, 30))
def test_snapshot_and_tail_give_the_state_of_the_whole_history(
    history: list[Event], cut: int
) -> None:
    restored = from_snapshot(to_snapshot(fold(history[:cut])))
    assert restored is not None
    whole = fold(history)
    assert fold(history[cut:], restored) == whole
    assert list(restored.messages) == list(whole.messages)
    assert list(restored.requests) == list(whole.requests)
    assert list(restored.contracts) == list(whole.contracts)
    assert list(restored.keylist) == list(whole.keylist)


@examples(100)
@given(HISTORIES | OF_ONE_KIND.map(_with_own_ids))
def test_the_state_agrees_with_itself_after_every_event(history: list[Event]) -> None:
    state, saved = Identity(), 0
    for number, event in enumerate(history, start=1):
        evolve(state, event)
        assert state.version == number
        saved += isinstance(event, EventSaved | EventSaved1)
        assert state.saved_events + state.erased_events == saved
        _assert_queue_agrees(state)
        _assert_contracts_agree(state)
        requests, public_events = state.requests.values(), state.public_events.values()
        assert state.requests_by_sender == Counter(r.sender_did for r in requests)
        assert state.request_bytes == sum(r.stored_bytes for r in requests)
        assert state.public_bytes == sum(e.stored_bytes for e in public_events)
        assert len(set(state.prior_dids)) == len(state.prior_dids) <= PRIOR_DIDS_MAX
        spoke = [*state.prior_speakers, state.speaker_did]
        assert len(set(spoke)) == len(spoke) <= PRIOR_SPEAKERS_MAX + 1
        assert all(m.version <= number for m in state.messages.values())
        assert state.live_records() >= len(state.messages) + len(state.keylist)
        assert state.weight_bytes() > 0


def _assert_queue_agrees(state: Identity) -> None:
    messages = state.messages.values()
    assert state.queue_bytes == sum(m.size_bytes for m in messages)
    envelopes = [m for m in messages if m.is_envelope]
    assert list(state.envelopes) == [i for i, m in state.messages.items() if m.is_envelope]
    assert state.envelope_bytes == sum(m.size_bytes for m in envelopes)
    assert state.by_key == _depths((m.recipient_key, m.size_bytes) for m in envelopes)
    texts = [m for m in messages if not m.is_envelope]
    assert state.by_sender == _depths((m.sender_did, m.size_bytes) for m in texts)
    assert state.expiring.keys() <= state.messages.keys()
    assert state.expires_first_s == min(state.expiring.values(), default=0)


@examples(200)
@given(HISTORIES | OF_ONE_KIND)
def test_events_that_come_together_give_the_state_of_each_by_itself(history: list[Event]) -> None:
    state = Identity()
    evolve_all(state, history)
    assert state == fold(history)


def _depths(sizes: Iterable[tuple[str, int]]) -> dict[str, Depth]:
    depths: dict[str, Depth] = {}
    for origin, size_bytes in sizes:
        depth = depths.setdefault(origin, Depth(0, 0))
        depth.messages += 1
        depth.bytes += size_bytes
    return depths


def _assert_contracts_agree(state: Identity) -> None:
    contracts = state.contracts.values()
    assert state.contract_bytes == sum(c.stored_bytes for c in contracts)
    assert state.contract_ids == {i.encode(): i for i in state.contracts}
    assert state.contracts_until_s == min((c.expires_at_s for c in contracts), default=0)
    dids = {did for c in contracts for did in (c.requestor_did, c.recipient_did)}
    for did, party in state.correspondents.items():
        theirs = [c for c in contracts if did in {c.requestor_did, c.recipient_did}]
        until_s, size_bytes = (
            max(c.expires_at_s for c in theirs),
            sum(c.stored_bytes for c in theirs),
        )
        assert party == Correspondent(until_s, len(theirs), size_bytes)
    assert state.correspondents.keys() == dids


def test_the_latest_end_of_a_registration_and_of_a_contract_counts() -> None:
    def registered(expires_at_s: float) -> Event:
        return IdentityRegistered(
            at_ms=0, command=b"", did="did:x:1", expires_at_s=expires_at_s, contract=b""
        )

    assert fold([registered(5), registered(3)]).registered_until_s == 5
    assert fold([registered(3), registered(5)]).registered_until_s == 5


def queued(message_id: str, protocol: str = "didcomm") -> Event:
    return MessageQueued(
        **BASE_OF,
        message_id=message_id,
        protocol=protocol,
        sender_did="",
        recipient_key="key",
        payload=Content.of(b"12345", bytes(16)),
    )


def test_a_delivery_changes_nothing_but_its_time() -> None:
    state = fold([queued("a"), queued("b")])
    messages = dict(state.messages)
    evolve(state, MessagesDelivered(**BASE_OF, message_ids=["a"], channel="pickup/1.0"))
    assert state.messages == messages
    assert (state.last_delivered_ms, len(state.envelopes), state.version) == (7, 2, 3)


def test_a_removal_takes_what_is_there_and_counts_each_protocol() -> None:
    state = fold([queued("a"), queued("b", "decentrl"), queued("c")])
    evolve(
        state,
        MessagesRemoved(
            **BASE_OF, message_ids=["a", "a", "x", "b"], reason="expired", versions=[1]
        ),
    )
    assert list(state.messages) == ["c"]
    assert (state.queue_bytes, len(state.envelopes), state.envelope_bytes) == (5, 1, 5)
    assert (state.last_added_ms, state.last_removed_ms) == (7, 7)


def test_a_refusal_is_remembered_until_the_queue_or_its_rules_change() -> None:
    refused = QueueRefused(**BASE_OF, recipient_key="", reason="RECIPIENT_QUEUE_FULL")
    policy = QueuePolicySet(
        **BASE_OF,
        will_queue=False,
        age_s_max=1,
        messages_max=2,
        message_bytes_max=3,
        bytes_max=4,
    )
    assert fold([refused]).refusing
    assert not fold([refused, policy]).refusing
    assert not fold(
        [refused, MessagesRemoved(**BASE_OF, message_ids=[], reason="x", versions=[])]
    ).refusing
    assert fold([policy, refused]).policy == QueuePolicy(False, 1, 2, 3, 4)


def test_an_agent_is_what_it_said_last() -> None:
    def established(endpoint: str) -> Event:
        return ConnectionEstablished(
            **BASE_OF,
            did="did:x:1",
            peer_did="did:peer:1",
            label="me",
            endpoint=endpoint,
            routing_keys=["key"],
            protocol="connections/1.0",
            invitation_id="once",
        )

    state = fold([established(""), MediationGranted(**BASE_OF), established("wss://me.example")])
    said = Connection("did:peer:1", "me", "wss://me.example", ["key"], "connections/1.0", "once")
    assert (state.connection, state.mediated) == (said, True)


def test_a_keylist_keeps_its_order_and_the_newest_claim_of_each_key() -> None:
    first = KeylistUpdated(**BASE_OF, added=["b", "a", "c"], claims=[1, 5, 1], removed=[])
    second = KeylistUpdated(**BASE_OF, added=["a", "b"], claims=[7, 3], removed=["a", "x"])
    assert list(fold([first, second]).keylist.items()) == [("b", 3), ("c", 1), ("a", 7)]


def test_a_key_and_an_invitation_know_whose_they_are() -> None:
    claimed = KeyClaimed(**BASE_OF, key="k", owner_did="did:x:1")
    again = fold([claimed, claimed])
    assert (again.owner_did, again.claim) == ("did:x:1", 2)
    assert fold([claimed, KeyReleased(**BASE_OF, key="k")]).owner_did == ""
    used = InvitationUsed(**BASE_OF, invitation_id="i", by_did="did:x:2")
    assert fold([used]).used_by == "did:x:2"


def test_these_tests_know_every_event_of_an_identity() -> None:
    assert set(TOPIC_BY_TYPE) - {BatchSealed} == KINDS


def test_a_seal_cannot_stand_in_the_stream_of_an_identity() -> None:
    sealed = BatchSealed(
        at_ms=0,
        command=b"",
        partition="shard-0",
        epoch=1,
        window_ms=1,
        nonces=b"",
        rows=0,
        previous=b"",
        digest=b"",
    )
    with pytest.raises(CorruptRow):
        evolve(Identity(), sealed)


@pytest.mark.parametrize("damage", [b"", b"\x00", b"\xc1", b"not msgpack"])
def test_a_snapshot_that_does_not_decode_is_no_snapshot(damage: bytes) -> None:
    assert from_snapshot(damage) is None
