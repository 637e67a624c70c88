"""A seal covers every byte of the rows and of itself; nonce keys tell pairs apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from eventsourcing.persistence import StoredEvent
from hypothesis import given
from hypothesis import strategies as st

from eventstore.log.codec import encode
from eventstore.log.events import BatchSealed
from eventstore.log.redaction import redacted_state
from eventstore.log.seal import (
    GENESIS,
    chain_digest,
    command_key,
    pack_nonces,
    seal,
    unpack_nonces,
)
from tests.log.samples import AT_MS, OTHER, OWNER, message

EVENTS = [message(b"one"), message(b"two")]
ROWS = [encode(OWNER, 1, EVENTS[0]), encode(OTHER, 7, EVENTS[1])]
FIELDS: dict[str, Any] = {
    "partition": "shard-1",
    "epoch": 3,
    "at_ms": AT_MS,
    "window_ms": 300_000,
    "nonces": pack_nonces([(bytes(16), AT_MS)]),
    "previous": GENESIS,
}


def digest_of(rows: Sequence[StoredEvent], *, are_redacted: bool = True, **fields: Any) -> bytes:
    columns = [
        (UUID(str(r.originator_id)).bytes, r.originator_version, r.topic, r.state) for r in rows
    ]
    sealed = BatchSealed(command=b"", rows=len(rows), digest=b"", **fields)
    return chain_digest(sealed, columns, are_redacted=are_redacted)


def test_a_seal_holds_what_its_digest_was_made_of() -> None:
    sealed = seal(ROWS, EVENTS, **FIELDS)
    assert {name: getattr(sealed, name) for name in FIELDS} == FIELDS
    assert sealed.rows == len(ROWS)
    redacted = [
        replace(row, state=redacted_state(row.topic, row.state, event) or b"")
        for row, event in zip(ROWS, EVENTS, strict=True)
    ]
    assert sealed.digest == digest_of(redacted, **FIELDS)


def test_redacted_rows_have_another_digest_than_the_same_rows_as_whole_ones() -> None:
    assert digest_of(ROWS, **FIELDS) != digest_of(ROWS, are_redacted=False, **FIELDS)


def test_a_state_that_is_not_written_as_states_are_is_not_sealed() -> None:
    with pytest.raises(ValueError, match="not written as states are"):
        seal([replace(ROWS[0], state=ROWS[0].state + b"\0")], EVENTS[:1], **FIELDS)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("partition", "shard-2"),
        ("epoch", 4),
        ("at_ms", AT_MS + 1),
        ("window_ms", 300_001),
        ("nonces", b""),
        ("previous", bytes(31) + b"\x01"),
    ],
)
def test_a_change_of_any_field_changes_the_digest(field: str, value: object) -> None:
    assert digest_of(ROWS, **{**FIELDS, field: value}) != digest_of(ROWS, **FIELDS)


@pytest.mark.parametrize(
    "change",
    [
        {"originator_id": OTHER},
        {"originator_version": 2},
        {"topic": "message-queued.1"},
        {"state": b"other"},
    ],
)
def test_a_change_of_any_column_changes_the_digest(change: dict[str, Any]) -> None:
    changed = [replace(ROWS[0], **change), ROWS[1]]
    assert digest_of(changed, **FIELDS) != digest_of(ROWS, **FIELDS)


def test_order_and_number_of_rows_count() -> None:
    digests = {
        digest_of(rows, **FIELDS) for rows in (ROWS, ROWS[::-1], ROWS[:1], [*ROWS, ROWS[0]], [])
    }
    assert len(digests) == 5


def test_bytes_cannot_move_from_one_column_to_the_next() -> None:
    row = ROWS[0]
    moved = replace(row, topic=row.topic + "x", state=row.state[1:])
    assert digest_of([moved], **FIELDS) != digest_of([row], **FIELDS)
    moved_field = {**FIELDS, "partition": "shard-1\x00", "nonces": FIELDS["nonces"][1:]}
    assert digest_of(ROWS, **moved_field) != digest_of(ROWS, **FIELDS)


def test_a_stream_id_as_text_gives_the_same_digest() -> None:
    as_text = [replace(row, originator_id=UUID(str(row.originator_id)).hex) for row in ROWS]
    assert seal(as_text, EVENTS, **FIELDS) == seal(ROWS, EVENTS, **FIELDS)


@given(st.lists(st.tuples(st.binary(min_size=16, max_size=16), st.integers(0, 2**64 - 1))))
def test_nonces_come_out_as_they_were_packed(nonces: list[tuple[bytes, int]]) -> None:
    assert list(unpack_nonces(pack_nonces(nonces))) == nonces


def test_a_command_key_depends_on_sender_and_nonce() -> None:
    keys = {
        command_key(sender, nonce)
        for sender in ("did:a", "did:b", "did:a1")
        for nonce in ("1", "2", "11")
    }
    assert len(keys) == 9
    assert {len(key) for key in keys} == {16}
    assert command_key("did:a", "1") in keys
