"""The client's sources of time, ids, chance and waiting.

Everything else in the package is a function of its arguments; tests pass sources of their own.
"""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass


def _system_now_ms() -> int:
    return time.time_ns() // 1_000_000


def _uuid4() -> str:
    return str(uuid.uuid4())


@dataclass(frozen=True, slots=True)
class Sources:
    """Time, ids, chance and waiting; the defaults are the system's.

    Attributes:
        now_ms: The current time in Unix milliseconds.
        new_nonce: A fresh UUID v4 (DCTRL-0004 4.2).
        chance: A random number in [0, 1), to spread retries.
        sleep: Waits for a number of seconds.
    """

    now_ms: Callable[[], int] = _system_now_ms
    new_nonce: Callable[[], str] = _uuid4
    chance: Callable[[], float] = random.SystemRandom().random
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
