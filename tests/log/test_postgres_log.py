"""What the PostgreSQL log promises beyond the contract: one transaction, no retry, durability."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest
from eventsourcing.persistence import NotSupportedError, PersistenceError
from eventsourcing.postgres import PostgresDatastore

from eventstore.codec import encode
from eventstore.errors import AppendConflict, AppendUnknown, LogUnavailable, UnsafeLog
from eventstore.log import EventLog, QueueDepth, WaitingQueue
from eventstore.open_log import open_log
from eventstore.postgres_log import PostgresRecorder, PostgresStore
from tests.log.raw_sql import run_sql
from tests.log.samples import OTHER, OWNER, OWNER_DID, append, message

pytestmark = pytest.mark.postgres


@pytest.fixture
def log(postgres_url: str) -> Iterator[EventLog]:
    with closing(open_log(postgres_url)) as opened:
        yield opened


def test_two_thousand_rows_are_one_transaction(log: EventLog, postgres_url: str) -> None:
    append(log, OWNER, *[message(bytes(1200))] * 2000)
    ((rows, transactions),) = run_sql(
        postgres_url, "SELECT count(*), count(DISTINCT xmin::text) FROM stored_events"
    )
    assert (rows, transactions) == (2000, 1)


def test_an_append_whose_commit_is_lost_runs_once_and_is_unknown(
    log: EventLog, postgres_url: str
) -> None:
    run_sql(postgres_url, "CREATE SEQUENCE attempts")
    run_sql(
        postgres_url,
        "CREATE FUNCTION lose_the_connection() RETURNS trigger LANGUAGE plpgsql AS $$"
        " BEGIN PERFORM nextval('attempts'), pg_terminate_backend(pg_backend_pid());"
        " RETURN NULL; END $$",
    )
    run_sql(
        postgres_url,
        "CREATE CONSTRAINT TRIGGER at_commit AFTER INSERT ON stored_events"
        " DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION lose_the_connection()",
    )
    with pytest.raises(AppendUnknown):
        append(log, OWNER, message())
    assert [tuple(row) for row in run_sql(postgres_url, "SELECT last_value FROM attempts")] == [
        (1,)
    ]
    run_sql(postgres_url, "DROP TRIGGER at_commit ON stored_events")
    append(log, OWNER, message())
    assert len(log.read_stream(OWNER)) == 1


def test_connections_that_the_server_closed_are_replaced(log: EventLog, postgres_url: str) -> None:
    append(log, OWNER, message())
    ended = run_sql(
        postgres_url,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()",
    )
    assert len(ended) >= 1
    append(log, OWNER, message())
    assert log.position() == 2


@pytest.mark.parametrize("synchronous_commit", ["off", "local"])
def test_only_a_server_that_loses_no_confirmed_commit_is_used(
    postgres_url: str, synchronous_commit: str
) -> None:
    ((name,),) = run_sql(postgres_url, "SELECT current_database()")
    run_sql(postgres_url, f"ALTER DATABASE {name} SET synchronous_commit = {synchronous_commit}")
    if synchronous_commit == "off":
        with pytest.raises(UnsafeLog, match="synchronous_commit"):
            open_log(postgres_url)
    with closing(open_log(postgres_url, allow_unsafe=synchronous_commit == "off")) as log:
        append(log, OWNER, message())


def test_all_parameters_of_the_url_reach_the_server(postgres_url: str) -> None:
    url = f"{postgres_url}&application_name=from-the-url"
    with closing(PostgresStore(url)) as store, store.reading() as session:
        ((name,),) = session.rows("SHOW application_name")
    assert name == "from-the-url"


def test_a_log_from_before_its_later_columns_opens_and_works(postgres_url: str) -> None:
    run_sql(
        postgres_url,
        "CREATE TABLE queue_depths (stream bytea PRIMARY KEY, messages bigint NOT NULL,"
        " bytes bigint NOT NULL, oldest_at_ms bigint)",
    )
    run_sql(postgres_url, f"INSERT INTO queue_depths VALUES ('\\x{OTHER.hex}', 2, 20, 5)")
    for version in (1, 2):
        with closing(open_log(postgres_url)) as log:
            waiting = QueueDepth(OWNER, version, 7, 9, OWNER_DID, outbound=True)
            log.append([encode(OWNER, version, message())], [message()], [waiting])
            owned = WaitingQueue(OWNER_DID, version, 7, 9, outbound=True)
            kept = WaitingQueue("", 2, 20, 5, outbound=False)
            assert log.waiting_queues(limit=9) == [kept, owned]
            assert log.waiting_queues(outbound_only=True, limit=9) == [owned]
            assert log.figures().queue_messages == 2 + version


def test_waits_within_the_server_are_bounded(postgres_url: str) -> None:
    with closing(PostgresStore(postgres_url)) as store, store.writing() as session:
        ((lock,),) = session.rows("SHOW lock_timeout")
        ((idle,),) = session.rows("SHOW idle_in_transaction_session_timeout")
    assert (lock, idle) == ("10s", "15s")


def test_a_reading_transaction_cannot_write(postgres_url: str) -> None:
    with (
        closing(PostgresStore(postgres_url)) as store,
        pytest.raises(PersistenceError, match="read-only"),
        store.reading() as session,
    ):
        session.run_many("INSERT INTO heartbeat VALUES (?, ?)", [(1, 1)])


def test_the_mode_that_inserts_without_the_lock_is_refused(postgres_url: str) -> None:
    parameters = psycopg.conninfo.conninfo_to_dict(postgres_url)
    datastore = PostgresDatastore(
        dbname=str(parameters["dbname"]),
        host=str(parameters["host"]),
        port="",
        user=str(parameters["user"]),
        password="",
        enable_db_functions=True,
    )
    with closing(datastore), pytest.raises(AssertionError):
        PostgresRecorder(datastore)


def test_the_recorder_does_not_pretend_to_notify(postgres_url: str) -> None:
    with closing(PostgresStore(postgres_url)) as store, pytest.raises(NotSupportedError):
        store.recorder.subscribe()


@pytest.mark.parametrize(
    "url", ["postgresql://user:secret@127.0.0.1:1/none", "postgresql://[", "postgresql://?port=x"]
)
def test_a_server_that_cannot_be_reached_is_unavailable(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eventstore.postgres_log.CONNECT_TIMEOUT_S", 1)
    with pytest.raises(LogUnavailable) as unavailable:
        open_log(url)
    assert "secret" not in str(unavailable.value)


def test_a_row_at_a_position_is_in_one_append_even_after_a_failed_one(log: EventLog) -> None:
    append(log, OWNER, message())
    with pytest.raises(AppendConflict):
        log.append([encode(OWNER, 1, message())], [message()])
    append(log, OWNER, message(), message())
    positions = [row.id for row in log.read_log()]
    assert positions == sorted(positions)
    assert positions[2] == positions[1] + 1
