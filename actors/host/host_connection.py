"""The connection between an edge and a host: its frames over TCP, without Ray, and the host's end.

A frame is its length and a number (both big-endian), then msgpack. The edge sends a batch under
the number of the call, or a question under a number with ``QUESTION``. The host sends the
``BatchResult`` or the answer under the same number, an empty frame under the number with ``FAILED``
if it has no answer, or ``list[Push]`` under ``PUSH``. The edge's first frame is a ``Hello``, the
host's first is a ``Welcome``.

Measured, a call through Ray costs 1.5 to 2 ms of CPU on each side, whatever it carries; a frame on
a TCP connection costs a twentieth of that, and involves no third process. The token that opens a
connection is in the host's row (``eventstore.log.host_leases``).

The host's end has a thread for each connection and answers from the writer's thread; the edge's end
is an asyncio protocol. With asyncio streams at both ends a batch cost 1.6 times the CPU (80 instead
of 50 us, edge and host together) and 1.6 times the time until its answer (73 instead of 46 us),
because each answer has to wake the host's loop. That is 3 to 5 % of a command that travels alone.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import secrets
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import BinaryIO, Final, TypeAlias, cast

import msgspec

from actors.core.replies import Push
from actors.host.vital_thread import vital_thread
from eventstore.log.host_leases import NODE_PROTOCOL, HostLease

_LOG = logging.getLogger(__name__)
_BACKLOG: Final = 128
_ACCEPT_AGAIN_S: Final = 0.1
"""A process without a free descriptor fails to accept at once, and again as long as it has none."""
_BUFFER_BYTES: Final = 256 * 1024
_HELLO_BYTES_MAX: Final = 1_024
_HELLO_S_MAX: Final = 5.0
"""Time for the whole ``Hello``, in however many pieces it comes."""
UNPROVEN_MAX: Final = 64
"""Connections without a ``Hello`` yet; each takes a thread for some seconds. One more closes the
oldest. An edge sends its ``Hello`` at once, so it is not kept out."""
_JOINED_BYTES_MAX: Final = 64 * 1024
"""A content up to this size is joined to its header and sent at once; copying more costs more."""
UNSENT_BYTES_MAX: Final = 256 * 1024 * 1024
"""Bytes that may wait for an edge that reads slowly, before its connection is closed."""
HEADER: Final = struct.Struct(">IQ")
PUSH: Final = 0
"""The number of frames that answer no call."""
QUESTION: Final = 1 << 63
"""The bit in the frame numbers of a question and of its answer."""
FAILED: Final = 1 << 62
"""The bit in the number of a frame that reports an unanswered question."""
FRAME_BYTES_MAX: Final = 1024 * 1024 * 1024
"""Far beyond what the bounds of batches and pages allow: anything larger is not a frame."""
_IDLE_S: Final = 2
_PROBES_S: Final = 1
_PROBES: Final = 3
_UNACKNOWLEDGED_MS: Final = 5_000
"""For the host's end, which may wait for an edge that does not read."""
ASKED_MS: Final = 1_000
"""For the edge's end: a machine acknowledges packets even if its host process stands still or is
busy, so an edge without an acknowledgement for so long, after two retransmissions, is cut off."""

Buffer: TypeAlias = bytes | bytearray
Answer: TypeAlias = Callable[[bytes], None]
Submit: TypeAlias = Callable[[str, bytes, Answer, str], None]
"""Takes an edge, a batch, a callback for the answer, and the connection's incarnation; must not
block."""
Answered: TypeAlias = Callable[[Buffer | None], None]
"""Receives the msgpack of the answer to a question, or None if there is no answer."""
Ask: TypeAlias = Callable[[bytes, Answered], None]
"""Takes a question and a callback for the answer; must not block."""
Lost: TypeAlias = Callable[[str], None]
"""Called with an edge that has no connection, or a new one; pushes on their way to it are lost."""
TakePushes: TypeAlias = Callable[[bytes], None]
"""Receives the msgpack of ``list[Push]``."""


class Hello(msgspec.Struct, frozen=True):
    """The first frame of an edge."""

    token: bytes
    edge: str


class Welcome(msgspec.Struct, frozen=True):
    """The first frame of a host: the connection is open.

    Each connection has its own incarnation: an edge that sees another one than before knows that
    pushes may be lost. ``has_missed``: the host had pushes for the edge while it was not connected.
    """

    incarnation: str
    has_missed: bool


NOTHING_MORE: Final = msgspec.msgpack.encode([])
"""The last push of a host that ends in order: the edge has received every push."""


def keep_alive(connection: socket.socket, unacknowledged_ms: int = _UNACKNOWLEDGED_MS) -> None:
    """Set a socket to send at once, and to notice within seconds that the other machine is gone.

    Data that stays unacknowledged for ``unacknowledged_ms`` ends the connection.
    """
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBES_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, unacknowledged_ms)


_HELLO: Final = msgspec.msgpack.Decoder(Hello)


