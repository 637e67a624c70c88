"""The wall clock, the time since the machine started, new ids and secrets."""

from __future__ import annotations

import os
import secrets
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable
from typing import Final, TypeAlias

Clock: TypeAlias = Callable[[], int]
"""Returns Unix milliseconds."""

Ahead: TypeAlias = Callable[[], int]
"""Returns by how many milliseconds the clock has gone ahead if that does not count yet, else 0."""

NewId: TypeAlias = Callable[[], str]
"""Returns a fresh opaque, unguessable id (DCTRL-0004 12.6)."""


SECRET_BYTES: Final = 32
_ID_BYTES: Final = 16
_DRAWN_AT_ONCE: Final = 256
"""Ids per request to the system: asking for the bits of one takes longer than the rest of it."""
_BITS: Final[list[bytes]] = []
os.register_at_fork(after_in_child=_BITS.clear)


def system_clock() -> int:
    """Unix milliseconds by the wall clock."""
    return time.time_ns() // 1_000_000


def uptime_s() -> float:
    """Seconds since the machine started, those in which it slept included where it counts them."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def new_id() -> str:
    """A fresh id: 128 random bits, base64url."""
    try:
        bits = _BITS.pop()
    except IndexError:
        # Other threads may do the same now: each draws bits of its own.
        drawn = os.urandom(_ID_BYTES * _DRAWN_AT_ONCE)
        bits, *others = (drawn[at : at + _ID_BYTES] for at in range(0, len(drawn), _ID_BYTES))
        _BITS.extend(others)
    return urlsafe_b64encode(bits)[:-2].decode()


def new_secret() -> bytes:
    """256 random bits, which stay in the memory of the caller."""
    return secrets.token_bytes(SECRET_BYTES)
