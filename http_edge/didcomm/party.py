"""The agents on one socket, what goes back to them, and what is sent to them on its own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

import msgspec
import orjson

from actors.clock import NewId
from actors.commands import ReleaseLeases
from actors.replies import Done, EnvelopeDelivered, Notice
from http_edge.config import DidComm
from http_edge.didcomm.conversation import Conversation, Line, Route, Standing, Trouble
from http_edge.didcomm.handling import Asked, Live, Outcome, Sender
from http_edge.didcomm.identities import Identities
from http_edge.didcomm.keys import KeyPair
from http_edge.didcomm.messages import NEW_PREFIX, Message
from http_edge.didcomm.pump import Pump
from http_edge.didcomm.waiting import Waiting, Wake
from http_edge.hub import Hub
from http_edge.outgoing import Outgoing

_LOG = logging.getLogger(__name__)
_PARTIES_MAX: Final = 64
"""Agents on one socket; a further one gets its answers, and nothing on its own."""
_LONG_POLLS_MAX: Final = 8
"""Messages of one socket that wait for others at once; the next one does not wait."""


class Front(msgspec.Struct, frozen=True):
    """What all sockets of one edge share."""

    settings: DidComm
    key: KeyPair
    conversation: Conversation
    identities: Identities
    hub: Hub
    waiting: Waiting
    new_id: NewId
    buffer_bytes_max: int
    sockets_per_identity_max: int
    finish_s_max: float
    open: set[Outgoing]
    """What is being written to every socket, those included on which nobody has spoken."""


class _Party:
    """One agent on one socket; it listens at the hub (``http_edge.hub.Listener``)."""

    def __init__(self, agent: Sender, session: str, pump: Pump, outgoing: Outgoing) -> None:
        self.agent = agent
        self.pump = pump
        self.explicit = False
        self.live_since: int | None = None
        self._session = session
        self._wake = Wake()
        self._running: set[asyncio.Task[None]] = set()
        self._outgoing = outgoing

    def notify(self, notice: Notice) -> None:
        if not isinstance(notice, EnvelopeDelivered):
            self._wake.notify(notice)
        elif notice.session == self._session:
            self.pump.push(notice.message)

    def close(self, code: int) -> None:
        self._wake.close(code)
        self._outgoing.close(code)

    @property
    def is_pumping(self) -> bool:
        return bool(self._running) and not self._wake.is_over

    def start(self, work: Callable[[Wake], Coroutine[Any, Any, None]]) -> None:
        """Let this and nothing else send on its own; it ends when its wake is over."""
        self.finish()
        self._wake = Wake()
        task = asyncio.get_running_loop().create_task(work(self._wake))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        task.add_done_callback(_log_failure)

    def finish(self) -> None:
        """Send no more on its own, but bring what is under way to its end.

        Whoever was cut off between taking messages and sending them would hold them for nothing.
        """
        self._wake.close(0)

    def stop(self) -> None:
        """The socket is gone, and with it whatever was under way."""
        for task in list(self._running):
            task.cancel()


class SocketLine(Line):
    """A socket as a line: its agents, its pings, and the messages that wait on it."""

    def __init__(self, front: Front, outgoing: Outgoing) -> None:
        """A socket on which nobody has said anything yet."""
        super().__init__(front.new_id)
        self._front = front
        self._outgoing = outgoing
        self._parties: dict[str, _Party] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._passed: set[asyncio.Task[None]] = set()
        self._passable = asyncio.Event()
        self._pings = 0
        self._ponged = 0
        self._beaten = 0
        self._beats_missed = 0
        self._awaited: list[tuple[int, asyncio.Future[bool]]] = []
        self.is_in_use = False

    # ---- messages

    def took(self) -> None:
        """Something was taken on this socket: it is there for something."""
        self.is_in_use = True

    async def take(self, body: bytes) -> None:
        """Take a message; returns when it is handled, or when the next one may pass it by."""
        self._passable = passable = asyncio.Event()
        handling = self._spawn(self._hear(body))
        passing = asyncio.get_running_loop().create_task(passable.wait())
        try:
            await asyncio.wait({handling, passing}, return_when=asyncio.FIRST_COMPLETED)
            if not handling.done():
                self._passed.add(handling)
                handling.add_done_callback(self._passed.discard)
        finally:
            passing.cancel()

    async def admit(self, sender: Sender, message: Message, route: Route) -> Standing:
        """Let the agent in before its message is handled: it may start the live mode."""
        patient = len(self._passed) < _LONG_POLLS_MAX
        if message.delay_ms is not None and patient:
            self._passable.set()
        is_party = route is Route.EVERYTHING and await self._let_in(sender)
        is_live = is_party and self._parties[sender.did].live_since is not None
        return Standing(persistent=is_party, patient=patient, live=is_live)

    async def _let_in(self, sender: Sender) -> bool:
        did, hub = sender.did, self._front.hub
        if did not in self._parties:
            if len(self._parties) >= _PARTIES_MAX:
                return False
            if hub.listeners_of(did) >= self._front.sockets_per_identity_max:
                return False
            party = self._parties[did] = self._party_of(sender)
            hub.add(did, party)
        await hub.session_ended(did)
        return True

    async def end(self) -> None:
        """The socket is gone: what it held is offered again."""
        for _, awaited in self._awaited:
            if not awaited.done():
                awaited.set_result(False)
        for task in list(self._tasks):
            task.cancel()
        for did, party in self._parties.items():
            party.stop()
            self._front.hub.remove(did, party)
        releases = [
            self._front.identities.ask(did, ReleaseLeases(self.session), b"", Done)
            for did in self._parties
        ]
        await asyncio.gather(*self._tasks, *releases, return_exceptions=True)

    async def _hear(self, body: bytes) -> None:
        heard = await self._front.conversation.hear(body, self)
        if isinstance(heard, Trouble):
            self._outgoing.put(_report(heard, self._front.new_id()))
            return
        if heard.asked is None or heard.outcome is None:
            return
        self.is_in_use = True
        if heard.back is not None:
            self._outgoing.put(heard.back)
            if heard.outcome.handed_over:
                _ = self._spawn(self._hand_over(heard.asked, heard.outcome.handed_over))
        await self._follow(heard.asked, heard.outcome)

    async def _follow(self, asked: Asked, outcome: Outcome) -> None:
        """Start and stop what is sent to the agent on its own."""
        party = self._parties.get(asked.sender.did)
        if party is None:
            return
        if outcome.explicit and not party.explicit:
            party.explicit = True
            party.finish()
        if outcome.live is not None:
            self._follow_live(party, outcome.live)
        elif (
            outcome.implicit
            and asked.open_route
            and not party.explicit
            and not party.is_pumping
            and await self._front.waiting.open_session(asked.sender.did)
        ):
            party.start(lambda wake: party.pump.implicit(wake, self._arrived))

    def _follow_live(self, party: _Party, live: Live) -> None:
        if not live.on:
            party.live_since = None
            party.finish()
            return
        # Asked for once more it goes on where it was: what came meanwhile must not be missing.
        since = party.live_since if party.is_pumping else None
        party.live_since = since = live.version if since is None else since
        party.start(lambda wake: party.pump.live(wake, since))

    async def _hand_over(self, asked: Asked, message_ids: Sequence[str]) -> None:
        if await self._arrived():
            await self._front.conversation.handed_over(asked, message_ids)

    def _party_of(self, agent: Sender) -> _Party:
        pump = Pump(
            self._front.settings,
            self._front.key,
            self._front.identities,
            agent,
            session=self.session,
            outgoing=self._outgoing,
            new_id=self._front.new_id,
        )
        return _Party(agent, self.session, pump, self._outgoing)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(_log_failure)
        return task

    # ---- pings

    def beat(self) -> int:
        """Send a ping; how many beats in a row brought no pong since the one before."""
        answered = self._ponged >= self._beaten
        self._beats_missed = 0 if answered else self._beats_missed + 1
        self._beaten = self._ping()
        return self._beats_missed

    def take_pong(self, data: bytes) -> None:
        """A pong came: everything sent before its ping has been read."""
        if not data.isdigit() or len(data) > len(b"%d" % self._pings):
            return
        self._ponged = max(self._ponged, min(int(data), self._pings))
        still: list[tuple[int, asyncio.Future[bool]]] = []
        for number, awaited in self._awaited:
            if number > self._ponged:
                still.append((number, awaited))
            elif not awaited.done():
                awaited.set_result(True)
        self._awaited = still

    async def _arrived(self) -> bool:
        """Wait until everything sent so far has been read; False when the socket is gone."""
        awaited: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._awaited.append((self._ping(), awaited))
        return await awaited

    def _ping(self) -> int:
        self._pings += 1
        self._outgoing.ping(b"%d" % self._pings)
        return self._pings


def _report(trouble: Trouble, report_id: str) -> bytes:
    """A plain problem report: there is nobody that it could be packed for (RFC 0035)."""
    return orjson.dumps(
        {
            "@type": NEW_PREFIX + "report-problem/1.0/problem-report",
            "@id": report_id,
            "description": {"code": trouble.value, "en": trouble.value.replace("-", " ")},
        }
    )


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        _LOG.error("a task of a socket failed", exc_info=task.exception())
