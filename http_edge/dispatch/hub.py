"""The hub of one edge: passes notices about identities to sockets and waiting requests.

Both protocol families share the hub. One session at the identity's host sends this edge every
notice, and each subscriber picks the notices of its protocol.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable
from contextvars import Context
from typing import Final, Protocol

from actors.core.commands import CloseSession, ReleaseLeases
from actors.core.cost import source_key
from actors.core.replies import EnvelopeDelivered, Notice
from actors.core.submissions import Submission
from http_edge.dispatch.gateway import Gateway

SERVICE_RESTART: Final = 1012
GOING_AWAY: Final = 1001


class Subscriber(Protocol):
    """A socket or waiting request that receives notices; neither method may block."""

    def notify(self, notice: Notice) -> None:
        """Something happened to the identity."""

    def close(self, code: int) -> None:
        """No more notices will come; ``code`` is the WebSocket close code that says why."""


class Hub:
    """Subscribers by identity, and the sessions that their hosts keep for this edge."""

    def __init__(self, edge: str, gateway: Gateway) -> None:
        self.edge = edge
        self._gateway = gateway
        self._subscribers: dict[str, dict[Subscriber, str]] = {}
        self._count = 0
        self._ending: dict[tuple[str, str], asyncio.Task[None]] = {}
        """What is being ended at a host: an identity's session in live mode, or with an empty name
        this edge's session. A socket's session in live mode is that of all identities on it."""

    def __len__(self) -> int:
        """How many subscribers there are."""
        return self._count

    def subscribers_of(self, did: str) -> int:
        """How many subscribers one identity has here."""
        return len(self._subscribers.get(did, ()))

    def hosts(self) -> set[str]:
        """The hosts that keep sessions for this edge."""
        hosts = {self._host_of(did) for did in self._subscribers}
        return {host for host in hosts if host is not None}

    def add(self, did: str, subscriber: Subscriber, session: str = "") -> None:
        """Send the notices of the identity to the subscriber from now on.

        ``session`` is its session in live mode; it gets what is delivered to that one alone.
        """
        self._subscribers.setdefault(did, {})[subscriber] = session
        self._count += 1

    def remove(self, did: str, subscriber: Subscriber) -> None:
        """Forget a subscriber; removing the last one of an identity ends the identity's session."""
        if self.drop(did, subscriber):
            self._end_session(did)

    def drop(self, did: str, subscriber: Subscriber) -> bool:
        """Forget a subscriber; True if it was the last one, whose session ``end_session`` ends."""
        subscribers = self._subscribers.get(did)
        if subscribers is None or subscriber not in subscribers:
            return False
        del subscribers[subscriber]
        self._count -= 1
        if not subscribers:
            del self._subscribers[did]
        return not subscribers

    async def end_session(self, did: str) -> None:
        """End an identity's session, unless it has a subscriber again; return when it has ended."""
        if did not in self._subscribers:
            self._end_session(did)
        await self.session_ended(did)

    def push(self, did: str, notice: Notice) -> None:
        """Notify the subscribers of the identity; if there is none, end its session at its host.

        Likewise end a session in live mode whose subscriber is gone. The host does not know yet
        that it is gone, or refused to end its session.
        """
        subscribers = self._subscribers.get(did, {})
        if not subscribers:
            self._end_session(did)
        session = notice.session if isinstance(notice, EnvelopeDelivered) else None
        if session and session not in subscribers.values():
            # What is leased to it is then offered to others at once.
            self._end(did, session, lambda: self._submit(did, ReleaseLeases(session)))
        for subscriber, its_session in subscribers.items():
            if session in (None, its_session):
                subscriber.notify(notice)

    def close_sessions_on(self, host: str) -> None:
        """Close the subscribers whose sessions a host has lost, for example by a restart.

        Their clients reconnect and query their queues. Pushes may have been lost since the host
        failed: without the close a message could stay hidden until the next query.
        """
        for did in list(self._subscribers):
            if self._host_of(did) == host:
                self._close(self._subscribers[did], SERVICE_RESTART)

    def close_sessions_of(self, partitions: Collection[str]) -> None:
        """Close the subscribers whose partitions' sessions were lost, as ``close_sessions_on``."""
        for did in list(self._subscribers) if partitions else ():
            if did in partitions or self._gateway.routes.partition_of(did) in partitions:
                self._close(self._subscribers[did], SERVICE_RESTART)

    def _host_of(self, did: str) -> str | None:
        routes = self._gateway.routes
        return routes.host_of(routes.partition_of(did))

    def close_all(self) -> None:
        """Close every subscriber: the edge is going away."""
        for subscribers in self._subscribers.values():
            self._close(subscribers, GOING_AWAY)

    def _close(self, subscribers: Iterable[Subscriber], code: int) -> None:
        for subscriber in subscribers:
            subscriber.close(code)

    async def session_ended(self, did: str) -> None:
        """Wait until the host has answered a pending ``CloseSession`` of this identity, or cannot.

        Two calls to a host can overtake each other, and the end of the last session must not
        arrive after the beginning of the next. At the host both take the turns of the identity:
        an end without an answer may still wait there.
        """
        ending = self._ending.get((did, ""))
        if ending is not None:
            await asyncio.shield(ending)

    def _end_session(self, did: str) -> None:
        self._end(did, "", lambda: self._close_session(did))

    def _end(self, did: str, session: str, work: Callable[[], Coroutine[None, None, None]]) -> None:
        """Begin to end a session at a host, unless that is under way."""
        what = did, session
        if what not in self._ending:
            task = asyncio.get_running_loop().create_task(work(), context=Context())
            self._ending[what] = task
            task.add_done_callback(lambda _: self._ending.pop(what))

    async def _close_session(self, did: str) -> None:
        if did not in self._subscribers:  # no new subscriber came meanwhile
            await self._submit(did, CloseSession(self.edge))

    async def _submit(self, did: str, command: CloseSession | ReleaseLeases) -> None:
        partition = self._gateway.routes.partition_of(did)
        source = source_key(did)  # as for what begins a session
        await self._gateway.submit(Submission(partition, did, b"", command=command, source=source))
