"""Message pickup 4.0 (didcomm.org/message-pickup/4.0), which every message version may carry.

Times are Unix milliseconds. A delivery request on an empty queue gets an empty delivery, an
acknowledgement gets no answer, and problem reports are messages of the protocol itself.
"""

from __future__ import annotations

from typing import Final

from actors.core.replies import QueueState
from http_edge.didcomm.envelopes.messages import Json
from http_edge.didcomm.protocols.own_queue import received_times
from http_edge.didcomm.protocols.pickup import PickupForm


def status_of(state: QueueState, _now_ms: int) -> Json:
    """Return all attributes of a status but ``recipient_did``; omit the time of no message."""
    return {
        "message_count": state.messages,
        **received_times(state, unit_ms=1),
        "total_bytes": state.bytes,
        "live_delivery": state.live,
    }


FORM: Final = PickupForm(
    "message-pickup",
    4,
    "recipient_did",
    "message_count_limit",
    status_of,
    delivers_nothing=True,
    answers_receipt=False,
    reports_itself=True,
)
