"""A log in PostgreSQL that was copied or restored in part, or stands behind a new schema."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, nullcontext

import pytest

from eventstore.log.codec import encode
from eventstore.log.errors import LogUnavailable, LogUnusable, ReadModelsMissing
from eventstore.log.event_log import EventLog, QueueDepth
from eventstore.log.events import IdentityRegistered
from eventstore.log.log_format import record_format
from eventstore.read_models import queue_depths
from eventstore.stores.open_log import open_log
from eventstore.stores.postgres_bounds import PostgresBounds
from eventstore.stores.postgres_log import PostgresStore
from eventstore.stores.postgres_queue_totals import TOGETHER
from eventstore.stores.recorder_log import rebuild_read_models
from tests.database_server import DatabaseServer, database_directory
from tests.log.raw_sql import run_sql
from tests.log.samples import AT_MS, COMMAND, OWNER, OWNER_DID, append, message

pytestmark = pytest.mark.postgres


@pytest.fixture
def log(postgres_url: str) -> Iterator[EventLog]:
    with closing(open_log(postgres_url)) as opened:
        yield opened


def test_a_new_schema_in_front_of_that_of_the_log_gets_no_tables(postgres_url: str) -> None:
    with closing(open_log(postgres_url)) as log:
        assert log.setting("shards", "7") == "7"
    # As those who keep roles out of public do: the role's own schema is the first of the path.
    run_sql(postgres_url, "CREATE SCHEMA AUTHORIZATION CURRENT_USER")
    run_sql(postgres_url, "DROP TABLE heartbeat, queue_totals")
    with closing(open_log(postgres_url)) as log:
        log.check_writable()
        assert log.settings() == {"shards": "7"}
    schemas = "SELECT DISTINCT schemaname FROM pg_tables WHERE tableowner = CURRENT_USER"
    found = run_sql(
        postgres_url, f"{schemas} AND schemaname NOT IN ('pg_catalog', 'information_schema')"
    )
    assert found == [("public",)]


def test_a_log_whose_read_models_are_missing_is_found_behind_a_new_schema(
    postgres_url: str,
) -> None:
    with closing(open_log(postgres_url)) as log:
        assert log.setting("shards", "7") == "7"
    run_sql(postgres_url, "CREATE SCHEMA AUTHORIZATION CURRENT_USER")
    run_sql(postgres_url, "DROP TABLE queue_depths")
    PostgresStore(postgres_url, makes_missing=True).close()
    with closing(open_log(postgres_url)) as log:
        assert log.settings() == {"shards": "7"}


def test_a_log_is_refused_whose_rows_are_hidden_by_those_of_another_schema(
    postgres_url: str,
) -> None:
    open_log(postgres_url).close()
    run_sql(postgres_url, "CREATE SCHEMA front")
    run_sql(postgres_url, "CREATE TABLE front.stored_events (LIKE public.stored_events)")
    with pytest.raises(LogUnavailable, match="search_path"):
        open_log(f"{postgres_url}&options=-csearch_path%3Dfront,public")


@pytest.mark.parametrize(
    "table", ["public.stored_events", "settings", "contents", "archived_states"]
)
@pytest.mark.parametrize("to_read", [False, True])
def test_a_log_that_was_restored_in_part_is_refused(
    postgres_url: str, table: str, *, to_read: bool
) -> None:
    with closing(open_log(postgres_url)) as log:
        record_format(log)
    run_sql(postgres_url, f"DROP TABLE {table}")
    with pytest.raises(LogUnavailable, match=f"tables {table} are missing"):
        open_log(postgres_url, to_read=to_read)


@pytest.mark.parametrize("table", ["stored_events", "contents", "settings", "queue_depths"])
@pytest.mark.parametrize("to_read", [False, True])
def test_a_log_is_refused_whose_primary_keys_were_not_restored(
    postgres_url: str, table: str, *, to_read: bool
) -> None:
    """pg_restore makes them last; that of the rows keeps out a second writer."""
    open_log(postgres_url).close()
    run_sql(postgres_url, f"ALTER TABLE {table} DROP CONSTRAINT {table}_pkey")
    with pytest.raises(LogUnavailable, match=f"{table} .*no primary key"):
        open_log(postgres_url, to_read=to_read)


def test_no_export_is_made_of_a_log_that_a_subscription_fills(
    server_of_its_own: DatabaseServer,
) -> None:
    """It would be declared complete until a time whose events have not come yet."""
    server_of_its_own.stop()
    server_of_its_own.start(["-cwal_level=logical"])
    source, at_primary = server_of_its_own.url, PostgresBounds(at_primary=True)
    with database_directory() as directory:
        copy = DatabaseServer.new(directory / "copy")
        copy.start()
        for server in (server_of_its_own, copy):
            open_log(server.url).close()
        server_of_its_own.run("CREATE PUBLICATION log FOR TABLE stored_events")
        conninfo = f"host=127.0.0.1 port={server_of_its_own.port} user=postgres dbname=postgres"
        copy.run(f"CREATE SUBSCRIPTION log CONNECTION '{conninfo}' PUBLICATION log")
        for url, is_copy in ((source, False), (copy.url, True)):
            refused = pytest.raises(LogUnusable, match="by the subscription log")
            with refused if is_copy else nullcontext():
                open_log(url, to_read=True, postgres=at_primary).close()
            open_log(url, to_read=True).close()
        copy.run("ALTER SUBSCRIPTION log DISABLE")
        open_log(copy.url, to_read=True, postgres=at_primary).close()
        copy.run("ALTER SUBSCRIPTION log SET (slot_name = NONE)")
        copy.run("DROP SUBSCRIPTION log")


def test_queues_that_were_not_restored_are_found_missing_and_counted_again(
    postgres_url: str,
) -> None:
    """pg_restore --data-only cannot fill their table beside its triggers, and goes on."""
    arrived = IdentityRegistered(
        at_ms=AT_MS, command=COMMAND, did=OWNER_DID, expires_at_s=1, contract=b""
    )
    with closing(open_log(postgres_url)) as log:
        append(log, OWNER, arrived, message())
        with closing(PostgresStore(postgres_url)) as store:
            rebuild_read_models(store)
        figures = log.figures()
        assert (figures.identities, figures.queue_messages) == (1, 1)
    run_sql(postgres_url, "ALTER TABLE queue_depths DISABLE TRIGGER USER")
    run_sql(postgres_url, "DELETE FROM queue_depths")
    run_sql(postgres_url, "ALTER TABLE queue_depths ENABLE TRIGGER USER")
    with pytest.raises(ReadModelsMissing, match="queue_depths"):
        open_log(postgres_url)
    open_log(postgres_url, to_read=True).close()
    with closing(PostgresStore(postgres_url, makes_missing=True)) as store:
        rebuild_read_models(store)
    with closing(open_log(postgres_url)) as log:
        assert log.figures() == figures


@pytest.mark.parametrize("lost", ["notification_id < 3", "false"])
def test_no_row_stands_before_others_after_a_copy_without_the_sequence(
    postgres_url: str, lost: str
) -> None:
    with closing(open_log(postgres_url)) as log:
        append(log, OWNER, message(), message(), message())
    # Rows that have left for the archive leave positions free.
    run_sql(postgres_url, "DELETE FROM contents")
    run_sql(postgres_url, f"DELETE FROM stored_events WHERE {lost}")
    # Logical replication copies rows, and no sequences.
    run_sql(postgres_url, "ALTER SEQUENCE stored_events_notification_id_seq RESTART")
    with closing(open_log(postgres_url)) as copied:
        for version in (4, 5):
            copied.append([encode(OWNER, version, message())], [message()])
        assert [(row.originator_version, row.id) for row in copied.read_log(after=2)] == [
            (3, 3),
            (4, 4),
            (5, 5),
        ]


def test_a_sequence_that_was_set_ahead_of_the_rows_stays_ahead(postgres_url: str) -> None:
    with closing(open_log(postgres_url)) as log:
        append(log, OWNER, message())
    # A copy may lack the newest rows, whose positions readers have passed.
    run_sql(postgres_url, "ALTER SEQUENCE stored_events_notification_id_seq RESTART WITH 1000")
    with closing(open_log(postgres_url)) as copied:
        copied.append([encode(OWNER, 2, message())], [message()])
        assert copied.read_log(after=1)[0].id >= 1000


def test_no_index_depends_on_a_collation(log: EventLog, postgres_url: str) -> None:
    """Files that come under another version of glibc or ICU need no REINDEX."""
    indexes = "FROM pg_index JOIN pg_class AS c ON c.oid = indexrelid"
    ours = f"{indexes} WHERE relnamespace = 'public'::regnamespace"
    assert run_sql(postgres_url, f"SELECT count(*) > 10 {ours}") == [(True,)]
    assert run_sql(postgres_url, f"SELECT relname {ours} AND 0 < ANY (indcollation)") == []


def test_appends_go_on_while_every_table_is_replicated(server_of_its_own: DatabaseServer) -> None:
    database = server_of_its_own
    database.run("ALTER SYSTEM SET wal_level = logical")
    database.stop()
    database.start()
    open_log(database.url).close()
    database.run("ALTER TABLE queue_totals REPLICA IDENTITY DEFAULT")  # as earlier builds made it
    database.run("CREATE PUBLICATION every FOR ALL TABLES")
    with closing(PostgresStore(database.url)) as store:
        with store.writing() as session:
            for number in range(1, 2 * TOGETHER):
                depth = QueueDepth(OWNER, number, 7 * number, 5, OWNER_DID)
                queue_depths.save(session, [depth])
        rebuild_read_models(store)
