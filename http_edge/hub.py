"""All authenticated sockets of one edge: who gets which push."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from actors.commands import CloseSession, Submission
from actors.replies import Push
from http_edge.decentrl import frames
from http_edge.decentrl.outgoing import Outgoing
from http_edge.gateway import Gateway

SERVICE_RESTART = 1012
GOING_AWAY = 1001


class Hub:
    """Sockets by identity, and the sessions that their hosts keep for this edge."""

    def __init__(self, edge: str, gateway: Gateway) -> None:
        """A hub without sockets."""
        self._edge = edge
        self._gateway = gateway
        self._sockets: dict[str, set[Outgoing]] = {}
        self._count = 0
        self._closing: dict[str, asyncio.Task[None]] = {}

    def __len__(self) -> int:
        """How many sockets are open."""
        return self._count

    def sockets_of(self, did: str) -> int:
        """How many sockets one identity has here."""
        return len(self._sockets.get(did, ()))

    def hosts(self) -> set[str]:
        """The hosts that keep sessions for this edge."""
        placement = self._gateway.placement
        return {placement.host_of(placement.partition_of(did)) for did in self._sockets}

    def add(self, did: str, socket: Outgoing) -> None:
        """Deliver the identity's pushes to this socket from now on."""
        self._sockets.setdefault(did, set()).add(socket)
        self._count += 1

    def remove(self, did: str, socket: Outgoing) -> None:
        """Forget a socket; with the last one of an identity its session ends."""
        sockets = self._sockets.get(did)
        if sockets is None or socket not in sockets:
            return
        sockets.remove(socket)
        self._count -= 1
        if not sockets:
            del self._sockets[did]
            self._end_session(did)

    def push(self, push: Push) -> None:
        """Hand a push to every socket of its identity; encoded once."""
        sockets = self._sockets.get(push.did)
        if sockets is None:
            # The host has not heard yet that the last socket is gone, or an edge of this name
            # lived before.
            self._end_session(push.did)
            return
        frame = frames.notice(push.notice)
        for socket in sockets:
            socket.put(frame)

    def close_sessions_on(self, host: str) -> None:
        """A host started anew and knows no sessions: its sockets reconnect and ask what waits.

        A push may be missing since the host failed, so going on silently could hide a message
        until the next query.
        """
        placement = self._gateway.placement
        for did in list(self._sockets):
            if placement.host_of(placement.partition_of(did)) == host:
                self._close(self._sockets[did], SERVICE_RESTART)

    def close_all(self) -> None:
        """The edge is going away."""
        for sockets in self._sockets.values():
            self._close(sockets, GOING_AWAY)

    def _close(self, sockets: Iterable[Outgoing], code: int) -> None:
        for socket in sockets:
            socket.close(code)

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
            task = asyncio.get_running_loop().create_task(self._close_session(did))
            self._closing[did] = task
            task.add_done_callback(lambda _: self._closing.pop(did))

    async def _close_session(self, did: str) -> None:
        if did in self._sockets:
            return  # a new socket came meanwhile
        partition = self._gateway.placement.partition_of(did)
        await self._gateway.submit(
            Submission(partition, did, b"", command=CloseSession(self._edge))
        )