class EdgeConnection:
    """The host's end of the connection of one edge."""

    def __init__(
        self,
        connection: socket.socket,
        edge: str,
        number: int,
        incarnation: str,
        unsent_bytes_max: int,
    ) -> None:
        """A connection whose edge has sent the token; ``number`` is in the order of acceptance."""
        self.edge = edge
        self.number = number
        self._unsent_bytes_max = unsent_bytes_max
        self.incarnation = incarnation
        self._connection = connection
        self._unsent: deque[memoryview] = deque()
        self._unsent_bytes = 0
        self._changed = threading.Condition()
        self._is_open = True
        threading.Thread(target=self._send_rest, name="edge-rest", daemon=True).start()

    def send(self, number: int, content: Buffer) -> None:
        """Send a frame without blocking: a thread sends later what the socket does not take now."""
        head = HEADER.pack(len(content), number)
        with self._changed:
            if len(content) <= _JOINED_BYTES_MAX:
                self._send(memoryview(head + content))
            else:
                self._send(memoryview(head))
                self._send(memoryview(content))

    def _send(self, part: memoryview) -> None:
        if not self._is_open:
            return
        if not self._unsent_bytes:
            try:
                part = part[self._connection.send(part, socket.MSG_DONTWAIT) :]
            except BlockingIOError:
                pass
            except OSError:
                self._shut()
                return
        if part:
            self._unsent.append(part)
            self._unsent_bytes += len(part)
            if self._unsent_bytes > self._unsent_bytes_max:
                _LOG.error("%s does not read its answers: connection closed", self.edge)
                self._shut()
            self._changed.notify()

    def close(self) -> None:
        """End the connection; the thread that reads from it notices."""
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
                # Only now: no frame may overtake one that is not fully sent.
                self._unsent_bytes -= len(frame)


