"""Inbound transport: a connection of senders, and what may go back to them on it (RFC 0092)."""

from __future__ import annotations

from functools import cached_property
from typing import Final

from actors.host.clock import NewId
from http_edge.didcomm.envelopes.messages import AgentAccount, Message
from http_edge.didcomm.protocols.protocol import PeerState

_SENDERS_MAX: Final = 64
"""Senders whose return routes one socket remembers."""
_THREADS_MAX: Final = 64
"""Threads that one sender names on one socket for return route ``thread``."""


_NOTHING: Final = PeerState()
_ANSWER: Final = PeerState(routable=True)
_EVERYTHING: Final = PeerState(routable=True, open_route=True)


class InboundTransport:
    """An inbound connection: one HTTP request, or a socket, which remembers return routes."""

    def __init__(self, new_id: NewId) -> None:
        self._new_session = new_id
        self._open: set[str] = set()
        self._threads: dict[str, set[str]] = {}

    @cached_property
    def session(self) -> str:
        """The session that holds the leases of messages delivered here; a forward needs none."""
        return self._new_session()

    async def admit(self, sender: AgentAccount, message: Message) -> PeerState:
        """Return what may go back to the sender of a message about to be handled (RFC 0092).

        The number of remembered return routes is bounded: keys cost a sender nothing, but each
        costs the mediator memory.
        """
        did, route = sender.did, message.return_route
        if route == "all":
            if len(self._open) < _SENDERS_MAX:
                self._open.add(did)
            return _EVERYTHING
        if did in self._open:
            return _EVERYTHING
        threads = self._threads.get(did)
        if route == "thread":
            if threads is None and len(self._threads) < _SENDERS_MAX:
                threads = self._threads[did] = set()
            if threads is not None and len(threads) < _THREADS_MAX:
                threads.add(message.return_route_thread)
            if message.return_route_thread == message.thread_id:
                return _ANSWER
        return _ANSWER if message.thread_id in (threads or ()) else _NOTHING
