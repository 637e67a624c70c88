"""A lock in a database that processes of one mediator share."""

from __future__ import annotations

import time

import psycopg
import pytest

from eventstore.log.errors import LockedElsewhere, LogUnavailable
from eventstore.stores.advisory_lock import advisory_lock
from eventstore.stores.postgres_bounds import PostgresBounds
from eventstore.stores.postgres_connections import BoundedConnection
from tests.database_server import DatabaseServer, database_directory

pytestmark = pytest.mark.postgres


def test_a_lock_is_free_before_its_session_ends(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server takes its time to end a session, and another process may come at once."""
    left: list[object] = []
    close = BoundedConnection.close

    def closing(connection: BoundedConnection) -> None:
        with psycopg.connect(postgres_url) as other:
            found = other.execute(
                "SELECT count(*) FROM pg_locks JOIN pg_database AS d ON d.oid = database"
                " WHERE locktype = 'advisory' AND datname = current_database()"
            )
            left.append(found.fetchone())
        close(connection)

    monkeypatch.setattr(BoundedConnection, "close", closing)
    with advisory_lock(postgres_url, "a round", PostgresBounds()) as check:
        check()
    assert left == [(0,)]


def test_a_server_that_hangs_does_not_hold_up_the_end_of_who_has_a_lock(
    server_of_its_own: DatabaseServer,
) -> None:
    began_s = time.monotonic()
    bounds = PostgresBounds(answer_s_max=120)
    with advisory_lock(server_of_its_own.url, "a round", bounds) as check:
        check()
        server_of_its_own.pause()
    server_of_its_own.resume()
    assert time.monotonic() - began_s < 20, "an answer may take two minutes"


def test_one_process_has_a_lock_and_others_may_have_others(postgres_url: str) -> None:
    with advisory_lock(postgres_url, "a round", PostgresBounds()):
        refused = pytest.raises(LockedElsewhere)
        with refused, advisory_lock(postgres_url, "a round", PostgresBounds()):
            pass
        with advisory_lock(postgres_url, "an export", PostgresBounds()) as check:
            check()


def test_no_lock_is_taken_on_a_standby(server_of_its_own: DatabaseServer) -> None:
    """One at the primary would not know of it, and a standby lags by an unknown time."""
    with database_directory() as directory:
        standby = server_of_its_own.standby(directory / "two")
        standby.start()
        with advisory_lock(server_of_its_own.url, "an export", PostgresBounds()):
            refused = pytest.raises(LogUnavailable, match="is in hot standby mode")
            with refused, advisory_lock(standby.url, "an export", PostgresBounds()):
                pass
        standby.promote()
        with advisory_lock(standby.url, "an export", PostgresBounds()) as check:
            check()


def test_a_lock_is_lost_with_its_session(postgres_url: str) -> None:
    with advisory_lock(postgres_url, "a round", PostgresBounds()) as check:
        with psycopg.connect(postgres_url, autocommit=True) as other:
            other.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_locks"
                " WHERE locktype = 'advisory' AND pid <> pg_backend_pid()"
                " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
            )
        with pytest.raises(LogUnavailable, match="the advisory lock was lost"):
            check()
