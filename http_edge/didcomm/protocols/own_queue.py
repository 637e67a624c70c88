"""The sender's own queue: what the pickup protocols have in common.

There is one queue. The modules of pickup 1.0 (RFC 0212 with its extension), pickup 2.0 (RFC 0685),
3.0 and 4.0 (didcomm.org) and the Aries queue 1.0 draft write its messages and counts in the terms
of their protocol. Durations are whole seconds; times are text in UTC, or Unix time. The time of an
event that never happened is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from msgspec.structs import replace

from actors.core.commands import RemoveMessages
from actors.core.message_queue import ACKNOWLEDGED
from actors.core.refusals import Refusal
from actors.core.replies import DeliveredMessage, Delivery, QueueState
from http_edge.didcomm.delivery.hand_out import delivery_to
from http_edge.didcomm.envelopes.messages import Attachment, Attachments, Json
from http_edge.didcomm.protocols.protocol import Request
from http_edge.settings.settings import DidComm

IDS_MAX: Final = 1_000
"""Ids in one message of a wallet: ten times what a delivery carries by default."""
_ID_CHARS_MAX: Final = 64
"""No id of ours is longer; the edge drops a longer one as unknown without asking the host."""
_TIME: Final = "%Y-%m-%d %H:%M:%SZ"


class OwnQueue:
    """Sends commands about the sender's own queue to the sender's identity.

    The key that packed the message decides whose queue it is; no content of the message does.
    """

    def __init__(self, settings: DidComm, channel: str) -> None:
        """Name the protocol in the log by ``channel``."""
        self._settings = settings
        self._channel = channel

    async def acknowledge(
        self, request: Request, message_ids: Sequence[str]
    ) -> QueueState | Refusal:
        """Remove the messages with these ids; foreign and unknown ids are ignored alike."""
        removal = RemoveMessages(_possible(message_ids), ACKNOWLEDGED)
        # Live deliveries are acknowledged one by one: a commit for each would delay other commands.
        return await request.ask_account(removal, QueueState, can_linger=request.peer.live)

    async def deliver(
        self, request: Request, limit: int, *, recipient_key: str | None = None, at_least: int = 0
    ) -> Delivery | Refusal:
        """Lease the oldest messages to the request's session, or none if below ``at_least``.

        The answer follows earlier messages that are being fetched to be pushed on this session, and
        later ones follow the answer.
        """
        if request.peer.pump is not None:
            request.peer.pump.hold()
            await request.peer.pump.sent()
        command = delivery_to(request.session, self._channel, limit, self._settings)
        least = min(at_least, self._settings.delivery_messages_max)
        command = replace(command, recipient_key=recipient_key, at_least=least)
        return await request.ask_account(command, Delivery)

    async def show(self, request: Request, message_ids: Sequence[str]) -> Delivery | Refusal:
        """Return the messages with these ids, leased or not, in that order; change nothing."""
        limit = self._settings.delivery_messages_max
        command = delivery_to(request.session, self._channel, limit, self._settings)
        command = replace(command, lease_ms=0, message_ids=_possible(message_ids))
        return await request.ask_account(command, Delivery)


def _possible(message_ids: Sequence[str]) -> list[str]:
    return [message_id for message_id in message_ids if len(message_id) <= _ID_CHARS_MAX]


def attachments(
    messages: Sequence[DeliveredMessage], member: str = "", *, inlined: bool = False
) -> Attachments:
    """Return messages as attachments of a delivery; the agent acknowledges them by id.

    They belong to the ``member`` of this name, or to the whole message.
    """
    return {
        member: [Attachment(each.message_id, each.payload, inlined=inlined) for each in messages]
    }


def time_text(at_ms: int) -> str:
    """Format Unix milliseconds as these protocols write a time: ``2019-05-01 12:00:00Z``."""
    return datetime.fromtimestamp(at_ms // 1000, UTC).strftime(_TIME)


def times(**at_ms: int) -> Json:
    """Return members with these times, without those that are 0."""
    return {name: time_text(at) for name, at in at_ms.items() if at}


def received_times(state: QueueState, *, unit_ms: int) -> Json:
    """Return when the newest and the oldest waiting message came, in units of ``unit_ms``.

    Empty if no message waits.
    """
    if not state.messages:
        return {}
    return {
        "newest_received_time": state.newest_ms // unit_ms,
        "oldest_received_time": state.oldest_ms // unit_ms,
    }


def last_times(state: QueueState) -> Json:
    """Return when a message was last added, delivered and removed."""
    return times(
        last_added_time=state.last_added_ms,
        last_delivered_time=state.last_delivered_ms,
        last_removed_time=state.last_removed_ms,
    )


def duration_waited_s(state: QueueState, now_ms: int) -> int:
    """Return seconds since the last delivery; before the first, how long the oldest has waited."""
    return seconds_since(state.last_delivered_ms or state.oldest_ms, now_ms)


def seconds_since(at_ms: int, now_ms: int) -> int:
    """Return whole seconds since a time; 0 if the time is 0."""
    return max(0, now_ms - at_ms) // 1000 if at_ms else 0
