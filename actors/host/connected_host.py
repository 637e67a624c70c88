"""The way to one host: a connection to where its row says that it listens, and no other process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

import msgspec

from actors.host.host_client import (
    HostClient,
    HostConnectionLost,
    QuestionFailed,
    connect_to_host,
)
from actors.host.host_connection import HostAddress, TakePushes
from actors.host.host_finder import HostFinder
from actors.host.port import (
    A,
    HostNotReached,
    HostQuestion,
    HostUnavailable,
    NoteSockets,
    decode_answer,
)
from eventstore.log.host_leases import HostLease

_CONNECT_S_MAX: Final = 1.0
"""On one network a connection takes a millisecond; who waits longer waits for a lost machine."""
_AGAIN_S: Final = 0.1


class Caller(NamedTuple):
    """Who asks hosts: an edge, or the placer.

    For ``patience_s`` it waits for a host that is not there: where no other takes its place.
    """

    name: str
    call_s_max: float
    on_pushes: TakePushes
    on_missed: Callable[[str], None]
    """Called with the name of a host that had pushes for the caller before it was connected."""
    patience_s: float = 0.0


class ConnectedHostPort:
    """A ``HostPort`` that connects at the first call, and again whenever that is lost."""

    def __init__(self, caller: Caller, name: str, finder: HostFinder) -> None:
        """The way to the host of this name, whichever process has it."""
        self._caller = caller
        self._name = name
        self._finder = finder
        self._client: HostClient | None = None
        self._noted: tuple[HostClient, NoteSockets] | None = None
        self._opening = asyncio.Lock()

    async def submit(self, batch: bytes) -> bytes:
        """Run a batch of submissions; see ``IdentityHost.submit``.

        Raises:
            HostNotReached: nothing was sent.
            HostUnavailable: outcome unknown.
        """
        return await self._call(lambda client: client.submit(batch))

    async def ask(self, question: HostQuestion[A]) -> A:
        """The answer to a question; see ``IdentityHost.ask``. Raises: as ``submit``."""
        return decode_answer(question, await self.ask_packed(msgspec.msgpack.encode(question)))

    async def ask_packed(self, question: bytes) -> bytes:
        """The same in msgpack, for a family of questions of any kind. Raises: as ``submit``."""
        return await self._call(lambda client: client.ask(question))

    def close(self) -> None:
        """End the connection; the next call makes one to the process of that name by then."""
        if self._client is not None:
            self._client.close()
            self._client = self._noted = None

    async def heartbeat(self, sockets: int, incarnation: str) -> str:
        """See ``IdentityHost.heartbeat``. Raises: HostUnavailable.

        The incarnation is that of the connection: what was pushed is lost with it. It is opened
        here if need be, so that a host can push before any command came. A host that knows all of
        this by an open connection hears nothing again: a connection ends with its host.
        """
        note = NoteSockets(self._caller.name, sockets, incarnation)
        if self._noted is not None and self._noted[0].is_open and self._noted[1] == note:
            return self._noted[0].incarnation

        async def ask(client: HostClient) -> bytes:
            await client.ask(msgspec.msgpack.encode(note))
            self._noted = client, note
            return client.incarnation.encode()

        return (await self._call(ask)).decode()

    async def _call(self, ask: Callable[[HostClient], Awaitable[bytes]]) -> bytes:
        try:
            async with asyncio.timeout(self._caller.call_s_max):
                client = self._client
                if client is None or not client.is_open:
                    client = await self._connected()
                return await ask(client)
        except (HostConnectionLost, QuestionFailed, OSError) as error:  # a time-out is an OSError
            raise HostUnavailable(self._name) from error

    async def _connected(self) -> HostClient:
        until_s = time.monotonic() + self._caller.patience_s
        async with self._opening:
            while self._client is None or not self._client.is_open:
                lease = await self._finder.find(self._name)
                if lease is not None and await self._opened(lease):
                    break
                if time.monotonic() >= until_s:
                    raise HostNotReached(self._name)
                await asyncio.sleep(_AGAIN_S)
            assert self._client is not None
            return self._client

    async def _opened(self, lease: HostLease) -> bool:
        address = HostAddress(lease.address, lease.port, lease.token)
        try:
            async with asyncio.timeout(_CONNECT_S_MAX):
                self._client = await connect_to_host(
                    address, self._caller.name, self._caller.on_pushes
                )
        except ConnectionRefusedError:
            self._finder.refused(lease)
            return False
        except (HostConnectionLost, OSError):
            return False
        if self._client.has_missed:
            self._caller.on_missed(self._name)
        return True
