"""Who pays for a request while it is worked on: the address that it came from."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Final

_CHARGE: Final[ContextVar[Callable[[int], None] | None]] = ContextVar("charge", default=None)


def charged_by(charge: Callable[[int], None]) -> None:
    """A request begins whose address pays by ``charge`` for so many bytes that prove nothing."""
    _CHARGE.set(charge)


def charge_unproven(size_bytes: int) -> None:
    """The current request proved nothing: its address pays for having it read."""
    if (charge := _CHARGE.get()) is not None:
        charge(size_bytes)
