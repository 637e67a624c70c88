"""All that listen at one edge for what happens to identities: sockets and waiting requests.

Both protocol families share it: one session at the identity's host notifies this edge of all that
happens, and every listener takes from it what is for its protocol.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from contextvars import Context
from typing import Final, Protocol

from actors.core.commands import CloseSession, Submission
from actors.core.replies import KeysOver, Notice, Push
from http_edge.dispatch.gateway import Gateway

SERVICE_RESTART: Final = 1012
GOING_AWAY: Final = 1001


class Listener(Protocol):
    """One who listens; neither method may wait."""

    def notify(self, notice: Notice) -> None:
        """Something happened to the identity."""

    def close(self, code: int) -> None:
        """Nothing more will come; ``code`` is the WebSocket close code that says why."""


class Hub:
    """Listeners by identity, and the sessions that their hosts keep for this edge."""

    def __init__(self, edge: str, gateway: Gateway) -> None:
        """A hub without listeners."""
        self.edge = edge
        self._gateway = gateway
        self._listeners: dict[str, set[Listener]] = {}
        self._count = 0
        self._closing: dict[str, asyncio.Task[None]] = {}

    def __len__(self) -> int:
        """How many listeners there are."""
        return self._count

    def listeners_of(self, did: str) -> int:
        """How many listeners one identity has here."""
        return len(self._listeners.get(did, ()))

    def hosts(self) -> set[str]:
        """The hosts that keep sessions for this edge."""
        hosts = {self._host_of(did) for did in self._listeners}
        return {host for host in hosts if host is not None}

    def add(self, did: str, listener: Listener) -> None:
        """Notify the listener of what happens to the identity from now on."""
        self._listeners.setdefault(did, set()).add(listener)
        self._count += 1

    def remove(self, did: str, listener: Listener) -> None:
        """Forget a listener; with the last one of an identity its session ends."""
        listeners = self._listeners.get(did)
        if listeners is None or listener not in listeners:
            return
        listeners.remove(listener)
        self._count -= 1
        if not listeners:
            del self._listeners[did]
            self._end_session(did)

    def push(self, push: Push) -> None:
        """Notify every listener of the identity."""
        if isinstance(push.notice, KeysOver):
            raise TypeError("for the edge itself")
        listeners = self._listeners.get(push.did)
        if listeners is None:
            # The host does not know yet that the last listener is gone, or an edge of this name
            # lived before.
            self._end_session(push.did)
            return
        for listener in listeners:
            listener.notify(push.notice)

    def close_sessions_on(self, host: str) -> None:
        """A host started anew and knows no sessions: its sockets reconnect and ask what waits.

        A push may be missing since the host failed, so going on silently could hide a message
        until the next query.
        """
        for did in list(self._listeners):
            if self._host_of(did) == host:
                self._close(self._listeners[did], SERVICE_RESTART)

    def close_sessions_of(self, partitions: Collection[str]) -> None:
        """The sessions of these partitions were lost: what holds for those of a host."""
        for did in list(self._listeners) if partitions else ():
            if did in partitions or self._gateway.partition_of(did) in partitions:
                self._close(self._listeners[did], SERVICE_RESTART)

    def _host_of(self, did: str) -> str | None:
        routes = self._gateway.routes
        return routes.host_of(routes.partition_of(did))

    def close_all(self) -> None:
        """The edge is going away."""
        for listeners in self._listeners.values():
            self._close(listeners, GOING_AWAY)

    def _close(self, listeners: Iterable[Listener], code: int) -> None:
        for listener in listeners:
            listener.close(code)

    async def session_ended(self, did: str) -> None:
        """Wait until the end of an earlier session, if it is under way, has reached the host.

        Two calls to a host can overtake each other: the end of the last session must not come
        after the beginning of the next.
        """
        closing = self._closing.get(did)
        if closing is not None:
            await asyncio.shield(closing)

    def _end_session(self, did: str) -> None:
        if did not in self._closing:
            closing = self._close_session(did)
            task = asyncio.get_running_loop().create_task(closing, context=Context())
            self._closing[did] = task
            task.add_done_callback(lambda _: self._closing.pop(did))

    async def _close_session(self, did: str) -> None:
        if did in self._listeners:
            return  # a new listener came meanwhile
        partition = self._gateway.partition_of(did)
        await self._gateway.submit(Submission(partition, did, b"", command=CloseSession(self.edge)))
