"""What travels on a line between an edge and a host: frames, and how a line is opened.

A frame is its length and a number (both big-endian), then msgpack. From the edge: a batch under
the number of the call. From the host: the ``BatchResult`` under the same number, or ``list[Push]``
under ``PUSH``. The first frame of the edge is a ``Hello``, that of the host a ``Welcome``.
"""

from __future__ import annotations

import socket
import struct
from typing import Final

import msgspec

HEADER: Final = struct.Struct(">IQ")
PUSH: Final = 0
"""The number of frames that answer no call."""
FRAME_BYTES_MAX: Final = 1024 * 1024 * 1024
"""Far beyond what the bounds of batches and pages let happen: what is larger is no frame."""
_IDLE_S: Final = 5
_PROBES_S: Final = 2
_PROBES: Final = 3
_UNACKNOWLEDGED_MS: Final = 11_000


class LineAddress(msgspec.Struct, frozen=True):
    """Where a host listens for lines, and what opens one."""

    host: str
    port: int
    token: bytes

    def __repr__(self) -> str:
        """Without the token: this may be printed."""
        return f"LineAddress({self.host!r}, {self.port})"


class Hello(msgspec.Struct, frozen=True):
    """The first frame of an edge."""

    token: bytes
    edge: str


class Welcome(msgspec.Struct, frozen=True):
    """The first frame of a host: the line is open.

    No other line has this incarnation: whoever sees another one knows that pushes may be lost.
    ``has_missed``: there were pushes for the edge before it had this line, or any.
    """

    incarnation: str
    has_missed: bool


def keep_alive(connection: socket.socket) -> None:
    """Send at once, and notice within seconds that the other machine is gone."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBES_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED_MS)
