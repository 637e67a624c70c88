"""A link to PostgreSQL that forgets connections, as a firewall does: nothing passes, and no end."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress

import psycopg

_CHUNK_BYTES = 64 * 1024


class Link:
    """Passes on what clients and the server say to each other."""

    def __init__(self, known: dict[str, str], listening: socket.socket) -> None:
        """A link to this server; see ``linked``."""
        self._known = known
        self._listening = listening
        self._forgotten: set[socket.socket] = set()
        self._open: set[socket.socket] = set()
        self._closing = ExitStack()

    @property
    def url(self) -> str:
        """The address of the database through the link."""
        port = self._listening.getsockname()[1]
        return f"postgresql://{self._known['user']}@127.0.0.1:{port}/{self._known['dbname']}"

    def forget(self) -> None:
        """Pass on nothing more on the connections that there are, and close none of them."""
        self._forgotten |= self._open

    def serve(self) -> None:
        """Accept connections until the link is closed."""
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = self._connected()
                for one, other in ((client, server), (server, client)):
                    self._open.add(one)
                    self._closing.callback(one.close)
                    threading.Thread(target=self._pass, args=(one, other), daemon=True).start()

    def close(self) -> None:
        """Close all connections."""
        self._closing.close()

    def _connected(self) -> socket.socket:
        host, port = self._known["host"], self._known.get("port", "5432")
        if not host.startswith("/"):
            return socket.create_connection((host, int(port)))
        server = socket.socket(socket.AF_UNIX)
        server.connect(f"{host}/.s.PGSQL.{port}")
        return server

    def _pass(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while chunk := one.recv(_CHUNK_BYTES):
                if one not in self._forgotten:
                    other.sendall(chunk)
            if one not in self._forgotten:
                other.shutdown(socket.SHUT_WR)


@contextmanager
def linked(url: str) -> Iterator[Link]:
    """A link before the server at this URL."""
    known = {name: str(value) for name, value in psycopg.conninfo.conninfo_to_dict(url).items()}
    with (
        closing(socket.create_server(("127.0.0.1", 0))) as listening,
        closing(Link(known, listening)) as link,
    ):
        threading.Thread(target=link.serve, daemon=True).start()
        yield link
