"""What a seal covers of a row: all of it but its names, and the digest of each of these."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from eventstore.log.codec import decode, state_of
from eventstore.log.errors import CorruptRow
from eventstore.log.event_declaration import NAME, ExportColumn, NoColumn
from eventstore.log.events import (
    TOPIC_BY_TYPE,
    TYPE_BY_TOPIC,
    BatchSealed,
    MessageQueued,
    RefusalsCounted,
    RefusedCommands,
)
from eventstore.log.pseudonyms import NAMING
from eventstore.log.redaction import digest_of, erased_names, redacted_state, renamed_state
from eventstore.log.streams import erased_name, identity_stream, is_same_name, stream_of
from tests.kept_memory import bytes_kept, made_up
from tests.log.samples import AT_MS, COMMAND, content

GOLDEN = Path(__file__).parents[1] / "golden"
_SHOWN_BY_THE_STREAM = {"identity", "stream", "shard", "partition"}


def _examples() -> Iterator[tuple[str, bytes]]:
    for topic in TYPE_BY_TOPIC:
        for golden in msgspec.json.decode((GOLDEN / f"{topic}.json").read_bytes())["examples"]:
            yield topic, bytes.fromhex(golden["state_hex"])


EXAMPLES = list(_examples())


def _names(value: Any) -> set[str]:
    """The texts in the fields of an event that hold names."""
    if isinstance(value, str):
        return {value} - {""}
    if isinstance(value, bytes):
        return set()
    if isinstance(value, list):
        return set().union(*map(_names, value))
    if isinstance(value, msgspec.Struct):
        fields = _fields(type(value))
        return set().union(*[_names(getattr(value, field)) for field in fields])
    return set()


def _fields(kind: type[msgspec.Struct]) -> list[str]:
    hints = get_type_hints(kind, include_extras=True)
    return [name for name, hint in hints.items() if NAME in getattr(hint, "__metadata__", ())]


@pytest.mark.parametrize(("topic", "state"), EXAMPLES)
def test_a_redacted_row_has_none_of_its_names_and_all_else(topic: str, state: bytes) -> None:
    event = decode(topic, state)
    redacted = redacted_state(topic, state)
    assert redacted is not None
    assert redacted_state(topic, state, event) == redacted
    assert redacted_state(topic, redacted) == redacted
    assert redacted_state(topic, redacted, decode(topic, redacted)) == redacted
    names = _names(event)
    assert [name for name in names if len(name) > 3 and name.encode() in redacted] == []
    after = decode(topic, redacted)
    stay = set(type(event).__struct_fields__) - set(_fields(type(event)))
    assert all(getattr(after, name) == getattr(event, name) for name in stay)
    assert (redacted == state) == (not erased_names(topic, redacted))
    assert erased_names(topic, state) == {}


@pytest.mark.parametrize(("topic", "state"), EXAMPLES)
def test_no_other_row_has_the_redacted_state_of_a_row(topic: str, state: bytes) -> None:
    redacted = redacted_state(topic, state)
    for place in range(len(state)):
        changed = state[:place] + bytes([state[place] ^ 1]) + state[place + 1 :]
        assert redacted_state(topic, changed) != redacted, place
    for longer in (state + b"\0", state[:-1], b"\xc1", b""):
        assert redacted_state(topic, longer) != redacted


@given(st.text(max_size=30), st.text(max_size=30), st.text(max_size=30))
def test_whatever_a_peer_says_is_no_digest(sender: str, key: str, other: str) -> None:
    event = MessageQueued(
        at_ms=AT_MS, command=COMMAND, message_id="m", protocol="didcomm",
        sender_did=sender, recipient_key=key, payload=content(b"x"),
    )  # fmt: skip
    state, topic = state_of(event), TOPIC_BY_TYPE[MessageQueued]
    redacted = redacted_state(topic, state, event)
    assert redacted is not None
    assert decode(topic, state) == event
    shown = decode(topic, redacted)
    assert isinstance(shown, MessageQueued)
    assert shown.sender_did == ("erased:" + identity_stream(sender).hex if sender else "")
    if other != sender:
        changed = msgspec.structs.replace(event, sender_did=other)
        assert redacted_state(topic, state_of(changed), changed) != redacted
    pretended = msgspec.structs.replace(event, sender_did=shown.sender_did)
    assert (state_of(pretended) == redacted) == (not sender and not key)


def test_names_within_records_are_redacted_one_by_one() -> None:
    refused = [
        RefusedCommands("decentrl", "c", "r", did, 1, 1, 2) for did in ("did:a", "did:b", "")
    ]
    event = RefusalsCounted(
        at_ms=AT_MS, command=b"", edge="edge:x", since_ms=1, until_ms=2, refusals=refused
    )

    def rename(name: Any) -> Any:
        return digest_of(name) if name == "did:a" else name

    state = renamed_state(RefusalsCounted, state_of(event), rename)
    assert state is not None
    shown = decode(TOPIC_BY_TYPE[RefusalsCounted], state)
    assert isinstance(shown, RefusalsCounted)
    assert [one.sender_did for one in shown.refusals] == [erased_name("did:a"), "did:b", ""]
    redacted = redacted_state(TOPIC_BY_TYPE[RefusalsCounted], state)
    assert redacted is not None
    shown = decode(TOPIC_BY_TYPE[RefusalsCounted], redacted)
    assert isinstance(shown, RefusalsCounted)
    assert shown.refusals == [
        msgspec.structs.replace(one, sender_did=name)
        for one, name in zip(refused, [erased_name("did:a"), erased_name("did:b"), ""], strict=True)
    ]


def test_an_empty_name_and_an_empty_key_stay_as_they_are() -> None:
    assert (digest_of(""), digest_of(b"")) == ("", b"")


@pytest.mark.parametrize(("topic", "state"), EXAMPLES)
def test_the_same_fields_in_other_bytes_have_no_redacted_state(topic: str, state: bytes) -> None:
    """A map with a length of two bytes, where the codec writes one: a seal covers one form."""
    if redacted_state(topic, state) == state:
        return  # has no names, so that a seal covers its bytes as they are
    assert state[0] >> 4 == 8
    longer = b"\xde\x00" + bytes([state[0] & 15]) + state[1:]
    assert msgspec.msgpack.decode(longer) == msgspec.msgpack.decode(state)
    assert redacted_state(topic, longer) is None


def test_what_is_a_name_here_is_one_for_pseudonyms_too() -> None:
    columns = set()
    for kind in TOPIC_BY_TYPE:
        hints = get_type_hints(kind, include_extras=True)
        for field in _fields(kind):
            marks = hints[field].__metadata__
            if any(isinstance(mark, NoColumn) for mark in marks):
                continue
            found = [mark.name for mark in marks if isinstance(mark, ExportColumn)]
            columns.add(found[0] if found else field)
    shown = {"speaker_did", "account_did"}  # in tables alone, made of did and owner_did
    sealed = {"contract_id"}  # a text that seals cover, so an erasure does not change it
    assert columns == set(NAMING) - _SHOWN_BY_THE_STREAM - shown - sealed
    assert not _fields(BatchSealed)


def test_an_erased_name_is_of_the_stream_that_the_name_is_of() -> None:
    for name in ("did:x:a", "key:abc", "invitation:1"):
        assert stream_of(erased_name(name)) == stream_of(name) == identity_stream(name).bytes
        assert erased_name(erased_name(name)) == erased_name(name)
        assert is_same_name(name, erased_name(name))
        assert not is_same_name(name, erased_name("did:x:b"))
    assert is_same_name(None, None)
    assert not is_same_name(None, "did:x:a")


_TOPICS = st.sampled_from(sorted(TYPE_BY_TOPIC))
_MUTATED = st.tuples(
    st.sampled_from(EXAMPLES), st.integers(0, 1_000), st.binary(max_size=12), st.integers(0, 12)
).map(
    lambda drawn: (
        drawn[0][0],
        (state := drawn[0][1])[: drawn[1] % len(state)]
        + drawn[2]
        + state[drawn[1] % len(state) + drawn[3] :],
    )
)


@given(st.one_of(_MUTATED, st.tuples(_TOPICS, st.binary(max_size=60))))
@example(("message-queued.2", b"\x91" * 100_000))
@example(("message-queued.2", b"\x81" * 100_000))
@example(("refusals-counted.1", b"\x81\xa8refusals\x91\x01"))
@example(("message-queued.2", b"\x81\xaasender_did\xc7\x0c\xff" + b"\xff" * 12))
def test_no_bytes_in_place_of_a_state_raise_what_no_one_expects(given: tuple[str, bytes]) -> None:
    topic, state = given
    redacted = redacted_state(topic, state)
    assert redacted is None or isinstance(redacted, bytes)
    assert all(names for names in erased_names(topic, state).values())
    with contextlib.suppress(CorruptRow):
        event = decode(topic, state)
        assert redacted_state(topic, state, event) == redacted


@made_up
def test_no_long_name_is_kept_in_memory(made_up: str) -> None:
    assert digest_of(made_up) == digest_of(made_up)
    assert bytes_kept(digest_of, made_up) < 32
