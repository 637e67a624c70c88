"""The queue of the agent that asks: what the protocols of pickup have in common.

The queue is one; its messages and its numbers are written in the words of pickup 2.0 (RFC 0685),
3.0 and 4.0 (didcomm.org), pickup 1.0 (RFC 0212 with its extension) and the Aries queue 1.0 draft by
the modules of these protocols. Durations are whole seconds, times text in UTC or Unix time. A time
of something that never happened is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import orjson

from actors.core.commands import (
    Command,
    DeliverMessages,
    EndLive,
    QueryQueue,
    RemoveMessages,
    StartLive,
)
from actors.core.refusals import Refusal
from actors.core.replies import DeliveredMessage, Delivery, QueueState
from http_edge.didcomm.envelopes.messages import Attachment, Json
from http_edge.didcomm.identities import Identities
from http_edge.didcomm.protocols.protocol import Request
from http_edge.settings.settings import DidComm

IDS_MAX: Final = 1_000
"""Ids in one message of a wallet: ten times what a delivery carries by default."""
_ID_CHARS_MAX: Final = 64
"""No id of ours is longer; a longer one is unknown, and need not travel to find that out."""
_ACKNOWLEDGED: Final = "acknowledged"
_TIME: Final = "%Y-%m-%d %H:%M:%SZ"


class OwnQueue:
    """Asks the sender's identity about its own queue.

    Nothing that a message says decides whose queue it is: the key that packed it does.
    """

    def __init__(self, identities: Identities, settings: DidComm, channel: str) -> None:
        """Queues behind ``identities``; ``channel`` names the protocol in the log."""
        self._identities = identities
        self._messages_max = settings.delivery_messages_max
        self._bytes_max = settings.delivery_bytes_max
        self._lease_ms = round(settings.lease_s * 1000)
        self._channel = channel

    async def state(
        self, request: Request, recipient_key: str | None = None
    ) -> QueueState | Refusal:
        """How the queue stands, of one key (base58) alone when it is named."""
        return await self.change(request, QueryQueue(recipient_key))

    async def change(
        self, request: Request, command: Command, *, can_linger: bool = False
    ) -> QueueState | Refusal:
        """Do something that is answered by how the queue stands then."""
        return await self._identities.ask(
            request.sender.did,
            command,
            request.command,
            QueueState,
            can_linger=can_linger,
            by_owner=True,
        )

    async def live(self, request: Request, edge: str | None) -> QueueState | Refusal:
        """Start the live mode of the asking session on this edge, or end it for None."""
        if edge is None:
            return await self.change(request, EndLive(request.session))
        start = StartLive(edge, request.session, self._lease_ms, self._bytes_max)
        return await self.change(request, start)

    async def acknowledge(
        self, request: Request, message_ids: Sequence[str]
    ) -> QueueState | Refusal:
        """Remove the messages with these ids; foreign and unknown ids are ignored alike."""
        removal = RemoveMessages(_possible(message_ids), _ACKNOWLEDGED)
        # Each live delivery is acknowledged alone: a commit for each would be in the way of others.
        return await self.change(request, removal, can_linger=request.live)

    async def deliver(
        self, request: Request, limit: int, *, recipient_key: str | None = None, at_least: int = 0
    ) -> Delivery | Refusal:
        """Lease the oldest messages to the session that asks, or none below ``at_least``."""
        command = DeliverMessages(
            session=request.session,
            channel=self._channel,
            limit=min(limit, self._messages_max),
            bytes_max=self._bytes_max,
            lease_ms=self._lease_ms,
            recipient_key=recipient_key,
            at_least=min(at_least, self._messages_max),
        )
        return await self._deliver(request, command)

    async def show(self, request: Request, message_ids: Sequence[str]) -> Delivery | Refusal:
        """The messages with these ids, leased or not, in that order; nothing is changed."""
        command = DeliverMessages(
            session=request.session,
            channel=self._channel,
            limit=self._messages_max,
            bytes_max=self._bytes_max,
            lease_ms=0,
            message_ids=_possible(message_ids),
        )
        return await self._deliver(request, command)

    async def _deliver(self, request: Request, command: DeliverMessages) -> Delivery | Refusal:
        return await self._identities.ask(
            request.sender.did, command, request.command, Delivery, by_owner=True
        )


def _possible(message_ids: Sequence[str]) -> list[str]:
    return [message_id for message_id in message_ids if len(message_id) <= _ID_CHARS_MAX]


def attachments(messages: Sequence[DeliveredMessage], *, inlined: bool = False) -> list[Attachment]:
    """Messages as attachments of a delivery; the id is what acknowledges one."""
    return [
        Attachment(message.message_id, message.payload, inlined=inlined) for message in messages
    ]


def payload_object(message: DeliveredMessage) -> object:
    """An envelope as a JSON object; nothing else enters the queue (``Envelopes.read_forward``)."""
    return orjson.loads(message.payload)


def time_text(at_ms: int) -> str:
    """Unix milliseconds as these protocols write a time: ``2019-05-01 12:00:00Z``."""
    return datetime.fromtimestamp(at_ms // 1000, UTC).strftime(_TIME)


def times(**at_ms: int) -> Json:
    """Members with these times, but for those that are 0."""
    return {name: time_text(at) for name, at in at_ms.items() if at}


def received_times(state: QueueState, *, unit_ms: int) -> Json:
    """When the newest and the oldest that wait came, in Unix time of such units; none for none."""
    if not state.messages:
        return {}
    return {
        "newest_received_time": state.newest_ms // unit_ms,
        "oldest_received_time": state.oldest_ms // unit_ms,
    }


def last_times(state: QueueState) -> Json:
    """When a message was last added, delivered and removed."""
    return times(
        last_added_time=state.last_added_ms,
        last_delivered_time=state.last_delivered_ms,
        last_removed_time=state.last_removed_ms,
    )


def duration_waited_s(state: QueueState, now_ms: int) -> int:
    """Seconds since the last batch was returned; before the first, since the oldest waits."""
    return seconds_since(state.last_delivered_ms or state.oldest_ms, now_ms)


def seconds_since(at_ms: int, now_ms: int) -> int:
    """Whole seconds since a time; 0 for a time that is 0."""
    return max(0, now_ms - at_ms) // 1000 if at_ms else 0
