"""A pooler with one session of the server, in as much of the protocol as shows it."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from typing import Final

import psycopg

_NO_ENCRYPTION: Final = {80877103, 80877104}
_READY: Final = b"Z"
_ENDS_A_TURN: Final = {b"Q", b"S"}  # a query, and the end of an extended one


@contextmanager
def pooled(url: str, *, is_whole: bool = False) -> Iterator[str]:
    """The address of a pooler in front of this server, with one session for all its clients.

    They share it between transactions; if ``is_whole``, each waits until the one before has left.
    """
    known = psycopg.conninfo.conninfo_to_dict(url)
    user, database = str(known["user"]), str(known["dbname"])
    place = (str(known["host"]), int(str(known["port"])))
    with (
        closing(socket.create_server(("127.0.0.1", 0))) as listening,
        socket.create_connection(place) as server,
    ):
        server.sendall(_with_length(struct.pack("!i", 196608) + _settings(user, database)))
        pooler = _Pooler(server, _answer(server), is_whole=is_whole)
        threading.Thread(target=pooler.serve, args=(listening,), daemon=True).start()
        yield f"postgresql://{user}@127.0.0.1:{listening.getsockname()[1]}/{database}"


class _Pooler:
    def __init__(self, server: socket.socket, greeting: bytes, *, is_whole: bool) -> None:
        self._server = server
        self._is_whole = is_whole
        # A number of the pooler's own stands where the server named the session.
        start = greeting.index(b"K\0\0\0")
        self._greeting = greeting[: start + 5] + b"\0\0\0\1" + greeting[start + 9 :]
        self._turn, self._session = threading.Lock(), threading.Lock()

    def serve(self, listening: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listening.accept()
                threading.Thread(target=self._follow, args=(client,), daemon=True).start()

    def _follow(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            while struct.unpack("!i", _message(client)[:4])[0] in _NO_ENCRYPTION:
                client.sendall(b"N")
            client.sendall(self._greeting)
            with self._session if self._is_whole else nullcontext():
                self._answer_to(client)

    def _answer_to(self, client: socket.socket) -> None:
        question = b""
        while (kind := client.recv(1)) not in {b"", b"X"}:
            question += kind + _with_length(_message(client))
            if kind in _ENDS_A_TURN:
                with self._turn:
                    self._server.sendall(question)
                    client.sendall(_answer(self._server))
                question = b""


def _settings(user: str, database: str) -> bytes:
    return b"".join(s.encode() + b"\0" for s in ("user", user, "database", database, ""))


def _with_length(message: bytes) -> bytes:
    return struct.pack("!i", len(message) + 4) + message


def _message(peer: socket.socket) -> bytes:
    length = struct.unpack("!i", _bytes(peer, 4))[0] - 4
    return _bytes(peer, length)


def _bytes(peer: socket.socket, number: int) -> bytes:
    found = b""
    while len(found) < number:
        more = peer.recv(number - len(found))
        if not more:
            raise ConnectionError
        found += more
    return found


def _answer(server: socket.socket) -> bytes:
    """All messages of the server until it is ready for the next question."""
    said = b""
    while True:
        kind = _bytes(server, 1)
        said += kind + _with_length(_message(server))
        if kind == _READY:
            return said
