"""Message pickup 3.0 (didcomm.org/messagepickup/3.0): recipients are DIDs, times Unix seconds."""

from __future__ import annotations

from typing import Final

from actors.core.replies import QueueState
from http_edge.didcomm.envelopes.messages import Json
from http_edge.didcomm.protocols.own_queue import received_times, seconds_since
from http_edge.didcomm.protocols.pickup import PickupForm


def status_of(state: QueueState, now_ms: int) -> Json:
    """Return all attributes of a status but ``recipient_did``; omit the time of no message."""
    return {
        "message_count": state.messages,
        "longest_waited_seconds": seconds_since(state.oldest_ms, now_ms),
        **received_times(state, unit_ms=1000),
        "total_bytes": state.bytes,
        "live_delivery": state.live,
    }


FORM: Final = PickupForm("messagepickup", 3, "recipient_did", "limit", status_of)
