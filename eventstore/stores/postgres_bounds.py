"""How many connections to PostgreSQL one process opens, and how long it waits. No driver needed."""

from __future__ import annotations

import msgspec


class PostgresBounds(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of one process; times in seconds.

    Attributes:
        connections_kept: Connections that stay open without work.
        connections_max: Connections at most; a caller beyond them waits for one to come back.
        connect_s_max: For one server to take a connection, and to show that an idle one lives.
        lock_s_max: For the lock that appends take in turn, enforced by the server.
        answer_s_max: For the answer to one statement. Longer than ``lock_s_max``, so that the
            server's own error comes first.
        idle_s_max: The server ends a transaction that is idle for longer: its process was paused
            or cut off.
        at_primary: Connect to no standby, whatever the URL says: it lags by an unknown time, and
            the primary does not know its locks.
    """

    connections_kept: int = 2
    connections_max: int = 10
    connect_s_max: float = 5.0
    lock_s_max: float = 10.0
    answer_s_max: float = 15.0
    idle_s_max: float = 15.0
    at_primary: bool = False
