"""Has the other side's machine taken everything that was written to a connection?"""

from __future__ import annotations

import asyncio
import fcntl
import struct
import termios
from typing import Final

_POLL_S_MIN: Final = 0.001
_POLL_S_MAX: Final = 0.1


async def all_sent(transport: asyncio.BaseTransport | None, *, seconds_max: float) -> bool:
    """Wait until the kernel has no byte left that the other side has not acknowledged (TCP).

    False when the connection breaks first, or takes longer than ``seconds_max``. That the other
    *program* has read it, nobody can know.
    """
    loop = asyncio.get_running_loop()
    deadline, pause_s = loop.time() + seconds_max, _POLL_S_MIN
    while transport is not None and not transport.is_closing():
        connection = transport.get_extra_info("socket")
        if connection is None:
            return False
        try:
            if not _unacknowledged_bytes(connection.fileno()):
                return True
        except OSError:
            return False
        if loop.time() >= deadline:
            return False
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _POLL_S_MAX)
    return False


def _unacknowledged_bytes(descriptor: int) -> int:
    """SIOCOUTQ, which has the number of TIOCOUTQ (tcp(7)).

    Raises:
        OSError: there is no such connection any more.
    """
    answer = fcntl.ioctl(descriptor, termios.TIOCOUTQ, struct.pack("i", 0))
    (count,) = struct.unpack("i", answer)
    return int(count)
