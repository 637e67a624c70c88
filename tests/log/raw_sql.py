"""Statements that go to a store behind the log's back."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import psycopg

from eventstore.stores.open_log import open_store


def run_sql(log_url: str, statement: str) -> Sequence[Sequence[Any]]:
    """Run one statement on a connection of its own and return its rows."""
    if log_url.startswith("sqlite:"):
        with closing(sqlite3.connect(log_url.removeprefix("sqlite:"))) as connection, connection:
            return connection.execute(statement).fetchall()
    with psycopg.connect(log_url, autocommit=True) as server:
        cursor = server.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def remove_erased(log_url: str) -> None:
    """Remove the contents that are erased so far, as a log in SQLite does within seconds."""
    if log_url.startswith("sqlite:"):
        open_store(log_url).close()
