"""What a fact says of a content, and how the two are put together for an export."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventstore.log.codec import decode, decode_whole, encode
from eventstore.log.content import (
    SALT_BYTES,
    Content,
    data_of,
    size_of,
    text_of,
    with_content,
    without_content,
)
from eventstore.log.errors import ContentMissing, CorruptRow
from tests.log.samples import OWNER, SALT, message, tagged

SALTS = st.binary(min_size=SALT_BYTES, max_size=SALT_BYTES)


@given(st.binary(max_size=300), SALTS)
def test_a_content_comes_back_with_its_fact(data: bytes, salt: bytes) -> None:
    event = message(data, salt=salt)
    row = encode(OWNER, 1, event)
    assert event.payload.stored == salt + data
    assert decode(row.topic, row.state) == event
    whole = decode_whole(row.topic, row.state, event.payload.stored)
    assert data_of(whole.payload) == data  # type: ignore[attr-defined] # a message


def test_a_digest_says_nothing_without_its_salt() -> None:
    one, other = Content.of(b"yes", SALT), Content.of(b"yes", bytes(SALT_BYTES))
    assert one.digest != other.digest
    assert len(one.digest) == 32


def test_a_fact_alone_has_no_content() -> None:
    row = encode(OWNER, 1, message(b"text"))
    payload = decode(row.topic, row.state).payload  # type: ignore[attr-defined] # a message
    assert (payload.stored, payload.size_bytes) == (None, 4)
    with pytest.raises(ContentMissing):
        data_of(payload)


@pytest.mark.parametrize("stored", [b"", SALT, SALT + b"texT", SALT + b"text ", b"text"])
def test_another_content_is_refused(stored: bytes) -> None:
    row = encode(OWNER, 1, message(b"text"))
    with pytest.raises(CorruptRow):
        decode_whole(row.topic, row.state, stored)


def test_a_stored_content_is_bytes_of_the_digest_and_the_size() -> None:
    payload = message(b"text").payload
    others: tuple[Any, ...] = ("of another type, though", SALT + b"text")
    said = [Content(payload.digest, payload.size_bytes + extra) for extra in (3, 1, 0)]
    assert [one.is_of(stored) for one in said for stored in others] == [False] * 5 + [True]


@pytest.mark.parametrize("state", [b"", b"\xc6", b"\xc6\0\0\0\2a"])
def test_a_state_that_ends_within_its_content_has_none(state: bytes) -> None:
    assert without_content(state) == (state, None)


def test_a_content_of_an_event_that_has_none_is_refused() -> None:
    row = encode(OWNER, 1, tagged("a"))
    with pytest.raises(CorruptRow):
        decode_whole(row.topic, row.state, SALT)


def test_contents_that_stand_in_their_rows_are_read_alike() -> None:
    assert (data_of(b"x"), text_of("ü")) == (b"x", "ü")
    assert (size_of("ü"), size_of("xy"), size_of(b"x\xff")) == (2, 2, 2)
    content = Content.of("ü".encode(), SALT)
    assert (text_of(content), size_of(content)) == ("ü", 2)


@given(st.binary(max_size=80), st.none() | st.binary(max_size=300))
def test_fact_and_content_are_separate_in_an_export(data: bytes, stored: bytes | None) -> None:
    fact = encode(OWNER, 1, message(data)).state
    state = with_content(fact, stored)
    assert without_content(state) == (fact, stored)
    if stored is not None:
        assert msgspec.msgpack.decode(state[: -len(fact)]) == stored


@given(st.binary(max_size=40))
def test_what_no_exporter_wrote_is_left_as_it_is(state: bytes) -> None:
    fact, content = without_content(state)
    assert with_content(fact, content) == state
