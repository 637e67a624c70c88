"""The one place that reads the wall clock and makes ids; everything else is handed both."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import Final, TypeAlias

Clock: TypeAlias = Callable[[], int]
"""Returns Unix milliseconds."""

NewId: TypeAlias = Callable[[], str]
"""Returns a fresh opaque, unguessable id (DCTRL-0004 12.6)."""


SECRET_BYTES: Final = 32


def system_clock() -> int:
    """Unix milliseconds by the wall clock."""
    return time.time_ns() // 1_000_000


def new_id() -> str:
    """A fresh id: 128 random bits, base64url."""
    return secrets.token_urlsafe(16)


def new_secret() -> bytes:
    """256 random bits, which stay in the memory of who asks for them."""
    return secrets.token_bytes(SECRET_BYTES)
