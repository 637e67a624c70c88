"""Host leases in PostgreSQL, in the log's own database, and in a SQLite file beside the log.

Statements are short, have a connection of their own, and never wait behind an append. No process
relies on a row after a power cut, so none is synced: PostgreSQL commits without waiting for its
disk or its standby, and SQLite's file is synced when it checkpoints alone.
"""

from __future__ import annotations

import sqlite3
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import msgspec
import psycopg
from psycopg.rows import tuple_row
from typing_extensions import override

from eventstore.log.errors import LogUnavailable
from eventstore.log.host_leases import HostLease, HostLeases
from eventstore.stores.postgres_connections import BoundedConnection, PostgresBounds, connected
from eventstore.stores.sqlite_connections import create_file

_BOUNDS: Final = PostgresBounds()
_CONNECT_S_MAX: Final = 2.0
"""libpq knows no shorter time."""
_ANSWER_S_MAX: Final = 1.0
_KEPT_S: Final = 3_600.0
"""A row whose time is over is removed after so long: hosts of single identities come and go."""
_FILE: Final = "-hosts"
_WAL_PAGES_MAX: Final = 32
"""A sync for some thirty renewals, and little space on a disk that is almost full."""
_COLUMNS: Final = "name, node, incarnation, address, port, token"
_INSERT: Final = (
    f"INSERT INTO host_leases ({_COLUMNS}, ends) VALUES (?, ?, ?, ?, ?, ?, {{now}} + ?)"  # noqa: S608 - own text
    " ON CONFLICT (name) DO UPDATE SET node = excluded.node, incarnation = excluded.incarnation,"
    " address = excluded.address, port = excluded.port, token = excluded.token,"
    " ends = excluded.ends"
)
_RENEW: Final = (
    f"{_INSERT} WHERE host_leases.incarnation = excluded.incarnation"
    " OR host_leases.ends <= {now} RETURNING 1"
)
_CLEAR: Final = "DELETE FROM host_leases WHERE ends <= {now} - ?"
_LIVING: Final = f"SELECT {_COLUMNS} FROM host_leases WHERE ends > {{now}} ORDER BY name"  # noqa: S608 - own text
_LEAVE: Final = "DELETE FROM host_leases WHERE name = ? AND incarnation = ?"
_SQLITE_TABLE: Final = """
    CREATE TABLE IF NOT EXISTS host_leases (
        name BLOB PRIMARY KEY, node BLOB NOT NULL, incarnation BLOB NOT NULL,
        address BLOB NOT NULL, port INTEGER NOT NULL, token BLOB NOT NULL, ends REAL NOT NULL
    )
    """


def open_host_leases(dsn: str, postgres: PostgresBounds = _BOUNDS) -> HostLeases:
    """The host leases of the log at this URL; its tables have to be there.

    Nothing is connected yet. ``postgres`` bounds what here has no bound of its own.
    """
    url = urlsplit(dsn)
    if url.scheme == "sqlite":
        log = Path(unquote(url.path)).absolute()
        return SqliteHostLeases(log.with_name(log.name + _FILE))
    return PostgresHostLeases(dsn, postgres)


class _SqlHostLeases(ABC, HostLeases):
    """The statements of both; ``_now`` is the time of the database in seconds."""

    _now: str

    def __init__(self) -> None:
        self._turn = threading.Lock()

    @override
    def take(self, lease: HostLease, seconds: float) -> None:
        self._run(_INSERT, [*_row(lease), seconds])
        self._run(_CLEAR, [_KEPT_S])

    @override
    def renew(self, lease: HostLease, seconds: float) -> bool:
        return bool(self._run(_RENEW, [*_row(lease), seconds]))

    @override
    def living(self) -> Sequence[HostLease]:
        return [
            HostLease(
                bytes(name).decode(),
                bytes(node).decode(),
                bytes(incarnation).decode(),
                bytes(address).decode(),
                port,
                bytes(token),
            )
            for name, node, incarnation, address, port, token in self._run(_LIVING, [])
        ]

    @override
    def leave(self, lease: HostLease) -> None:
        self._run(_LEAVE, [lease.name.encode(), lease.incarnation.encode()])

    @override
    def close(self) -> None:
        with self._turn:
            self._disconnect()

    def _run(self, statement: str, parameters: Sequence[object]) -> Sequence[Sequence[Any]]:
        with self._turn:
            try:
                return self._rows(statement.replace("{now}", self._now), parameters)
            except (psycopg.Error, sqlite3.Error, OSError) as error:
                self._disconnect()
                why = next(iter(str(error).splitlines()), type(error).__name__)
                raise LogUnavailable(f"host leases: {why}") from error

    @abstractmethod
    def _rows(self, statement: str, parameters: Sequence[object]) -> Sequence[Sequence[Any]]:
        """Run a statement, connected first if need be; its rows, none if it returns none."""

    @abstractmethod
    def _disconnect(self) -> None:
        """End the connection, if there is one."""


class PostgresHostLeases(_SqlHostLeases):
    """A ``HostLeases`` in the database of the log."""

    _now = "extract(epoch from clock_timestamp())::float8"

    def __init__(self, dsn: str, bounds: PostgresBounds) -> None:
        super().__init__()
        self._dsn = dsn
        self._bounds = msgspec.structs.replace(
            bounds,
            connect_s_max=_CONNECT_S_MAX,
            answer_s_max=_ANSWER_S_MAX,
            lock_s_max=_ANSWER_S_MAX,
        )
        self._connection: BoundedConnection | None = None

    @override
    def _rows(self, statement: str, parameters: Sequence[object]) -> Sequence[Sequence[Any]]:
        if self._connection is None:
            self._connection = connected(self._dsn, self._bounds)
            self._connection.execute("SET synchronous_commit = off")
        with self._connection.cursor(row_factory=tuple_row) as cursor:
            # Own text, with nothing of others in it.
            cursor.execute(statement.replace("?", "%s").encode(), parameters, prepare=True)
            return cursor.fetchall() if cursor.description else []

    @override
    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


class SqliteHostLeases(_SqlHostLeases):
    """A ``HostLeases`` in a file of their own, for the processes of one machine."""

    _now = "((julianday('now') - 2440587.5) * 86400.0)"

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._connection: sqlite3.Connection | None = None

    @override
    def _rows(self, statement: str, parameters: Sequence[object]) -> Sequence[Sequence[Any]]:
        if self._connection is None:
            self._connection = self._opened()
        with closing(self._connection.cursor()) as cursor:
            return cursor.execute(statement, parameters).fetchall()

    def _opened(self) -> sqlite3.Connection:
        if not self._path.exists():
            create_file(self._path)
        connection = sqlite3.connect(
            self._path, timeout=_ANSWER_S_MAX, isolation_level=None, check_same_thread=False
        )
        try:
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute(f"PRAGMA wal_autocheckpoint = {_WAL_PAGES_MAX}")
            connection.execute(_SQLITE_TABLE)
        except BaseException:
            connection.close()
            raise
        return connection

    @override
    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _row(lease: HostLease) -> list[object]:
    return [
        lease.name.encode(),
        lease.node.encode(),
        lease.incarnation.encode(),
        lease.address.encode(),
        lease.port,
        lease.token,
    ]
