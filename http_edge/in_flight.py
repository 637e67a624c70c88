"""What is under way at once at one edge, bounded; who waits for others does not count."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from typing import Final


class InFlight:
    """Requests that are being worked on, and the bytes of their bodies."""

    def __init__(self, *, requests_max: int, bytes_max: int) -> None:
        """Room for so many requests with so many bytes together."""
        self._requests_max = requests_max
        self._bytes_max = bytes_max
        self._requests = 0
        self._bytes = 0

    def has_room(self, size_bytes: int) -> bool:
        """Is there room for one more request with a body of this size?"""
        return self._requests < self._requests_max and self._bytes + size_bytes <= self._bytes_max

    @property
    def requests(self) -> int:
        """How many requests are being worked on."""
        return self._requests

    @property
    def size_bytes(self) -> int:
        """How many bytes their bodies have."""
        return self._bytes

    def begin(self, size_bytes: int) -> Token[InFlight | None]:
        """A request is worked on from now until its token and size are given to ``end``."""
        self._requests += 1
        self._bytes += size_bytes
        return _CURRENT.set(self)

    def end(self, token: Token[InFlight | None], size_bytes: int) -> None:
        """The request that ``begin`` gave this token for is answered, whatever happened to it."""
        _CURRENT.reset(token)
        self._requests -= 1
        self._bytes -= size_bytes

    @contextmanager
    def _parked(self) -> Iterator[None]:
        self._requests -= 1
        try:
            yield
        finally:
            self._requests += 1


_CURRENT: Final[ContextVar[InFlight | None]] = ContextVar("in_flight", default=None)


@contextmanager
def parked() -> Iterator[None]:
    """Within the block the current request only waits, and takes nobody's place."""
    current = _CURRENT.get()
    if current is None:
        yield
        return
    with current._parked():  # noqa: SLF001 - one class and its door
        yield
