"""Delivery of waiting envelopes to one socket of one agent: live mode, and implicit pickup.

Both wait for the same wake-up. Live mode wraps messages in a ``delivery``, which the agent
acknowledges (RFC 0685). Implicit pickup sends each message unchanged and has no acknowledgement
(RFC 0092); instead a ping follows the messages, and its pong (RFC 6455) shows that the agent has
read everything sent before the ping.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from actors.core.forwarded import LIVE
from actors.core.refusals import Refusal
from actors.core.replies import DeliveredMessage, Delivery
from actors.host.clock import new_id
from http_edge.didcomm.delivery.hand_out import IMPLICIT, delivery_to, packed
from http_edge.didcomm.delivery.waiting import Wake
from http_edge.didcomm.envelopes.messages import AgentAccount, NewMessage
from http_edge.didcomm.envelopes.versions import Envelopes
from http_edge.didcomm.identities import TO_RETRY, Identities
from http_edge.listener.outgoing import Outgoing
from http_edge.settings.settings import DidComm

_RETRY_S: Final = 1.0
"""Pause after an unknown outcome, or too many large answers; both are over within seconds."""
_SWEEP_S: Final = 900.0
"""A wake-up is a hint and can be lost, so the queue is also asked at this interval. Each question
is sealed in the log, so thousands of idle sockets must not ask often."""
_BATCH: Final = 20
"""Messages in one live delivery or between two pings: enough to fill the pipe."""

LiveDelivery: TypeAlias = Callable[[Sequence[DeliveredMessage]], NewMessage]
"""Writes messages as an unsolicited delivery."""
Arrived: TypeAlias = Callable[[Sequence[str]], Awaitable[bool]]
"""Notes messages with these ids, which were sent, and waits until the agent has read all that was
sent; False if there is nothing more to push. What was noted is then removed; if there was no room
to note it, it is offered again."""


class Pump:
    """Sends one agent's messages to one socket, each time until a ``Wake`` is over."""

    def __init__(
        self,
        settings: DidComm,
        envelopes: Envelopes,
        identities: Identities,
        agent: AgentAccount,
        *,
        session: str,
        outgoing: Outgoing,
    ) -> None:
        self._settings = settings
        self._envelopes = envelopes
        self._identities = identities
        self._agent = agent
        self._session = session
        self._outgoing = outgoing
        self._pushed: list[DeliveredMessage] = []
        self._handing_out: set[asyncio.Task[Any] | None] = set()
        self._none_hands_out = asyncio.Event()
        self._none_hands_out.set()
        self._sends_in_order = asyncio.Lock()
        # The loop itself keeps no task alive.
        self._sending: asyncio.Task[None] | None = None
        self._delivery: LiveDelivery | None = None
        self._implicit: Wake | None = None
        self.sent_implicitly = 0
        """Messages that implicit pickup has sent on this socket."""

    @property
    def is_implicit(self) -> bool:
        """Does implicit pickup send the agent's messages on this socket?"""
        return self._implicit is not None and not self._implicit.is_over

    def push(self, message: DeliveredMessage) -> None:
        """Send a message that was leased to this session when it was queued.

        It goes out after the messages that are being fetched, also by a request of the agent.
        Messages pushed together go out in one delivery.
        """
        self._pushed.append(message)
        if len(self._pushed) == 1:
            self._begin_to_send()

    def hold(self) -> None:
        """Keep later messages back until this task calls ``let_go``: it hands out earlier ones."""
        self._handing_out.add(asyncio.current_task())
        self._none_hands_out.clear()

    def let_go(self) -> None:
        """Send what was pushed while this task handed out messages, if it did."""
        self._handing_out.discard(asyncio.current_task())
        if self._pushed:
            self._begin_to_send()
        if not self._handing_out:
            self._none_hands_out.set()  # last: what is fetched next follows what was pushed

    def _begin_to_send(self) -> None:
        if not self._handing_out:
            self._sending = asyncio.get_running_loop().create_task(self._send_pushed())

    async def _send_pushed(self) -> None:
        """Send what was pushed in deliveries, after those that are being fetched or packed."""
        if self._handing_out:
            return
        pushed, self._pushed = self._pushed, []
        async with self._sends_in_order:
            for start in range(0, len(pushed), _BATCH):
                await self._send_batch(pushed[start : start + _BATCH])

    async def sent(self) -> None:
        """Wait until what is being fetched is on its way: an answer must not overtake it."""
        async with self._sends_in_order:
            pass

    async def _send_batch(self, messages: Sequence[DeliveredMessage]) -> None:
        write, agent, message_id = self._delivery, self._agent, new_id()
        if write is None or not messages:
            return
        size_bytes = sum(len(message.payload) for message in messages)
        pack = self._envelopes.pack
        self._outgoing.put(
            await packed(size_bytes, lambda: pack(write(messages), agent, message_id))
        )

    async def live(
        self, wake: Wake, version: int, agent: AgentAccount, delivery: LiveDelivery
    ) -> Refusal | None:
        """Deliver messages queued after ``version`` of the identity, until live mode ends.

        The socket's first fetch, which the host gets before any later command, turns live mode on
        there; all others wait for a reader that is slower than the queue, so as not to cut it off,
        and for a request that hands out earlier messages, as pushed messages do.
        ``agent`` is the account that asked for live mode, perhaps in another message version than
        the socket's first message; ``delivery`` writes a delivery of the live mode's protocol.
        The agent has to ask for messages that waited before (RFC 0685, live mode). Return the
        refusal that ended it, None for any other end.
        """
        is_again = self._delivery is not None
        self._agent, self._delivery = agent, delivery
        if is_again:
            await self._all_handed_out()
        while not wake.is_over:
            pause_s = await self._deliver_live(version)
            if isinstance(pause_s, Refusal):
                return pause_s
            await wake.next(pause_s)
            await self._all_handed_out()
        return None

    async def implicit(self, wake: Wake, arrived: Arrived) -> Refusal | None:
        """Send messages unchanged, until a newer socket takes over; return as ``live`` does."""
        self._implicit = wake
        while not wake.is_over:
            sent = await self._send_as_they_are(arrived)
            if isinstance(sent, Refusal):
                if sent not in TO_RETRY:
                    wake.close(0)
                    return sent
                await asyncio.sleep(_RETRY_S)
                continue
            is_read, available = sent
            if is_read is not None and not await is_read:
                return None
            if is_read is None or not available:
                await wake.next(_SWEEP_S)
        return None

    async def _send_as_they_are(
        self, arrived: Arrived
    ) -> tuple[Awaitable[bool] | None, int] | Refusal:
        """Send what one fetch finds; return what waits for its reader, and how many more wait.

        Neither messages nor ids are kept here: their reader may take minutes for them.
        """
        async with self._sends_in_order:
            delivery = await self._take(IMPLICIT, implicit=True)
            if isinstance(delivery, Refusal):
                return delivery
            for message in delivery.messages:
                self._outgoing.put(message.payload)
            self.sent_implicitly += len(delivery.messages)
        message_ids = [message.message_id for message in delivery.messages]
        return (arrived(message_ids) if message_ids else None), delivery.state.available

    async def _deliver_live(self, version: int) -> float | Refusal:
        """Deliver what one fetch finds; return the pause (s), or the refusal that ends it all."""
        self.hold()
        try:
            async with self._sends_in_order:
                delivery = await self._take(LIVE, after_version=version, live=True)
                if not isinstance(delivery, Refusal):
                    await self._send_batch(delivery.messages)
        finally:
            self.let_go()
            await self._send_pushed()
        if isinstance(delivery, Refusal):
            return _RETRY_S if delivery in TO_RETRY else delivery
        # Messages queued since have woken this pump.
        return 0.0 if delivery.messages and delivery.state.available else _SWEEP_S

    async def _all_handed_out(self) -> None:
        """Wait until no request hands out messages and every frame is handed to the network."""
        await self._outgoing.written()
        while self._handing_out:
            await self._none_hands_out.wait()
            await self._outgoing.written()

    async def _take(self, channel: str, **wanted: bool | int) -> Delivery | Refusal:
        command = delivery_to(self._session, channel, _BATCH, self._settings)
        command = msgspec.structs.replace(command, **wanted)
        return await self._identities.ask_unprompted(self._agent.did, command, Delivery)
