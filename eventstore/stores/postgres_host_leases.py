"""Host leases in PostgreSQL, in the log's own database.

Statements are short, have a connection of their own, and never wait behind an append. No process
relies on a row after a power cut, so commits wait for no disk and no standby.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import psycopg
from psycopg.rows import tuple_row
from typing_extensions import override

from eventstore.log.errors import LogUnavailable
from eventstore.log.host_leases import (
    LEASE_S,
    LEASE_S_MAX,
    HostLease,
    HostLeases,
    answer_s_max,
)
from eventstore.stores.postgres_bounds import PostgresBounds
from eventstore.stores.postgres_connections import BoundedConnection, connected

_CONNECT_SHARE: Final = 0.5
"""The part of a lease's time in which the database takes a connection."""
_CONNECT_S: Final = 2.0
"""libpq accepts no shorter time."""
_KEPT_S: Final = 3_600.0
"""The row of an ended lease is removed after this time: dedicated hosts come and go."""
_NOW: Final = "extract(epoch from clock_timestamp())::float8"
_COLUMNS: Final = "name, node, incarnation, address, port, token, protocol"
_INSERT: Final = (
    f"INSERT INTO host_leases ({_COLUMNS}, ends)"  # noqa: S608 - own text
    f" VALUES (%s, %s, %s, %s, %s, %s, %s, {_NOW} + %s)"
    " ON CONFLICT (name) DO UPDATE SET node = excluded.node, incarnation = excluded.incarnation,"
    " address = excluded.address, port = excluded.port, token = excluded.token,"
    " protocol = excluded.protocol, ends = excluded.ends"
)
_RENEW: Final = (
    f"{_INSERT} WHERE host_leases.incarnation = excluded.incarnation"
    f" OR host_leases.ends <= {_NOW} OR host_leases.ends > {_NOW} + {LEASE_S_MAX} RETURNING 1"
)
_CLIP: Final = (
    f"UPDATE host_leases SET ends = {_NOW} + {LEASE_S_MAX} WHERE ends > {_NOW} + {LEASE_S_MAX}"  # noqa: S608 - own text
)
"""A lost host would live as much longer as the clock was set back. A living one renews anyway."""
_CLEAR: Final = f"DELETE FROM host_leases WHERE ends <= {_NOW} - %s"  # noqa: S608 - own text
_LIVING: Final = (
    "SELECT name, node, incarnation, address, port, token, ends, protocol"  # noqa: S608 - own text
    f" FROM host_leases WHERE ends > {_NOW} ORDER BY name"
)
_CLOCK: Final = f"SELECT {_NOW}"
_LEAVE: Final = "DELETE FROM host_leases WHERE name = %s AND incarnation = %s"


class PostgresHostLeases(HostLeases):
    """A ``HostLeases`` in the database of the log."""

    def __init__(self, dsn: str, bounds: PostgresBounds, *, lease_s: float = LEASE_S) -> None:
        """Leases that last ``lease_s`` seconds, which bounds each wait; this does not connect."""
        self._dsn = dsn
        answer_s = answer_s_max(lease_s)
        self._bounds = msgspec.structs.replace(
            bounds,
            connect_s_max=max(_CONNECT_S, lease_s * _CONNECT_SHARE),
            answer_s_max=answer_s,
            lock_s_max=answer_s,
        )
        self._turn = threading.Lock()
        self._connection: BoundedConnection | None = None

    @override
    def take(self, lease: HostLease, seconds: float) -> None:
        self._run(_INSERT, [*_row(lease), seconds])
        self._run(_CLIP, [])
        self._run(_CLEAR, [_KEPT_S])

    @override
    def renew(self, lease: HostLease, seconds: float) -> bool:
        return bool(self._run(_RENEW, [*_row(lease), seconds]))

    @override
    def living(self) -> Sequence[HostLease]:
        rows = self._run(_LIVING, [])
        fields: list[list[Any]] = [[*map(bytes.decode, row[:4]), *row[4:]] for row in rows]
        return [HostLease(*row) for row in fields]

    @override
    def leave(self, lease: HostLease) -> None:
        self._run(_LEAVE, [lease.name.encode(), lease.incarnation.encode()])

    @override
    def clock_s(self) -> float:
        ((now_s,),) = self._run(_CLOCK, [])
        return float(now_s)

    @override
    def close(self) -> None:
        with self._turn:
            self._disconnect()

    def _run(self, statement: str, parameters: Sequence[object]) -> Sequence[Sequence[Any]]:
        with self._turn:
            try:
                return self._rows(statement, parameters)
            except (psycopg.Error, OSError) as error:
                self._disconnect()
                why = next(iter(str(error).splitlines()), type(error).__name__)
                raise LogUnavailable(f"host leases: {why}") from error

    def _rows(self, statement: str, parameters: Sequence[object]) -> Sequence[Sequence[Any]]:
        if self._connection is None:
            self._connection = connected(self._dsn, self._bounds)
            self._connection.execute("SET synchronous_commit = off")
        with self._connection.cursor(row_factory=tuple_row) as cursor:
            # Our own text, without any input in it.
            cursor.execute(statement.encode(), parameters, prepare=True)
            return cursor.fetchall() if cursor.description else []

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _row(lease: HostLease) -> list[object]:
    texts = (lease.name, lease.node, lease.incarnation, lease.address)
    return [*map(str.encode, texts), lease.port, lease.token, lease.protocol]
