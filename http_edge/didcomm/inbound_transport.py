"""Inbound transport: a connection of senders, and what may go back to them on it (RFC 0092)."""

from __future__ import annotations

from functools import cached_property
from hashlib import blake2b
from typing import Final

from actors.host.clock import new_id
from http_edge.didcomm.envelopes.messages import AgentAccount, Message
from http_edge.didcomm.protocols.protocol import PeerState

_SENDERS_MAX: Final = 16
"""Senders whose return routes one socket remembers."""
_THREADS_MAX: Final = 32
"""Threads that all senders of one socket together name for return route ``thread``."""
_ROUTE_BYTES: Final = 16
_NOTHING: Final = PeerState()
_ANSWER: Final = PeerState(routable=True)
_EVERYTHING: Final = PeerState(routable=True, open_route=True)


class InboundTransport:
    """An inbound connection: one HTTP request, or a socket, which remembers return routes."""

    def __init__(self) -> None:
        self._open: set[bytes] = set()
        self._threads: set[bytes] = set()

    @cached_property
    def session(self) -> str:
        """The session that holds the leases of messages delivered here; a forward needs none."""
        return new_id()

    async def admit(self, sender: AgentAccount, message: Message) -> PeerState:
        """Return what may go back to the sender of a message about to be handled (RFC 0092).

        The number of remembered return routes is bounded: keys cost a sender nothing, but each
        costs the mediator memory. Ids of threads are compared without case (DIDComm v2).
        """
        did, route = sender.did, message.return_route
        thread, wanted = message.thread_id.lower(), message.return_route_thread.lower()
        if route == "all" and len(self._open) < _SENDERS_MAX:
            self._open.add(_route(did))
        if route == "all" or _route(did) in self._open:
            return _EVERYTHING
        if route == "thread" and len(self._threads) < _THREADS_MAX:
            self._threads.add(_route(did, wanted))
        if route == "thread" and wanted == thread:
            return _ANSWER
        return _ANSWER if _route(did, thread) in self._threads else _NOTHING


def _route(*names: str) -> bytes:
    """Return a return route in few bytes: a sender chooses how long DID and thread are."""
    return blake2b("\0".join(names).encode(), digest_size=_ROUTE_BYTES).digest()
