"""The queue of whoever asks: the questions that the families of pickup have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from actors.commands import (
    Command,
    DeliverMessages,
    EndLive,
    QueryQueue,
    RemoveMessages,
    StartLive,
)
from actors.refusals import Refusal
from actors.replies import Delivery, QueueState
from http_edge.config import DidComm
from http_edge.didcomm.handling import Asked
from http_edge.didcomm.identities import Identities

IDS_MAX: Final = 1_000
"""Ids in one message of a wallet: ten times what a delivery carries by default."""
_ID_CHARS_MAX: Final = 64
"""No id of ours is longer; a longer one is unknown, and need not travel to find that out."""
_ACKNOWLEDGED: Final = "acknowledged"


def read_ids(value: object) -> list[str] | None:
    """A member that lists message ids, or None: no list of strings, or more than ``IDS_MAX``."""
    if not isinstance(value, list) or len(value) > IDS_MAX:
        return None
    ids = [item for item in value if isinstance(item, str)]
    return ids if len(ids) == len(value) else None


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

    async def state(self, asked: Asked, recipient_key: str | None = None) -> QueueState | Refusal:
        """How the queue stands, of one key (base58) alone when it is named."""
        return await self.change(asked, QueryQueue(recipient_key))

    async def change(
        self, asked: Asked, command: Command, *, can_linger: bool = False
    ) -> QueueState | Refusal:
        """Do something that is answered by how the queue stands then."""
        return await self._identities.ask(
            asked.sender.did, command, asked.command, QueueState, can_linger=can_linger
        )

    async def live(self, asked: Asked, edge: str | None) -> QueueState | Refusal:
        """Start the live mode of the asking session on this edge, or end it for None."""
        if edge is None:
            return await self.change(asked, EndLive(asked.session))
        start = StartLive(edge, asked.session, self._lease_ms, self._bytes_max)
        return await self.change(asked, start)

    async def acknowledge(self, asked: Asked, message_ids: Sequence[str]) -> QueueState | Refusal:
        """Remove the messages with these ids; foreign and unknown ids are ignored alike."""
        removal = RemoveMessages(_possible(message_ids), _ACKNOWLEDGED)
        # Each live delivery is acknowledged alone: a commit for each would be in the way of others.
        return await self.change(asked, removal, can_linger=asked.live)

    async def deliver(
        self, asked: Asked, limit: int, *, recipient_key: str | None = None, at_least: int = 0
    ) -> Delivery | Refusal:
        """Lease the oldest messages to the session that asks, or none below ``at_least``."""
        command = DeliverMessages(
            session=asked.session,
            channel=self._channel,
            limit=min(limit, self._messages_max),
            bytes_max=self._bytes_max,
            lease_ms=self._lease_ms,
            recipient_key=recipient_key,
            at_least=min(at_least, self._messages_max),
        )
        return await self._deliver(asked, command)

    async def show(self, asked: Asked, message_ids: Sequence[str]) -> Delivery | Refusal:
        """The messages with these ids that nobody else holds, in that order; they stay on offer."""
        command = DeliverMessages(
            session=asked.session,
            channel=self._channel,
            limit=self._messages_max,
            bytes_max=self._bytes_max,
            lease_ms=0,
            message_ids=_possible(message_ids),
        )
        return await self._deliver(asked, command)

    async def _deliver(self, asked: Asked, command: DeliverMessages) -> Delivery | Refusal:
        return await self._identities.ask(asked.sender.did, command, asked.command, Delivery)


def _possible(message_ids: Sequence[str]) -> list[str]:
    return [message_id for message_id in message_ids if len(message_id) <= _ID_CHARS_MAX]
