"""What delivered messages and statuses look like in each generation of pickup."""

from __future__ import annotations

import base64

import msgspec
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.core.replies import DeliveredMessage, QueuePolicy, QueueState
from http_edge.crypto.encoding import base64_of_json
from http_edge.didcomm.envelopes.messages import Attachment
from http_edge.didcomm.envelopes.v1.plaintext import write, write_attachment
from http_edge.didcomm.protocols import pickup_1, queue_1
from http_edge.didcomm.protocols.own_queue import attachments, time_text
from http_edge.didcomm.protocols.pickup import FORM_2, FORM_3, FORM_4, with_nothing

MAY_FIRST_MS = 1_556_712_000_000  # 2019-05-01 12:00:00Z
BASE64URL = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
STATE = QueueState(
    messages=7,
    bytes=8096,
    available=3,
    oldest_ms=MAY_FIRST_MS,
    newest_ms=MAY_FIRST_MS + 1_999,
    last_added_ms=MAY_FIRST_MS + 1_999,
    last_delivered_ms=MAY_FIRST_MS + 60_000,
    last_removed_ms=MAY_FIRST_MS + 61_000,
    policy=QueuePolicy(
        will_queue=True,
        age_s_max=86_400,
        messages_max=1_000,
        message_bytes_max=65_536,
        bytes_max=65_536_000,
    ),
    live=False,
    version=9,
)
UNTOUCHED = msgspec.structs.replace(
    STATE,
    messages=0,
    bytes=0,
    available=0,
    oldest_ms=0,
    newest_ms=0,
    last_added_ms=0,
    last_delivered_ms=0,
    last_removed_ms=0,
)
NOW_MS = MAY_FIRST_MS + 3_600_000

b64url = st.text(BASE64URL, min_size=1, max_size=200)
envelopes = st.fixed_dictionaries(
    {"protected": b64url, "iv": b64url, "ciphertext": b64url, "tag": b64url}
).map(orjson.dumps)


def message(message_id: str, payload: bytes) -> DeliveredMessage:
    return DeliveredMessage(message_id, "key", payload, MAY_FIRST_MS)


@given(envelopes)
def test_an_envelope_in_base64_is_the_same_text_in_every_dialect(envelope: bytes) -> None:
    text = base64_of_json(envelope)
    assert set(text) <= set(BASE64URL) - set(
        "-_"
    )  # no padding, and nothing that alphabets differ in
    assert base64.b64decode(text, validate=True) == base64.urlsafe_b64decode(text)
    assert orjson.loads(base64.b64decode(text)) == orjson.loads(envelope)


@given(st.binary(max_size=300))
def test_whatever_is_in_the_queue_survives_the_strictest_decoder(payload: bytes) -> None:
    decoded = base64.b64decode(base64_of_json(payload), validate=True)
    assert decoded.rstrip(b" ") == payload.rstrip(b" ")


@pytest.mark.parametrize(
    "odd", [b'{"a":">>>>>>"}', b'{"a":"~~~~~~"}', b'{"a":"??????"}', "{é}".encode()]
)
def test_an_envelope_that_the_dialects_differ_in_is_standard_base64(odd: bytes) -> None:
    for envelope in (odd, b" " + odd, b"  " + odd):
        assert base64.b64decode(base64_of_json(envelope), validate=True).rstrip() == envelope


def test_times_are_text_in_utc_as_the_documents_write_them() -> None:
    assert time_text(MAY_FIRST_MS) == "2019-05-01 12:00:00Z"
    assert time_text(MAY_FIRST_MS + 1_999) == "2019-05-01 12:00:01Z"


def test_a_live_delivery_has_no_thread_and_no_recipient() -> None:
    messages = [message("one", b"{}"), message("two", b"{}")]
    delivery = write(FORM_2.live_delivery(messages), "id 1")
    assert set(delivery) == {"@type", "@id", "~attach"}
    assert delivery["@type"] == "https://didcomm.org/messagepickup/2.0/delivery"
    assert delivery["@id"] == "id 1"
    (attached,) = attachments(messages).values()
    assert not isinstance(attached, Attachment)
    assert delivery["~attach"] == list(map(write_attachment, attached))


def test_a_pickup_3_status_has_its_times_in_unix_seconds() -> None:
    assert FORM_3.status_of(STATE, NOW_MS) == {
        "message_count": 7,
        "longest_waited_seconds": 3600,
        "newest_received_time": MAY_FIRST_MS // 1000 + 1,
        "oldest_received_time": MAY_FIRST_MS // 1000,
        "total_bytes": 8096,
        "live_delivery": False,
    }


def test_a_pickup_4_status_has_its_times_in_unix_milliseconds() -> None:
    assert FORM_4.status_of(STATE, NOW_MS) == {
        "message_count": 7,
        "newest_received_time": MAY_FIRST_MS + 1_999,
        "oldest_received_time": MAY_FIRST_MS,
        "total_bytes": 8096,
        "live_delivery": False,
    }


def test_what_never_happened_has_no_time() -> None:
    assert FORM_2.status_of(UNTOUCHED, NOW_MS) == {
        "message_count": 0,
        "longest_waited_seconds": 0,
        "total_bytes": 0,
        "live_delivery": False,
    }
    assert FORM_3.status_of(UNTOUCHED, NOW_MS) == FORM_2.status_of(UNTOUCHED, NOW_MS)
    assert FORM_4.status_of(UNTOUCHED, NOW_MS) == {
        "message_count": 0,
        "total_bytes": 0,
        "live_delivery": False,
    }
    assert pickup_1.status_of(UNTOUCHED, NOW_MS) == {
        "message_count": 0,
        "duration_waited": 0,
        "total_size": 0,
    }
    assert not [name for name in queue_1.status_of(UNTOUCHED, NOW_MS) if name.endswith("_time")]


def test_before_the_first_batch_the_oldest_message_says_how_long_was_waited() -> None:
    fresh = msgspec.structs.replace(STATE, last_delivered_ms=0)
    assert pickup_1.status_of(fresh, NOW_MS)["duration_waited"] == 3600
    assert queue_1.status_of(fresh, NOW_MS)["duration_waited"] == 3600


def test_a_clock_that_was_set_back_waits_no_negative_time() -> None:
    early_ms = MAY_FIRST_MS - 5_000
    assert FORM_2.status_of(STATE, early_ms)["longest_waited_seconds"] == 0
    assert pickup_1.status_of(STATE, early_ms)["duration_waited"] == 0


def test_nothing_waits_for_a_recipient_that_is_not_of_the_queue() -> None:
    seen = FORM_2.status_of(with_nothing(STATE), NOW_MS)
    assert seen == FORM_2.status_of(UNTOUCHED, NOW_MS)
