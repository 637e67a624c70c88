"""Moves waiting envelopes to one socket of one agent: live mode, and implicit pickup.

Both wait for the same wake-up. Live mode wraps each message in a ``delivery``, and the agent
acknowledges it (RFC 0685); implicit pickup sends it as it is, and the pong to a ping behind it
takes the place of the acknowledgement it does not have (RFC 0092, RFC 6455): the other side has
read everything before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

from actors.core.commands import DeliverMessages, RemoveMessages
from actors.core.envelopes import LIVE
from actors.core.refusals import Refusal
from actors.core.replies import DeliveredMessage, Delivery, QueueState
from actors.host.clock import NewId
from eventstore.log.seal import command_key
from http_edge.didcomm.delivery.waiting import Wake
from http_edge.didcomm.envelopes.messages import AgentAccount, NewMessage
from http_edge.didcomm.envelopes.versions import Envelopes
from http_edge.didcomm.identities import Identities
from http_edge.listener.outgoing import Outgoing
from http_edge.settings.settings import DidComm

_RETRY_S: Final = 1.0
"""After an unknown outcome; the host answers again within seconds."""
_SWEEP_S: Final = 900.0
"""A wake-up is a hint and can be missing: this often the queue is asked all the same. Each question
is sealed in the log, so thousands of idle sockets must not ask often."""
_IMPLICIT: Final = "implicit"
_DELIVERED: Final = "delivered"
_BATCH: Final = 20
"""Messages in one live delivery or between two pings: enough to fill the pipe."""

LiveDelivery: TypeAlias = Callable[[Sequence[DeliveredMessage]], NewMessage]
"""Writes messages as a delivery that answers no request."""
Arrived: TypeAlias = Callable[[], Awaitable[bool]]
"""Waits until the other side has read everything that was sent; False when it is gone."""


class Pump:
    """Sends one agent's messages to one socket, each time until a wake is over."""

    def __init__(  # noqa: PLR0913 - what a socket and its edge know, each said once
        self,
        settings: DidComm,
        envelopes: Envelopes,
        identities: Identities,
        agent: AgentAccount,
        *,
        session: str,
        outgoing: Outgoing,
        new_id: NewId,
    ) -> None:
        """A pump for ``agent`` on the socket with this ``session``."""
        self._settings = settings
        self._envelopes = envelopes
        self._identities = identities
        self._agent = agent
        self._session = session
        self._outgoing = outgoing
        self._new_id = new_id
        self._pushed: list[DeliveredMessage] = []
        self._fetching = 0
        self._delivery: LiveDelivery | None = None

    def push(self, message: DeliveredMessage) -> None:
        """Send what was leased to this session as it was queued, behind what is being fetched.

        What comes at once goes in one delivery.
        """
        self._pushed.append(message)
        if len(self._pushed) == 1 and not self._fetching:
            asyncio.get_running_loop().call_soon(self._send_pushed)

    def _send_pushed(self) -> None:
        # What was pushed before live mode was answered waits for that answer.
        if self._fetching or self._delivery is None:
            return
        pushed, self._pushed = self._pushed, []
        for start in range(0, len(pushed), _BATCH):
            self._send(pushed[start : start + _BATCH])

    def _send(self, messages: Sequence[DeliveredMessage]) -> None:
        if messages and self._delivery is not None:
            message = self._delivery(messages)
            self._outgoing.put(self._envelopes.pack(message, self._agent, self._new_id()))

    async def live(
        self, wake: Wake, version: int, agent: AgentAccount, delivery: LiveDelivery
    ) -> None:
        """Deliver what is queued after ``version`` of the identity, until live mode ends.

        ``agent`` is the account that asked, which may come in another message version than the
        first message of the socket; ``delivery`` is how the protocol of the live mode writes it.
        What waited before has to be asked for (RFC 0685, live mode).
        """
        self._agent = agent
        self._delivery = delivery
        while not wake.is_over:
            pause_s = await self._deliver_live(wake, version)
            if pause_s is None:
                return
            await wake.next(pause_s)

    async def implicit(self, wake: Wake, arrived: Arrived) -> None:
        """Send everything that waits and comes, as it is, until a newer socket takes over."""
        while not wake.is_over:
            delivery = await self._take(_IMPLICIT, implicit=True)
            if isinstance(delivery, Refusal):
                if delivery is not Refusal.TEMPORARILY_UNAVAILABLE:
                    return
                await asyncio.sleep(_RETRY_S)
                continue
            if not delivery.messages:
                await wake.next(_SWEEP_S)
                continue
            for message in delivery.messages:
                self._outgoing.put(message.payload)
            if not await arrived():
                return
            await self._remove(delivery.messages)
            if not delivery.state.available:
                await wake.next(_SWEEP_S)

    async def _deliver_live(self, wake: Wake, version: int) -> float | None:
        """Deliver until nothing is left: how long to wait then, None when live mode is over."""
        while not wake.is_over:
            # A reader that is slower than the queue is waited for, not cut off.
            await self._outgoing.written()
            self._fetching += 1
            try:
                delivery = await self._take(LIVE, after_version=version, live=True)
                if not isinstance(delivery, Refusal):
                    self._send(delivery.messages)
            finally:
                self._fetching -= 1
                self._send_pushed()
            if isinstance(delivery, Refusal):
                unknown = delivery is Refusal.TEMPORARILY_UNAVAILABLE
                return _RETRY_S if unknown else None
            if not delivery.messages:
                return _SWEEP_S
            if not delivery.state.available:
                return _SWEEP_S  # whatever has come since has woken this pump
        return None

    async def _take(
        self,
        channel: str,
        *,
        after_version: int = 0,
        live: bool = False,
        implicit: bool = False,
    ) -> Delivery | Refusal:
        command = DeliverMessages(
            session=self._session,
            channel=channel,
            limit=min(_BATCH, self._settings.delivery_messages_max),
            bytes_max=self._settings.delivery_bytes_max,
            lease_ms=round(self._settings.lease_s * 1000),
            after_version=after_version,
            live=live,
            implicit=implicit,
        )
        return await self._identities.ask(self._agent.did, command, self._command(), Delivery)

    async def _remove(self, messages: list[DeliveredMessage]) -> None:
        removal = RemoveMessages([m.message_id for m in messages], _DELIVERED)
        await self._identities.ask(self._agent.did, removal, self._command(), QueueState)

    def _command(self) -> bytes:
        """A key in the log for a command that no message of the agent asked for."""
        return command_key(self._agent.did, self._new_id())