class HostServer:
    """Listens for edges; one thread accepts, one more per connection reads."""

    def __init__(
        self,
        submit: Submit,
        ask: Ask,
        lost: Lost,
        *,
        unsent_bytes_max: int = UNSENT_BYTES_MAX,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """A server that does not listen yet; see ``listen``. ``monotonic`` gives seconds."""
        self._monotonic = monotonic
        self._unsent_bytes_max = unsent_bytes_max
        self._submit = submit
        self._ask = ask
        self._lost = lost
        self._token = secrets.token_bytes(32)
        self._id = secrets.token_hex(8)
        self._connections: dict[str, EdgeConnection] = {}
        self._missing: set[str] = set()
        self._lock = threading.Lock()
        self._unproven: dict[socket.socket, None] = {}
        self._listener: socket.socket | None = None
        self._has_stopped = False

    def listen(
        self,
        address: str,
        name: str,
        node: str,
        incarnation: str,
        *,
        protocol: int = NODE_PROTOCOL,
    ) -> HostLease:
        """Listen on a free port of this address; return the lease to take for this process.

        Raises:
            OSError: the address does not belong to this machine.
            RuntimeError: the process may have no more threads.
        """
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.bind((address, 0))
            listener.listen(_BACKLOG)
            vital_thread("edge-accept", lambda: self._accept(listener)).start()
        except (OSError, RuntimeError):
            listener.close()
            raise
        self._listener = listener
        port, token = listener.getsockname()[1], self._token
        return HostLease(name, node, incarnation, address, port, token, protocol=protocol)

    def push(self, edge: str, pushes: list[Push]) -> None:
        """Send pushes to an edge; if it has no connection, its next ``Welcome`` says so.

        Only hints are lost then, never messages: a push announces what is in the log. The sessions
        that the edge still has here end: they may have come with a shard after its connection had
        ended, and it may never connect again.
        """
        connection = self._connections.get(edge)
        if connection is None:
            with self._lock:
                connection = self._connections.get(edge)
                if connection is None:
                    self._missing.add(edge)
                    self._lost(edge)
                    return
        connection.send(PUSH, msgspec.msgpack.encode(pushes))

    def leave(self) -> None:
        """Stop in order: send ``NOTHING_MORE`` to each edge after its last push."""
        for connection in self._all():
            connection.send(PUSH, NOTHING_MORE)
        self.stop()

    def stop(self) -> None:
        """Listen no more, and end every connection."""
        self._has_stopped = True
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self.close()

    def close(self) -> None:
        """End every connection; edges may connect again."""
        for connection in self._all():
            connection.close()

    def _all(self) -> list[EdgeConnection]:
        with self._lock:  # also one that is being opened: its edge may have its ``Welcome``
            return list(self._connections.values())

    def _accept(self, listener: socket.socket) -> None:
        count = 0
        while not self._has_stopped:
            try:
                accepted, _ = listener.accept()
            except OSError as error:
                if not self._has_stopped:
                    _LOG.error("could not accept a connection: %s", error)
                    time.sleep(_ACCEPT_AGAIN_S)
                continue
            count += 1
            self._await_proof(accepted)
            thread = threading.Thread(
                target=self._serve, args=(accepted, count), name="edge", daemon=True
            )
            try:
                thread.start()
            except RuntimeError as error:  # the process may have no more threads
                _LOG.error("could not serve a connection: %s", error)
                self._forget_unproven(accepted)
                accepted.close()
        listener.close()

    def _await_proof(self, accepted: socket.socket) -> None:
        """Register a connection without ``Hello``; beyond the bound, close the oldest of them."""
        with self._lock:
            if len(self._unproven) >= UNPROVEN_MAX:
                oldest = next(iter(self._unproven))
                del self._unproven[oldest]
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)
            self._unproven[accepted] = None

    def _forget_unproven(self, accepted: socket.socket) -> None:
        with self._lock:
            self._unproven.pop(accepted, None)

    def _serve(self, accepted: socket.socket, number: int) -> None:
        with accepted, accepted.makefile("rb", buffering=_BUFFER_BYTES) as file:
            reader = cast("BinaryIO", file)
            try:
                keep_alive(accepted)
                hello = self._hello(accepted)
                accepted.settimeout(None)
            except (OSError, msgspec.DecodeError):
                return
            finally:
                self._forget_unproven(accepted)
            if hello is None:
                _LOG.warning("a connection was refused: wrong token")
                return
            connection = self._open(accepted, number, hello.edge)
            if connection is None:
                return
            try:
                self._read(reader, connection)
            except (OSError, msgspec.DecodeError) as error:
                _LOG.warning("connection of %s failed: %s", connection.edge, type(error).__name__)
            finally:
                self._close(connection)

    def _hello(self, accepted: socket.socket) -> Hello | None:
        until_s = self._monotonic() + _HELLO_S_MAX
        length, _ = HEADER.unpack(self._in_time(accepted, HEADER.size, until_s))
        if length > _HELLO_BYTES_MAX:
            return None
        hello = _HELLO.decode(self._in_time(accepted, length, until_s))
        return hello if hmac.compare_digest(hello.token, self._token) else None

    def _in_time(self, accepted: socket.socket, count: int, until_s: float) -> bytes:
        """Read ``count`` bytes before a time of the monotonic clock. Raises: OSError."""
        content = b""
        while len(content) < count:
            left_s = until_s - self._monotonic()
            if left_s <= 0:
                raise TimeoutError
            accepted.settimeout(left_s)
            part = accepted.recv(count - len(content))
            if not part:
                raise ConnectionResetError
            content += part
        return content

    def _open(self, accepted: socket.socket, number: int, edge: str) -> EdgeConnection | None:
        """Welcome an edge and register its connection, the ``number``-th that was accepted.

        None if the server has stopped, or if a later connection of the edge is open: a ``Hello``
        may be read when its edge has given up waiting and connected again.
        """
        with self._lock:
            before = self._connections.get(edge)
            if self._has_stopped or (before is not None and before.number > number):
                return None
            connection = EdgeConnection(
                accepted, edge, number, f"{self._id}-{number}", self._unsent_bytes_max
            )
            self._connections.pop(edge, None)
            has_missed = edge in self._missing
            self._missing.discard(edge)
            if before is not None:
                before.close()
            if before is not None or has_missed:
                # The edge's sessions end before the first batch of the new connection is read.
                self._lost(edge)
            # The ``Welcome`` is the first frame: until then pushes wait for the lock.
            connection.send(
                PUSH, msgspec.msgpack.encode(Welcome(connection.incarnation, has_missed))
            )
            self._connections[edge] = connection
        return connection

    def _close(self, connection: EdgeConnection) -> None:
        connection.close()
        with self._lock:
            if self._connections.get(connection.edge) is connection:
                del self._connections[connection.edge]
                self._lost(connection.edge)

    def _read(self, reader: BinaryIO, connection: EdgeConnection) -> None:
        while header := reader.read(HEADER.size):
            if len(header) < HEADER.size:
                return
            length, number = HEADER.unpack(header)
            if length > FRAME_BYTES_MAX:
                _LOG.error(
                    "%s sent a frame of %d bytes: connection closed", connection.edge, length
                )
                return
            content = _exactly(reader, length)
            with self._lock:
                # Once its edge has connected again, nothing that it sent before is carried out.
                if self._connections.get(connection.edge) is not connection:
                    return
                if not number & QUESTION:
                    answer = partial(connection.send, number)
                    self._submit(connection.edge, content, answer, connection.incarnation)
            if number & QUESTION:
                self._ask(content, _answered(connection, number))


def _answered(connection: EdgeConnection, number: int) -> Answered:
    def answered(content: Buffer | None) -> None:
        connection.send(number | FAILED if content is None else number, content or b"")

    return answered


def _exactly(reader: BinaryIO, count: int) -> bytes:
    content = reader.read(count)
    if len(content) < count:
        raise ConnectionResetError
    return content
