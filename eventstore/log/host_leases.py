"""Host leases: which hosts live, and where each of them listens.

Each host renews a row of its own. A reader of the rows knows which hosts live, by the clock of the
database alone and without asking another process. A row does not say which partitions a host owns:
the log does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

NODE_PROTOCOL: Final = 4
"""The version of what nodes of one cluster exchange: frames, commands, answers, handovers, and the
layout of the states that replace archived rows. Only nodes with the same number run side by side.
``tests/golden/test_formats.py`` holds what belongs to each number."""
LEASE_S: Final = 4.0
"""The usual time of a lease, in seconds."""
LEASE_S_MAX: Final = 60
"""The longest lease, in seconds. A lease that ends later was given before a clock was set back."""


_ANSWER_SHARE: Final = 0.25
_ANSWER_S: Final = 1.0


def answer_s_max(lease_s: float) -> float:
    """How long a database may take to answer, in seconds, if leases last ``lease_s`` seconds.

    It grows with the leases: with a fixed bound, longer leases would not keep the hosts of a slow
    database.
    """
    return max(_ANSWER_S, lease_s * _ANSWER_SHARE)


def node_protocol(databases: int) -> int:
    """The protocol in the leases of all processes of a node, by the number of databases of the log.

    With several it is not ``NODE_PROTOCOL``: nodes of earlier releases have the same one, but a
    single placer for all databases.
    """
    return NODE_PROTOCOL if databases == 1 else NODE_PROTOCOL + 1


class HostLease(msgspec.Struct, frozen=True):
    """The row of a living host.

    ``incarnation`` differs between two processes of the same name. ``address`` and ``port`` are
    where it listens for edges, and ``token`` opens a connection there. ``ends_s`` is the end of
    the lease by the clock of the database, moved by each renewal; 0 in a lease that was not read.
    ``protocol`` is the ``node_protocol`` of the process; the first builds wrote none, and had 1.
    """

    name: str
    node: str
    incarnation: str
    address: str
    port: int
    token: bytes
    ends_s: float = 0.0
    protocol: int = 1

    def __repr__(self) -> str:
        """Show the lease without its token, so that it may be printed."""
        return f"HostLease({self.name!r}, {self.incarnation!r}, {self.address!r}, {self.port})"


class HostLeases(Protocol):
    """The host leases in one database; every call is bounded in time, and any thread may call.

    Every method raises ``LogUnavailable`` if the database does not answer; the next call tries
    again.
    """

    def take(self, lease: HostLease, seconds: float) -> None:
        """Take the lease of this name, whichever process had it, for ``seconds`` from now."""

    def renew(self, lease: HostLease, seconds: float) -> bool:
        """Extend the lease to ``seconds`` from now; False if another incarnation has it."""

    def living(self) -> Sequence[HostLease]:
        """The hosts whose leases have not ended, in the order of their names."""

    def leave(self, lease: HostLease) -> None:
        """Give up the lease; the lease of another incarnation stays."""

    def clock_s(self) -> float | None:
        """The database's Unix time in seconds; None if its clock is this machine's."""

    def close(self) -> None:
        """End the connection."""
