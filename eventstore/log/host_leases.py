"""Host leases: which hosts live, and where each of them listens.

A host has a row that it renews. Who reads the rows knows who lives, by the time of the database
alone, and asks no other process. A row says nothing about who owns what: that stands in the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec


class HostLease(msgspec.Struct, frozen=True):
    """A host that lives, as its row says.

    ``incarnation`` differs between two processes of the same name. ``address`` and ``port`` are
    where it listens for edges, and ``token`` opens a connection there. ``ends_s`` is when its
    time is over by the clock of the database, which grows as long as the host renews it; 0 in a
    lease that was not read.
    """

    name: str
    node: str
    incarnation: str
    address: str
    port: int
    token: bytes
    ends_s: float = 0.0

    def __repr__(self) -> str:
        """Without the token: this may be printed."""
        return f"HostLease({self.name!r}, {self.incarnation!r}, {self.address!r}, {self.port})"


class HostLeases(Protocol):
    """The rows in one database; every call has an end, and any thread may make it.

    Everything raises ``LogUnavailable`` when the database did not answer, and the next call tries
    it anew.
    """

    def take(self, lease: HostLease, seconds: float) -> None:
        """Have this name for so long by the database's time, whichever process had it."""

    def renew(self, lease: HostLease, seconds: float) -> bool:
        """Have it for so long from now on; False if another incarnation has it."""

    def living(self) -> Sequence[HostLease]:
        """The hosts whose time is not over, by name."""

    def leave(self, lease: HostLease) -> None:
        """Have the name no longer; that of another incarnation stays."""

    def clock_s(self) -> float | None:
        """The database's Unix time in seconds; None where it has no clock but this machine's."""

    def close(self) -> None:
        """End the connection."""
