"""``evolve``: the same events give the same state, from the first or from a snapshot."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.evolution import evolve, from_snapshot, to_snapshot
from actors.identity import Identity
from eventstore.errors import CorruptRow
from eventstore.events import (
    BatchSealed,
    ContractRequested,
    ContractRequestsAcknowledged,
    ContractStored,
    Event,
    EventSaved,
    EventTagsUpdated,
    IdentityRegistered,
    MessageQueued,
    MessagesRemoved,
    PublicEventPublished,
    PublicEventsDeleted,
)

IDS = st.sampled_from(["a", "b", "c", "d"])
DIDS = st.sampled_from(["did:x:1", "did:x:2", "did:x:3"])
SECONDS = st.one_of(st.integers(0, 10), st.floats(0, 10))
BASE = {"at_ms": st.integers(0, 10), "command": st.just(b"c" * 16)}


def _events(kind: type[Event], **members: st.SearchStrategy[object]) -> st.SearchStrategy[Event]:
    return st.builds(kind, **BASE, **members)


EVENTS = st.one_of(
    _events(IdentityRegistered, did=DIDS, expires_at_s=SECONDS, contract=st.just(b"c")),
    _events(
        ContractStored,
        contract_id=IDS,
        requestor_did=DIDS,
        recipient_did=DIDS,
        expires_at_s=SECONDS,
        digest=st.binary(min_size=1, max_size=1),
        contract=st.just(b"c"),
    ),
    _events(
        ContractRequested,
        request_id=IDS,
        sender_did=DIDS,
        encrypted_contract_request=st.just("x"),
        requestor_ephemeral_public_key=st.just("k"),
    ),
    _events(ContractRequestsAcknowledged, request_ids=st.lists(IDS)),
    _events(
        MessageQueued,
        message_id=st.uuids(version=4).map(str),
        protocol=st.just("decentrl"),
        sender_did=DIDS,
        recipient_key=st.just(""),
        payload=st.binary(max_size=5),
    ),
    _events(MessagesRemoved, message_ids=st.lists(IDS), reason=st.just("acknowledged")),
    _events(
        EventSaved,
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
        event=st.just("e"),
        tags=st.just([]),
        timestamp_s=SECONDS,
        event_signature=st.just("s"),
    ),
    _events(PublicEventsDeleted, event_ids=st.lists(IDS), channel_id=st.none()),
)
HISTORIES = st.lists(EVENTS, max_size=30)


def fold(history: list[Event], state: Identity | None = None) -> Identity:
    state = state or Identity()
    for event in history:
        evolve(state, event)
    return state


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
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


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(HISTORIES)
def test_the_state_agrees_with_itself_after_every_event(history: list[Event]) -> None:
    state = Identity()
    for number, event in enumerate(history, start=1):
        evolve(state, event)
        assert state.version == number
        assert state.queue_bytes == sum(m.size_bytes for m in state.messages.values())
        assert all(m.version <= number for m in state.messages.values())
        assert state.live_records() >= len(state.messages)
        assert state.weight_bytes() > 0


def test_the_latest_end_of_a_registration_and_of_a_contract_counts() -> None:
    def registered(expires_at_s: float) -> Event:
        return IdentityRegistered(
            at_ms=0, command=b"", did="did:x:1", expires_at_s=expires_at_s, contract=b""
        )

    assert fold([registered(5), registered(3)]).registered_until_s == 5
    assert fold([registered(3), registered(5)]).registered_until_s == 5


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
