"""What a delivery and a status look like in each generation of pickup.

The queue is one; its messages and its numbers are written here in the words of RFC 0685 (pickup
2.0), RFC 0212 with its extension (pickup 1.0) and the Aries queue 1.0 draft. Sizes are bytes,
durations whole seconds, times text in UTC. A time of something that never happened is left out.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec
import orjson

from actors.clock import NewId
from actors.replies import DeliveredMessage, QueueState
from http_edge.didcomm.messages import NEW_PREFIX, Json

LIVE_DELIVERY_TYPE: Final = f"{NEW_PREFIX}messagepickup/2.0/delivery"
"""Pickup 2.0 is younger than the change of prefixes and has one spelling (RFC 0348)."""
_TIME: Final = "%Y-%m-%d %H:%M:%SZ"


def time_text(at_ms: int) -> str:
    """Unix milliseconds as these protocols write a time: ``2019-05-01 12:00:00Z``."""
    return datetime.fromtimestamp(at_ms // 1000, UTC).strftime(_TIME)


def base64_text(envelope: bytes) -> str:
    """An envelope in base64 that every dialect reads alike, where there is such a text.

    Agents decode ``data.base64`` as padded standard base64 (strictly), or as base64url without
    padding (RFC 0017), or drop what they do not know. JSON may end in blanks: its length is made a
    multiple of three, and there is no padding. Of ASCII text only ``>``, ``~``, ``?`` and DEL, in
    every third place, give a character that the alphabets do not share, and no agent packs an
    envelope with one of these in it; if one did, this is standard base64.
    """
    return b64encode(envelope + b" " * (-len(envelope) % 3)).decode("ascii")


def attachments(messages: Sequence[DeliveredMessage]) -> list[Json]:
    """Messages as the ``~attach`` of a pickup 2.0 delivery; ``@id`` is what acknowledges one."""
    return [
        {"@id": message.message_id, "data": {"base64": base64_text(message.payload)}}
        for message in messages
    ]


def live_delivery(messages: Sequence[DeliveredMessage], new_id: NewId) -> Json:
    """A pickup 2.0 delivery that nobody asked for, so without a thread (RFC 0685, live mode)."""
    return {"@type": LIVE_DELIVERY_TYPE, "@id": new_id(), "~attach": attachments(messages)}


def batch_items(messages: Sequence[DeliveredMessage]) -> list[Json]:
    """Messages as the ``messages~attach`` of a pickup 1.0 batch or list-response.

    The id stands in two members: RFC 0212 writes ``@id``, and Credo reads ``id``.
    """
    return [
        {"@id": message.message_id, "id": message.message_id, "message": _object(message.payload)}
        for message in messages
    ]


def queue_items(messages: Sequence[DeliveredMessage]) -> list[Json]:
    """Messages as the ``messages`` of a queue 1.0 batch."""
    return [
        {
            "id": message.message_id,
            "msg": _object(message.payload),
            "added_time": time_text(message.at_ms),
        }
        for message in messages
    ]


def of_no_key(state: QueueState) -> QueueState:
    """The state as seen through a key that is not of this queue: nothing waits for it."""
    return msgspec.structs.replace(
        state, messages=0, bytes=0, available=0, oldest_ms=0, newest_ms=0
    )


def pickup_2_status(state: QueueState, now_ms: int) -> Json:
    """All attributes of a pickup 2.0 status but ``recipient_key``, which is the asker's."""
    return {
        "message_count": state.messages,
        "longest_waited_seconds": _seconds_since(state.oldest_ms, now_ms),
        **_times(newest_received_time=state.newest_ms, oldest_received_time=state.oldest_ms),
        "total_bytes": state.bytes,
        "live_delivery": state.live,
    }


def pickup_1_status(state: QueueState, now_ms: int) -> Json:
    """All attributes of a pickup 1.0 status."""
    return {
        "message_count": state.messages,
        "duration_waited": _duration_waited(state, now_ms),
        **_last_times(state),
        "total_size": state.bytes,
    }


def queue_1_status(state: QueueState, now_ms: int) -> Json:
    """All properties of the ``status`` of queue 1.0; a limit of 0 is no limit."""
    policy = state.policy
    return {
        "duration_limit": policy.age_s_max,
        "duration_waited": _duration_waited(state, now_ms),
        **_last_times(state),
        "message_count": state.messages,
        "message_count_limit": policy.messages_max,
        "message_size_limit": policy.message_bytes_max,
        "size": state.bytes,
        "size_limit": policy.bytes_max,
        "will_queue": policy.will_queue,
    }


def _duration_waited(state: QueueState, now_ms: int) -> int:
    """Seconds since the last batch was returned; before the first, since the oldest waits."""
    return _seconds_since(state.last_delivered_ms or state.oldest_ms, now_ms)


def _last_times(state: QueueState) -> Json:
    return _times(
        last_added_time=state.last_added_ms,
        last_delivered_time=state.last_delivered_ms,
        last_removed_time=state.last_removed_ms,
    )


def _times(**at_ms: int) -> Json:
    return {name: time_text(at) for name, at in at_ms.items() if at}


def _seconds_since(at_ms: int, now_ms: int) -> int:
    return max(0, now_ms - at_ms) // 1000 if at_ms else 0


def _object(payload: bytes) -> object:
    """An envelope as a JSON object; only JSON objects enter the queue (``families.routing``)."""
    return orjson.loads(payload)
