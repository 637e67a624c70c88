"""The host's end of its lines: batches come in and answers and pushes go out, past Ray.

Measured, a call through Ray costs 1.5 to 2 ms of CPU on each side, whatever it carries; a frame on
a TCP connection costs a twentieth of that. Ray still names, places, starts and controls hosts, and
only who can ask the host through Ray learns the token that opens a line.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import secrets
import socket
import threading
from collections import deque
from collections.abc import Callable
from typing import BinaryIO, Final, TypeAlias, cast

import msgspec

from actors.line_frames import (
    FRAME_BYTES_MAX,
    HEADER,
    PUSH,
    Hello,
    LineAddress,
    Welcome,
    keep_alive,
)
from actors.replies import Push

_LOG = logging.getLogger(__name__)
_BACKLOG: Final = 128
_BUFFER_BYTES: Final = 256 * 1024
_HELLO_BYTES_MAX: Final = 1_024
_HELLO_S_MAX: Final = 5.0
_STRANGERS_MAX: Final = 64
"""Connections that have not proved themselves yet; each takes a thread for some seconds."""
UNSENT_BYTES_MAX: Final = 256 * 1024 * 1024
"""What may wait for an edge that reads slowly; beyond it would fill the memory."""
_HELLO: Final = msgspec.msgpack.Decoder(Hello)

Answer: TypeAlias = Callable[[bytes], None]
Submit: TypeAlias = Callable[[str, bytes, Answer, str], None]
"""Takes an edge, a batch, who gets the answer, and the incarnation of the line; may not wait."""
Lost: TypeAlias = Callable[[str], None]
"""Hears that the line of an edge has ended, with every push that was on it."""


class EdgeLine:
    """The connection of one edge."""

    def __init__(
        self, connection: socket.socket, edge: str, incarnation: str, unsent_bytes_max: int
    ) -> None:
        """A line over a connection whose edge has proved itself."""
        self.edge = edge
        self._unsent_bytes_max = unsent_bytes_max
        self.incarnation = incarnation
        self._connection = connection
        self._unsent: deque[memoryview] = deque()
        self._unsent_bytes = 0
        self._changed = threading.Condition()
        self._is_open = True
        threading.Thread(target=self._send_rest, name="line-rest", daemon=True).start()

    def send(self, number: int, content: bytes) -> None:
        """Send a frame without waiting: what the socket does not take at once is sent later."""
        frame = memoryview(HEADER.pack(len(content), number) + content)
        with self._changed:
            if not self._is_open:
                return
            if not self._unsent_bytes:
                try:
                    frame = frame[self._connection.send(frame, socket.MSG_DONTWAIT) :]
                except BlockingIOError:
                    pass
                except OSError:
                    self._shut()
                    return
            if frame:
                self._unsent.append(frame)
                self._unsent_bytes += len(frame)
                if self._unsent_bytes > self._unsent_bytes_max:
                    _LOG.error("%s does not read its answers: line closed", self.edge)
                    self._shut()
                self._changed.notify()

    def close(self) -> None:
        """End the line; whoever reads from it notices."""
        with self._changed:
            self._shut()

    def _shut(self) -> None:
        self._is_open = False
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._changed.notify()

    def _send_rest(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._unsent or not self._is_open)
                if not self._is_open:
                    return
                frame = self._unsent.popleft()
            try:
                self._connection.sendall(frame)
            except OSError:
                self.close()
                return
            with self._changed:
                # Only now: until the frame is sent whole, no other may overtake it.
                self._unsent_bytes -= len(frame)


class LineServer:
    """Listens for the lines of edges; one thread accepts, one more per line reads."""

    def __init__(
        self, submit: Submit, lost: Lost, *, unsent_bytes_max: int = UNSENT_BYTES_MAX
    ) -> None:
        """A server that does not listen yet; see ``listen``."""
        self._unsent_bytes_max = unsent_bytes_max
        self._submit = submit
        self._lost = lost
        self._token = secrets.token_bytes(32)
        self._id = secrets.token_hex(8)
        self._lines: dict[str, EdgeLine] = {}
        self._missing: set[str] = set()
        self._lock = threading.Lock()
        self._opened = 0
        self._strangers = threading.BoundedSemaphore(_STRANGERS_MAX)

    def listen(self, address: str) -> LineAddress:
        """Listen on a free port of this address; where edges find it, and what opens it.

        Raises:
            OSError: the address is none of this machine.
        """
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.bind((address, 0))
        listener.listen(_BACKLOG)
        threading.Thread(
            target=self._accept, args=(listener,), name="line-accept", daemon=True
        ).start()
        return LineAddress(address, listener.getsockname()[1], self._token)

    def push(self, edge: str, pushes: list[Push]) -> None:
        """Hand pushes to an edge; one without a line hears that it has missed some when it has one.

        Hints are lost with that, never messages: they tell of what is in the log.
        """
        line = self._lines.get(edge)
        if line is None:
            with self._lock:
                line = self._lines.get(edge)
                if line is None:
                    self._missing.add(edge)
                    return
        line.send(PUSH, msgspec.msgpack.encode(pushes))

    def close(self) -> None:
        """End every line."""
        for line in list(self._lines.values()):
            line.close()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError as error:
                _LOG.error("line not accepted: %s", error)
                continue
            if not self._strangers.acquire(blocking=False):
                connection.close()
                continue
            threading.Thread(
                target=self._serve, args=(connection,), name="line", daemon=True
            ).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb", buffering=_BUFFER_BYTES) as file:
            reader = cast("BinaryIO", file)
            try:
                keep_alive(connection)
                connection.settimeout(_HELLO_S_MAX)
                hello = self._hello(reader)
                connection.settimeout(None)
            except (OSError, msgspec.DecodeError):
                return
            finally:
                self._strangers.release()
            if hello is None:
                _LOG.warning("a line was refused: wrong token")
                return
            line = self._open(connection, hello.edge)
            try:
                self._read(reader, line)
            except (OSError, msgspec.DecodeError) as error:
                _LOG.warning("line of %s failed: %s", line.edge, type(error).__name__)
            finally:
                self._close(line)

    def _hello(self, reader: BinaryIO) -> Hello | None:
        length, _ = HEADER.unpack(_exactly(reader, HEADER.size))
        if length > _HELLO_BYTES_MAX:
            return None
        hello = _HELLO.decode(_exactly(reader, length))
        return hello if hmac.compare_digest(hello.token, self._token) else None

    def _open(self, connection: socket.socket, edge: str) -> EdgeLine:
        with self._lock:
            self._opened += 1
            line = EdgeLine(connection, edge, f"{self._id}-{self._opened}", self._unsent_bytes_max)
            before = self._lines.get(edge)
            has_missed = edge in self._missing
            self._missing.discard(edge)
            if before is not None:
                before.close()
            if before is not None or has_missed:
                # Its sessions end before the first batch of the new line is read.
                self._lost(edge)
            # The first frame: pushes wait for the lock, or find the line.
            line.send(PUSH, msgspec.msgpack.encode(Welcome(line.incarnation, has_missed)))
            self._lines[edge] = line
        return line

    def _close(self, line: EdgeLine) -> None:
        line.close()
        with self._lock:
            if self._lines.get(line.edge) is line:
                del self._lines[line.edge]
                self._lost(line.edge)

    def _read(self, reader: BinaryIO, line: EdgeLine) -> None:
        while header := reader.read(HEADER.size):
            if len(header) < HEADER.size:
                return
            length, number = HEADER.unpack(header)
            if length > FRAME_BYTES_MAX:
                _LOG.error("%s sent a frame of %d bytes: line closed", line.edge, length)
                return
            batch = _exactly(reader, length)
            self._submit(line.edge, batch, _answer(line, number), line.incarnation)


def _answer(line: EdgeLine, number: int) -> Answer:
    return lambda content: line.send(number, content)


def _exactly(reader: BinaryIO, count: int) -> bytes:
    content = reader.read(count)
    if len(content) < count:
        raise ConnectionResetError
    return content
