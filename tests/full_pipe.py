"""A pipe that has no room left, as one has whose reader is stopped."""

from __future__ import annotations

import os
import select
from contextlib import suppress


def fill(writing: int) -> None:
    """Write to this end of a pipe, which processes share, until not even a byte finds room."""
    # The end that is opened here does not block, and the given one stays as it is.
    end = os.open(f"/proc/self/fd/{writing}", os.O_WRONLY | os.O_NONBLOCK)
    for size in (select.PIPE_BUF, 1):
        with suppress(BlockingIOError):
            while True:
                os.write(end, bytes(size))
    os.close(end)
