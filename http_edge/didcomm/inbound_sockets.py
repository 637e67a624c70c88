"""The agents on one socket: answers to them, and messages pushed to them unasked."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

import msgspec

from actors.core.commands import ReleaseLeases, StartLive
from actors.core.refusals import Refusal
from actors.core.replies import Done, EnvelopeDelivered, IdentityGone, Notice, QueueState
from actors.host.clock import new_id
from actors.host.tasks import Tasks
from eventstore.log.seal import command_key
from http_edge.didcomm.delivery.pump import LiveDelivery, Pump
from http_edge.didcomm.delivery.waiting import Waiting, Wake
from http_edge.didcomm.envelopes.messages import AgentAccount, Message
from http_edge.didcomm.envelopes.versions import Envelopes
from http_edge.didcomm.http_endpoint import close_code
from http_edge.didcomm.identities import GIVEN_UP, Identities, speak_as, speaker
from http_edge.didcomm.inbound import Inbound, MessageRejection
from http_edge.didcomm.inbound_transport import InboundTransport
from http_edge.didcomm.protocols.pickup import ends_implicit, opens_route
from http_edge.didcomm.protocols.pickup_1 import waits
from http_edge.didcomm.protocols.protocol import (
    LiveModeChange,
    Outcome,
    PeerState,
    Request,
    hand_over,
)
from http_edge.didcomm.rejections import reason_of
from http_edge.didcomm.unconfirmed import Handover, Shared, Unconfirmed
from http_edge.dispatch.hub import Hub
from http_edge.listener.connection import Connection
from http_edge.listener.outgoing import Outgoing
from http_edge.settings.settings import Settings

_LOG = logging.getLogger(__name__)
_PEERS_MAX: Final = 3
"""Agents on one socket; one more agent gets answers, but no pushed messages. No known agent shares
a socket, but one whose DID has changed can count twice. Each takes up to 14 KB."""
_LEASES_MAX: Final = 4
"""Other agents on one socket whose leases end with it; those of one more end by themselves."""
_ERASED: Final = 4410
"""Close code of a socket when an agent that listens on it is erased."""
_LONG_POLLS_MAX: Final = 8
"""Long polls of one socket at once; one more is answered without waiting."""

_Push: TypeAlias = Callable[[Wake], Coroutine[Any, Any, Refusal | None]]
"""Pushes until its wake is over; made within its task, which may be cancelled before it begins."""


class SocketDependencies(msgspec.Struct, frozen=True):
    """Dependencies that all sockets of one edge share."""

    settings: Settings
    envelopes: Envelopes
    inbound: Inbound
    identities: Identities
    hub: Hub
    waiting: Waiting
    shared: Shared = msgspec.field(default_factory=Shared)
    """The bytes beyond those of each for what their clients have not confirmed."""


class _Peer:
    """One agent on one socket; a subscriber of the hub (``http_edge.dispatch.hub.Subscriber``)."""

    def __init__(self, pump: Pump, outgoing: Outgoing) -> None:
        self.pump = pump
        self.explicit = False
        self.live_since: int | None = None
        self.delivery: LiveDelivery | None = None
        self.speaker = ""
        """The DID that spoke last for the agent on this socket."""
        self._wake = Wake()
        self._started_by = ""
        self._running = Tasks()
        self._outgoing = outgoing
        self._awaited: list[tuple[int, asyncio.Future[bool]]] = []

    def notify(self, notice: Notice) -> None:
        if isinstance(notice, EnvelopeDelivered):
            self.pump.push(notice.message)
            return
        self._wake.notify(notice)
        if isinstance(notice, IdentityGone):
            self._outgoing.close(_ERASED, reason="erased")

    def close(self, code: int) -> None:
        self._wake.close(code)
        self._outgoing.close(code)

    @property
    def is_pumping(self) -> bool:
        return bool(self._running) and not self._wake.is_over

    @property
    def pumps_for_speaker(self) -> bool:
        """Does it push for the DID that speaks now, and not for one that was given up since?"""
        return self.is_pumping and self._started_by == speaker()

    @property
    def is_live_for_prior(self) -> bool:
        """Is it live for another DID than the one that spoke last here and speaks now?"""
        return self.live_since is not None and self._started_by != speaker() == self.speaker

    def start(self, work: _Push) -> None:
        """Push messages with ``work`` alone, in place of earlier work, until its wake is over."""
        self.finish()
        self._wake, self._started_by = Wake(), speaker()
        self._running.run(self._push(work, self._wake)).add_done_callback(_log_failure)

    async def _push(self, work: _Push, wake: Wake) -> None:
        """Push; then close the socket of a DID that was given up, if its successor is not on it."""
        refused = await work(wake)
        if refused in GIVEN_UP and self.speaker == speaker():
            self.close_after(refused)

    def close_after(self, refused: Refusal) -> None:
        """Close the socket with the code and the name of what refuses its agent."""
        reason = reason_of(refused)
        self._outgoing.close(close_code(reason), reason=reason.value)

    def end_implicit(self) -> None:
        """Push nothing implicitly from now on."""
        if not self.explicit:
            self.explicit = True
            self.finish()

    def finish(self) -> None:
        """Push no more messages, but complete the push under way, though not until it is read.

        A push that stopped between leasing messages and sending them would hold leases for nothing.
        """
        self._wake.close(0)
        for _, awaited in self._awaited:
            if not awaited.done():
                awaited.set_result(False)
        self._awaited.clear()

    async def has_read(self, ping: int) -> bool:
        """Wait until the agent has read what precedes a ping; False if the pushes end before."""
        awaited: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._awaited.append((ping, awaited))
        return await awaited

    def take_pong(self, ping: int) -> None:
        """Continue the pushes that wait until the agent has read what precedes this ping."""
        still = [one for one in self._awaited if one[0] > ping]
        for number, awaited in self._awaited:
            if number <= ping and not awaited.done():
                awaited.set_result(True)
        self._awaited = still

    def stop(self) -> None:
        """Cancel the pushes under way, because the socket is gone."""
        self._running.cancel()


class InboundSocket(InboundTransport):
    """A socket as a transport: its agents, its pings, and its long polls."""

    def __init__(
        self, dependencies: SocketDependencies, outgoing: Outgoing, client: Connection
    ) -> None:
        super().__init__()
        self._dependencies = dependencies
        self._outgoing = outgoing
        self._client = client
        self._peers: dict[str, _Peer] = {}
        self._leased: set[str] = set()
        self._tasks = Tasks()
        self._passed: set[asyncio.Task[None]] = set()
        self._passable: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done if the next message may overtake the present one."""
        self._pings = 0
        self._ponged = 0
        self._is_alive = True
        self._beats_missed = 0
        self._unconfirmed = Unconfirmed(dependencies.shared)
        self.is_in_use = False
        """Has a message been accepted on this socket?"""

    # ---- messages

    async def take(self, body: bytes) -> None:
        """Process a message; return when it is handled, or when the next one may overtake it."""
        self._passable = asyncio.get_running_loop().create_future()
        handling = self._spawn(self._receive_message(body))
        await asyncio.wait({handling, self._passable}, return_when=asyncio.FIRST_COMPLETED)
        if not handling.done():
            self._passed.add(handling)
            handling.add_done_callback(self._passed.discard)

    async def admit(self, sender: AgentAccount, message: Message) -> PeerState:
        """Register the agent before its message is handled, which may start live mode.

        A wish for live mode opens the route: on a socket nothing else can be meant by it. A message
        that is repeated for another account may have been passed by then.
        """
        if opens_route(message):
            message = msgspec.structs.replace(message, return_route="all")
        peer = await super().admit(sender, message)
        is_passed = asyncio.current_task() in self._passed
        patient = is_passed or len(self._passed) < _LONG_POLLS_MAX
        is_peer = peer.open_route and await self._let_in(sender)
        if is_peer and ends_implicit(message):
            self._peers[sender.did].end_implicit()
        if waits(message) and patient and not (is_passed or self._passable.done()):
            self._passable.set_result(None)
        is_live = is_peer and self._peers[sender.did].live_since is not None
        pump = self._peers[sender.did].pump if is_peer else None
        return msgspec.structs.replace(peer, patient=patient, live=is_live, pump=pump)

    async def _let_in(self, sender: AgentAccount) -> bool:
        did, hub = sender.did, self._dependencies.hub
        if did not in self._peers:
            if len(self._peers) >= _PEERS_MAX:
                return False
            limits = self._dependencies.settings.limits
            if hub.subscribers_of(did) >= limits.sockets_per_identity_max:
                return False
            peer = self._peers[did] = self._peer_of(sender)
            hub.add(did, peer, self.session)
        self._peers[did].speaker = speaker()
        await hub.session_ended(did)
        return True

    async def end(self) -> None:
        """Stop all work and release the leases, because the socket is gone."""
        self._tasks.cancel()
        # All at once, before any host is waited for: what is pushed from now on would be lost here.
        for did, peer in self._peers.items():
            peer.stop()
            self._dependencies.hub.drop(did, peer)
        self._unconfirmed.clear()
        await asyncio.gather(*self._tasks, self._release_all(), return_exceptions=True)

    async def _release_all(self) -> None:
        """End the leases and sessions of one agent after the other, although one of them fails.

        Many sockets may end at once, and what they send takes slots that others need.
        """
        for did in [*self._peers, *self._leased]:
            await asyncio.wait({self._spawn(self._release(did))})

    async def _release(self, did: str) -> None:
        try:
            release = ReleaseLeases(self.session)
            await self._dependencies.identities.ask(did, release, b"", Done)
        finally:
            if did in self._peers:
                await self._dependencies.hub.end_session(did)

    async def _receive_message(self, body: bytes) -> None:
        try:
            received = await self._dependencies.inbound.receive(body, self)
        finally:
            self._client.handled(len(body))
            for peer in self._peers.values():
                peer.pump.let_go()  # in a task, so after the answer below
        if isinstance(received, MessageRejection):
            self._reject(received)
            return
        self.is_in_use = True
        if received.request is None or received.outcome is None:
            return
        if received.back is not None:
            self._outgoing.put(received.back)
            self._note_leases(received.request.sender.did, received.outcome)
            if ids := received.outcome.handed_over:
                request = received.request
                self._note_handover(request.sender.did, request.command, ids)
        await self._follow(received.request, received.outcome)

    def _note_leases(self, did: str, outcome: Outcome) -> None:
        """Note an agent that got messages, though none may be pushed to it."""
        has_leases = outcome.handed_over or outcome.delivered_bytes
        if has_leases and did not in self._peers and len(self._leased) < _LEASES_MAX:
            self._leased.add(did)

    def _reject(self, rejection: MessageRejection) -> None:
        """Report why a message was rejected, never in plain text: Credo fails on a non-envelope.

        If the sender is not proven, close the socket with a code that gives the reason.
        """
        if (report := self._dependencies.inbound.report(rejection)) is not None:
            self._outgoing.put(report)
        elif rejection.sender is None:
            self._outgoing.close(close_code(rejection.reason), reason=rejection.reason.value)

    async def _follow(self, request: Request, outcome: Outcome) -> None:
        """Start or stop pushing messages to the agent, as the outcome says."""
        peer = self._peers.get(request.sender.did)
        if peer is None:
            return
        if outcome.live is not None:
            self._follow_live(peer, request.sender, outcome.live)
        elif peer.is_live_for_prior and not outcome.refused:
            await self._stay_live(peer, request)
        elif (
            outcome.implicit
            and request.peer.open_route
            and not peer.explicit
            and not peer.pumps_for_speaker
            and await self._dependencies.waiting.open_session(request.sender.did, self.session)
            and not peer.explicit  # nor since: a long poll may be repeated for this account
        ):
            did = request.sender.did
            peer.start(lambda wake: peer.pump.implicit(wake, partial(self._arrived, did)))

    async def _stay_live(self, peer: _Peer, request: Request) -> None:
        """Go on with the live mode, which ended with the prior DID, for its successor here.

        If that fails, close the socket: without a word its successor would wait for ever.
        """
        start = StartLive(self._dependencies.hub.edge, self.session)
        state = await request.ask_account(start, QueueState)
        since = peer.live_since
        if since is None or not peer.is_live_for_prior:
            return  # changed meanwhile: a long poll waits beside later messages
        if isinstance(state, QueueState):
            # From where it began, so that nothing queued since the rotation is skipped.
            self._follow_live(peer, request.sender, LiveModeChange(peer.delivery, since))
        else:
            peer.close_after(Refusal.NOT_SPEAKING)

    def _follow_live(self, peer: _Peer, agent: AgentAccount, live: LiveModeChange) -> None:
        delivery = live.delivery
        if delivery is None:
            peer.live_since = None
            peer.finish()
            return
        # A repeated request continues from the first version, so that no message is skipped.
        since = peer.live_since if peer.is_pumping else None
        peer.live_since = since = live.version if since is None else since
        peer.delivery = delivery
        peer.start(lambda wake: peer.pump.live(wake, since, agent, delivery))

    def _note_handover(self, did: str, command: bytes, message_ids: Sequence[str]) -> None:
        """Have messages removed once the peer has read them, in the name of who speaks now.

        That may be after their leases, which end by themselves: it has them all the same. If too
        many wait for that already (``Unconfirmed``), they are not removed but offered again.
        """
        self._unconfirmed.add(Handover(did, speaker(), command, message_ids), self._ping())

    async def _remove(self, handover: Handover) -> None:
        speak_as(handover.speaker)
        identities = self._dependencies.identities
        await hand_over(identities, handover.did, handover.command, handover.message_ids)

    def _peer_of(self, agent: AgentAccount) -> _Peer:
        pump = Pump(
            self._dependencies.settings.didcomm,
            self._dependencies.envelopes,
            self._dependencies.identities,
            agent,
            session=self.session,
            outgoing=self._outgoing,
        )
        return _Peer(pump, self._outgoing)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._tasks.run(work)
        task.add_done_callback(_log_failure)
        return task

    # ---- pings

    def beat(self) -> int:
        """Send a ping; return how many beats in a row ended without a pong.

        Any pong counts: a client may have received what came before a ping only after minutes.
        """
        self._beats_missed = 0 if self._is_alive else self._beats_missed + 1
        self._is_alive = False
        self._ping()
        return self._beats_missed

    def take_pong(self, data: bytes) -> None:
        """Process a pong: the peer has read everything sent before the ping that it answers.

        One that answers no ping, as RFC 6455 allows, only shows that the peer is alive.
        """
        self._is_alive = True
        if not data.isdigit() or len(data) > len(b"%d" % self._pings):
            return
        self._ponged = max(self._ponged, min(int(data), self._pings))
        for handover in self._unconfirmed.confirm(self._ponged):
            _ = self._spawn(self._remove(handover))
        for peer in self._peers.values():
            peer.take_pong(self._ponged)

    def _arrived(self, did: str, message_ids: Sequence[str]) -> Awaitable[bool]:
        """Note messages that were pushed; return what waits until their agent has read them."""
        command = command_key(did, new_id())
        self._note_handover(did, command, message_ids)
        return self._peers[did].has_read(self._pings)

    def _ping(self) -> int:
        self._pings += 1
        self._outgoing.ping(b"%d" % self._pings)
        return self._pings


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        _LOG.error("a task of a socket failed", exc_info=task.exception())
