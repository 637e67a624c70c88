"""A connection that messages come in on, and what may go back to their senders there (RFC 0092)."""

from __future__ import annotations

from enum import Enum
from functools import cached_property
from typing import Final

import msgspec

from actors.host.clock import NewId
from http_edge.didcomm.envelopes.messages import AgentAccount, Message

_SENDERS_MAX: Final = 64
"""Senders whose wishes for a return route one socket remembers."""
_THREADS_MAX: Final = 64
"""Threads that one sender names on one socket for return route ``thread``."""


class ReturnScope(Enum):
    """What may go back to a sender on a transport, now (RFC 0092)."""

    NOTHING = "nothing"
    ANSWER = "answer"
    """The answer to this message."""
    EVERYTHING = "everything"
    """Whatever there is for it."""


class PeerState(msgspec.Struct, frozen=True):
    """What a transport has for a sender: see ``Request``."""

    persistent: bool = False
    patient: bool = True
    live: bool = False


class InboundTransport:
    """A connection that messages come in on: one HTTP request, or a socket with its memory."""

    def __init__(self, new_id: NewId) -> None:
        """A transport on which no return route was asked for yet."""
        self._new_session = new_id
        self._open: set[str] = set()
        self._threads: dict[str, set[str]] = {}

    @cached_property
    def session(self) -> str:
        """The session that holds leases of what is delivered here; a forward needs none."""
        return self._new_session()

    def follow(self, sender: AgentAccount, message: Message) -> ReturnScope:
        """What may go back to the sender on this transport (RFC 0092)?

        What a sender asked for is remembered up to a bound: keys cost nothing, memory does.
        """
        did, route = sender.did, message.return_route
        if route == "all":
            if len(self._open) < _SENDERS_MAX:
                self._open.add(did)
            return ReturnScope.EVERYTHING
        if did in self._open:
            return ReturnScope.EVERYTHING
        threads = self._threads.get(did)
        if route == "thread":
            if threads is None and len(self._threads) < _SENDERS_MAX:
                threads = self._threads[did] = set()
            if threads is not None and len(threads) < _THREADS_MAX:
                threads.add(message.return_route_thread)
            if message.return_route_thread == message.thread_id:
                return ReturnScope.ANSWER
        return ReturnScope.ANSWER if message.thread_id in (threads or ()) else ReturnScope.NOTHING

    def took(self) -> None:
        """A message was taken."""

    async def admit(self, sender: AgentAccount, message: Message, scope: ReturnScope) -> PeerState:  # noqa: ARG002
        """A message is about to be handled: what has this transport for its sender?"""
        return PeerState()
