"""The network between wallets and their mediator, whose faults the scenarios make."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final, Self

from tests.ports import free_port

_HOST: Final = "127.0.0.1"
_CHUNK_BYTES: Final = 65_536
_UPGRADE: Final = b"upgrade: websocket"


class _Connection:
    """One TCP connection through the tunnel, with an end at each side."""

    def __init__(self, wallet: asyncio.StreamWriter, mediator: asyncio.StreamWriter) -> None:
        self.wallet = wallet
        self.mediator = mediator
        self.passing: list[asyncio.Task[None]] = []

    def stop(self) -> None:
        for task in self.passing:
            task.cancel()


class Tunnel:
    """A TCP proxy on loopback before the mediator; plain HTTP always passes.

    Attributes:
        url: The mediator's public URL.
        listen: Where the mediator has to listen.
        refuses_sockets: New WebSockets are ended at once.
    """

    def __init__(self) -> None:
        self._port = free_port()
        self.url = f"http://{_HOST}:{self._port}"
        self.refuses_sockets = False
        self._mediator_port = free_port()
        self.listen = f"{_HOST}:{self._mediator_port}"
        self._server: asyncio.Server | None = None
        self._sockets: list[_Connection] = []
        self._frozen: list[_Connection] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def cut(self) -> None:
        """End every WebSocket on both sides."""
        for connection in self._taken():
            connection.wallet.transport.abort()
            connection.mediator.transport.abort()

    def freeze(self) -> None:
        """End the wallet's side of every WebSocket; the mediator's stays open, and is dead."""
        for connection in self._taken():
            connection.mediator.transport.pause_reading()  # type: ignore[attr-defined]
            connection.wallet.transport.abort()
            self._frozen.append(connection)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, _HOST, self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for connection in self._frozen:
            connection.mediator.transport.abort()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _taken(self) -> list[_Connection]:
        taken, self._sockets = self._sockets, []
        for connection in taken:
            connection.stop()
        return taken

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = await reader.read(_CHUNK_BYTES)
        is_socket = _UPGRADE in first.lower()
        if is_socket and self.refuses_sockets:
            writer.transport.abort()
            return
        try:
            back, there = await asyncio.open_connection(_HOST, self._mediator_port)
        except OSError:
            writer.transport.abort()
            return
        there.write(first)
        connection = _Connection(writer, there)
        connection.passing = [self._pass(reader, there), self._pass(back, writer)]
        if is_socket:
            self._sockets.append(connection)

    def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> asyncio.Task[None]:
        async def all_of_it() -> None:
            with contextlib.suppress(ConnectionError):
                while chunk := await reader.read(_CHUNK_BYTES):
                    writer.write(chunk)
                    await writer.drain()
            writer.close()

        task = asyncio.get_running_loop().create_task(all_of_it())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
