"""The port to one host: a direct connection to the address in its row."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import Final, NamedTuple, TypeVar

import msgspec

from actors.host.host_client import HostClient, HostConnectionLost, QuestionFailed, connect_to_host
from actors.host.host_connection import TakePushes
from actors.host.host_finder import HostFinder
from actors.host.port import (
    A,
    HostCutOff,
    HostNotReached,
    HostQuestion,
    HostUnavailable,
    NoteSockets,
    ReadPages,
    decode_answer,
)
from eventstore.log.host_leases import HostLease

_LOG = logging.getLogger(__name__)
_AGAIN_S: Final = 0.1
_T = TypeVar("_T")


def ignored(_: object) -> None:
    """Ignore a call: nothing is pushed to a caller that only asks questions."""


class Caller(NamedTuple):
    """A caller of hosts: an edge, or the placer, which only asks questions.

    It waits for a missing host for ``patience_s``; this is for hosts that no other can replace.
    """

    name: str
    call_s_max: float
    on_pushes: TakePushes = ignored
    on_missed: Callable[[str], None] = ignored
    """Called with the name of a host that had pushes for the caller while it was not connected."""
    patience_s: float = 0.0
    on_left: Callable[[str], None] = ignored
    """Called with the name of a host that has ended in order, when its successor of the same name
    is reached: the caller has received all pushes of the former."""


class ConnectedHostPort:
    """A ``HostPort`` that connects at the first call, and again after a connection is lost."""

    def __init__(self, caller: Caller, name: str, finder: HostFinder) -> None:
        """A port to the host of this name, whichever process has the name."""
        self._caller = caller
        self._name = name
        self._finder = finder
        self._client: HostClient | None = None
        self._noted: tuple[HostClient, NoteSockets] | None = None
        self._pages: ConnectedHostPort | None = None
        self._attempt: asyncio.Task[None] | None = None
        self._missed: HostLease | None = None
        self._is_cut_off = False

    async def submit(self, batch: bytes) -> bytes:
        """Run a batch of submissions; see ``Writer.submit``.

        Raises:
            HostNotReached: nothing was sent.
            HostCutOff: nothing was sent, and the host is alive; raised within a second.
            HostUnavailable: outcome unknown.
        """
        return await self._call(lambda client: client.submit(batch))

    async def ask(self, question: HostQuestion[A]) -> A:
        """Ask a question and return its answer; see ``IdentityHost.answer``. Raises: as ``submit``.

        Pages may be large, so they have a connection of their own and no command waits behind one.
        """
        port = self._port_for_pages() if isinstance(question, ReadPages) else self
        packed = msgspec.msgpack.encode(question)
        return decode_answer(question, await port._call(lambda client: client.ask(packed)))  # noqa: SLF001 - its own class

    def _port_for_pages(self) -> ConnectedHostPort:
        if self._pages is None:
            name, call_s_max = f"{self._caller.name} pages", self._caller.call_s_max
            caller = Caller(name, call_s_max, patience_s=self._caller.patience_s)
            self._pages = ConnectedHostPort(caller, self._name, self._finder)
        return self._pages

    def close(self) -> None:
        """End the connection; the next call connects to the process that has the name by then."""
        if self._client is not None:
            self._client.close()
            self._client = self._noted = None
        if self._pages is not None:
            self._pages.close()

    async def heartbeat(self, sockets: int) -> str:
        """See ``HostPort.heartbeat``. Raises: HostUnavailable.

        The incarnation is that of the connection, since pushes are lost with it. This opens a
        connection if there is none, so that the host can push before any command comes. It sends
        nothing if the host knows the same from the open connection.
        """
        note = NoteSockets(self._caller.name, sockets)
        if self._noted is not None and self._noted[0].is_open and self._noted[1] == note:
            return self._noted[0].incarnation

        async def ask(client: HostClient) -> str:
            await client.ask(msgspec.msgpack.encode(note))
            self._noted = client, note
            return client.incarnation

        return await self._call(ask)

    async def _call(self, ask: Callable[[HostClient], Awaitable[_T]]) -> _T:
        try:
            async with asyncio.timeout(self._caller.call_s_max):
                client = self._client
                if client is None or not client.is_open:
                    client = await self._connected()
                return await ask(client)
        except (HostConnectionLost, QuestionFailed, OSError) as error:  # a time-out is an OSError
            raise HostUnavailable(self._name) from error

    async def _connected(self) -> HostClient:
        """The open connection; concurrent callers wait for the same attempt to connect."""
        until_s = time.monotonic() + self._caller.patience_s
        while self._client is None or not self._client.is_open:
            attempt = self._attempt_under_way()
            try:
                if not self._is_cut_off:
                    await asyncio.shield(attempt)
            except HostNotReached:
                if not self._is_cut_off:
                    if time.monotonic() >= until_s:
                        raise
                    await asyncio.sleep(_AGAIN_S)
            if self._is_cut_off:
                raise HostCutOff(self._name)
        return self._client

    def _attempt_under_way(self) -> asyncio.Task[None]:
        if self._attempt is None or self._attempt.done():
            # In a context of no request, since several requests may wait for it.
            self._attempt = asyncio.get_running_loop().create_task(
                self._connect(), context=Context()
            )
            self._attempt.add_done_callback(_retrieve)
        return self._attempt

    async def _connect(self) -> None:
        """Try once to connect to the row's address. Raises: HostNotReached, HostUnavailable."""
        lease = await self._finder.find(self._name)
        if lease is None:
            self._reached()
            raise HostNotReached(self._name)
        try:
            client = await connect_to_host(lease, self._caller.name, self._caller.on_pushes)
        except HostConnectionLost as error:
            raise HostNotReached(self._name) from error
        except ConnectionRefusedError as error:
            self._finder.refused(lease)
            self._reached()
            raise HostNotReached(self._name) from error
        except OSError as error:
            await self._not_reached(lease)
            raise HostNotReached(self._name) from error
        if self._client is not None and self._client.has_left:
            self._caller.on_left(self._name)
        self._client = client
        self._reached()
        if client.has_missed:
            self._caller.on_missed(self._name)

    def _reached(self) -> None:
        """Clear the cut-off: the host's address can be reached, or the host is gone."""
        self._missed, self._is_cut_off = None, False

    async def _not_reached(self, lease: HostLease) -> None:
        """Note that the address did not answer: the host is cut off if it renews its row."""
        if self._missed is None or self._missed.incarnation != lease.incarnation:
            self._missed = lease
        now = await self._finder.find(self._name)
        is_cut_off = (
            now is not None
            and now.incarnation == lease.incarnation
            and now.ends_s > self._missed.ends_s
        )
        if is_cut_off and not self._is_cut_off:
            _LOG.error("%s is alive but cannot be reached from here", self._name)
        self._is_cut_off = is_cut_off


def _retrieve(attempt: asyncio.Task[None]) -> None:
    """Retrieve the attempt's exception: all callers that waited for it may have given up."""
    if not attempt.cancelled():
        attempt.exception()
