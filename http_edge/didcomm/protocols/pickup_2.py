"""Message pickup 2.0 (RFC 0685): recipients are keys, and times are text."""

from __future__ import annotations

from typing import Final

from actors.core.replies import QueueState
from http_edge.didcomm.envelopes.messages import Json
from http_edge.didcomm.protocols.own_queue import seconds_since, times
from http_edge.didcomm.protocols.pickup import PickupForm


def status_of(state: QueueState, now_ms: int) -> Json:
    """Return all attributes of a status but ``recipient_key``, which echoes the sender's text."""
    return {
        "message_count": state.messages,
        "longest_waited_seconds": seconds_since(state.oldest_ms, now_ms),
        **times(newest_received_time=state.newest_ms, oldest_received_time=state.oldest_ms),
        "total_bytes": state.bytes,
        "live_delivery": state.live,
    }


FORM: Final = PickupForm("messagepickup", 2, "recipient_key", "limit", status_of)
