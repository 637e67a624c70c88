"""Connections to PostgreSQL: bounded in number and time, and as the log needs them."""

from __future__ import annotations

import contextlib
import os
import socket
import time
import tomllib
from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest
from eventsourcing.persistence import PersistenceError
from packaging.requirements import Requirement

from eventstore.log.codec import decode
from eventstore.log.errors import (
    AppendUnknown,
    LogUnavailable,
    NotComparable,
    ReadTooLong,
    UnsafeLog,
)
from eventstore.log.event_log import EventLog, Snapshot
from eventstore.stores import postgres_connections
from eventstore.stores.open_log import open_log
from eventstore.stores.postgres_bounds import PostgresBounds
from eventstore.stores.postgres_connections import is_refused
from eventstore.stores.postgres_log import PostgresStore
from eventstore.stores.recorder_log import rebuild_read_models, wrong_read_models
from tests.cluster.server import ended
from tests.database_server import DatabaseServer, database_directory
from tests.log.forgetful_link import linked
from tests.log.raw_sql import run_sql
from tests.log.samples import OWNER, append, message, save
from tests.log.shared_sessions import pooled
from tests.log.test_read_models import counts, fill
from tests.postgres import Server
from tests.tidy.modules import ROOT

pytestmark = pytest.mark.postgres
_SHOWN = "SHOW synchronous_commit"
ATTEMPTS = 10


@pytest.fixture
def log(postgres_url: str) -> Iterator[EventLog]:
    with closing(open_log(postgres_url)) as opened:
        yield opened


def test_who_may_wait_for_ever_leaves_a_connection_that_may_not(postgres_url: str) -> None:
    bounds = PostgresBounds(connections_kept=1, connections_max=1, answer_s_max=7)
    # Making indexes and comparing read models takes as long as the log is large.
    with closing(PostgresStore(postgres_url, bounds=bounds)) as store:
        for waits_for_ever in (contextlib.nullcontext, store.scratch):
            with waits_for_ever():
                pass
            with store._connections.connection() as connection:
                assert connection.answer_s_max == 7


def test_read_models_are_made_anew_however_long_a_statement_takes(postgres_url: str) -> None:
    with closing(PostgresStore(postgres_url, bounds=PostgresBounds(answer_s_max=0.3))) as store:
        run_sql(
            postgres_url,
            "CREATE FUNCTION take_long() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN PERFORM pg_sleep(0.6); RETURN NULL; END $$",
        )
        run_sql(
            postgres_url,
            "CREATE TRIGGER slow BEFORE DELETE ON postings EXECUTE FUNCTION take_long()",
        )
        rebuild_read_models(store)


def test_who_waited_for_its_turn_sees_what_was_stored_whatever_the_database_isolates(
    postgres_url: str,
) -> None:
    ((name,),) = run_sql(postgres_url, "SELECT current_database()")
    strict = "default_transaction_isolation = 'repeatable read'"
    run_sql(postgres_url, f"ALTER DATABASE {name} SET {strict}")
    find = "SELECT beats FROM heartbeat"
    with (
        closing(open_log(postgres_url)) as log,
        closing(PostgresStore(postgres_url)) as store,
        store.writing() as session,
    ):
        assert session.rows(find) == []
        log.check_writable()
        assert session.rows(find) == [(1,)]


def test_no_reload_of_its_settings_weakens_the_commits_of_a_session(
    server_of_its_own: DatabaseServer,
) -> None:
    for before, later in (("on", ("off", "local")), ("local", ("off",))):
        _reload_with(server_of_its_own, before)
        with closing(PostgresStore(server_of_its_own.url)) as store, store.asking() as session:
            for value in later:
                _reload_with(server_of_its_own, value)
                assert session.rows(_SHOWN) == [(before,)]


def _reload_with(database: DatabaseServer, synchronous_commit: str) -> None:
    database.run(f"ALTER SYSTEM SET synchronous_commit = {synchronous_commit}")
    with psycopg.connect(database.url) as other:
        assert other.execute("SELECT pg_reload_conf()").fetchone()
        while other.execute(_SHOWN).fetchone() != (synchronous_commit,):
            other.execute("SELECT pg_sleep(0.01)")


def test_a_log_is_refused_whose_rows_would_not_be_found(postgres_url: str) -> None:
    run_sql(postgres_url, "CREATE SCHEMA elsewhere")
    with pytest.raises(LogUnavailable, match="search_path"):
        open_log(f"{postgres_url}&options=-csearch_path%3Delsewhere")


def test_the_schema_of_the_read_models_may_have_any_name(postgres_url: str) -> None:
    run_sql(postgres_url, 'CREATE SCHEMA "A; b"')
    ((name,),) = run_sql(postgres_url, "SELECT current_database()")
    run_sql(postgres_url, f'ALTER DATABASE {name} SET search_path = "A; b", public')
    with closing(PostgresStore(postgres_url)) as store:
        assert wrong_read_models(store) == []


def test_a_check_behind_repairs_on_its_connection_reads_and_writes_tables_of_its_own(
    postgres_url: str,
) -> None:
    fill(postgres_url)
    before = counts(postgres_url)
    bounds = PostgresBounds(connections_kept=1, connections_max=1)
    with closing(PostgresStore(postgres_url, bounds=bounds)) as store:
        for _ in range(5):  # then the driver has prepared all statements
            rebuild_read_models(store)
            assert wrong_read_models(store) == []
    assert counts(postgres_url) == before


def test_where_no_temporary_tables_may_be_made_a_check_of_the_tables_says_so(
    postgres_url: str,
) -> None:
    fill(postgres_url)
    ((name,),) = run_sql(postgres_url, "SELECT current_database()")
    run_sql(postgres_url, f"REVOKE TEMPORARY ON DATABASE {name} FROM PUBLIC")
    reader = f"{postgres_url}&options=-crole%3Dpg_read_all_data"
    with (
        closing(PostgresStore(reader, to_read=True)) as store,
        pytest.raises(NotComparable, match="GRANT TEMPORARY"),
    ):
        wrong_read_models(store)


def test_no_statement_is_compiled_while_it_holds_the_lock_of_all_appends(
    postgres_url: str,
) -> None:
    ((name,),) = run_sql(postgres_url, "SELECT current_database()")
    run_sql(postgres_url, f"ALTER DATABASE {name} SET jit = on")
    with closing(PostgresStore(postgres_url)) as store, store.writing() as session:
        assert session.rows("SHOW jit") == [("off",)]


def test_states_are_found_however_the_database_reads_backslashes(
    log: EventLog, postgres_url: str
) -> None:
    append(log, OWNER, message())
    save(log, (OWNER, Snapshot(1, 1, b"state")))
    ((name,),) = run_sql(postgres_url, "SELECT current_database()")
    run_sql(postgres_url, f"ALTER DATABASE {name} SET standard_conforming_strings = off")
    with closing(open_log(postgres_url)) as other:
        assert other.load_snapshot(OWNER) == Snapshot(1, 1, b"state")


def test_no_more_connections_are_made_than_the_bound(postgres_url: str) -> None:
    bounds = PostgresBounds(connections_kept=1, connections_max=2, connect_s_max=1)
    with closing(PostgresStore(postgres_url, bounds=bounds)) as store:
        with store.reading(), store.reading():
            with pytest.raises(PersistenceError), store.reading():
                pytest.fail("a third connection")
            ((found,),) = run_sql(
                postgres_url,
                "SELECT count(*) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()",
            )
            assert found == 2
        with store.reading() as session:
            assert session.rows("SELECT 1")


def test_connections_that_the_server_closed_are_replaced(log: EventLog, postgres_url: str) -> None:
    append(log, OWNER, message())
    _end_sessions(postgres_url)
    append(log, OWNER, message())
    assert log.position() == 2


def test_connections_that_were_cut_off_silently_cost_time_and_no_append(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_connections, "_FRESH_S", 0.0)  # as after some time without work
    bounds = PostgresBounds(connections_kept=1, connect_s_max=2)
    with linked(postgres_url) as link, closing(open_log(link.url, postgres=bounds)) as log:
        append(log, OWNER, message())
        link.forget()
        append(log, OWNER, message())
        assert log.position() == 2


def test_who_gets_no_connection_learns_the_reason_of_the_server(
    postgres_server: Server, postgres_url: str
) -> None:
    ((name,),) = run_sql(postgres_url, "SELECT current_database()")
    server, bounds = postgres_server.get_uri(), PostgresBounds(connect_s_max=1)
    with closing(open_log(postgres_url, postgres=bounds)) as log:
        # As it refuses them when max_connections is reached.
        run_sql(server, f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        _end_sessions(server, name)
        with pytest.raises(LogUnavailable, match="not currently accepting connections"):
            log.position()


def test_a_session_that_began_while_the_database_took_no_writes_is_replaced(
    log: EventLog, postgres_url: str
) -> None:
    append(log, OWNER, message())
    ((name,),) = run_sql(postgres_url, "SELECT current_database()")
    # As a provider does when the disk is nearly full: it holds for every session from now on.
    run_sql(postgres_url, f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    _end_sessions(postgres_url)
    with pytest.raises(AppendUnknown, match="read-only"):
        append(log, OWNER, message())
    reset = f"ALTER DATABASE {name} RESET default_transaction_read_only"
    run_sql(postgres_url, f"BEGIN READ WRITE; {reset}; COMMIT")
    # Each refusal replaces the session that refused.
    assert any(_is_appended(log) for _ in range(ATTEMPTS))


def _is_appended(log: EventLog) -> bool:
    try:
        append(log, OWNER, message())
    except AppendUnknown:
        return False
    return True


def _end_sessions(url: str, database: str | None = None) -> None:
    name = "current_database()" if database is None else f"'{database}'"
    closed = run_sql(
        url,
        "SELECT pid, pg_terminate_backend(pid) FROM pg_stat_activity"
        f" WHERE datname = {name} AND pid <> pg_backend_pid()",
    )
    assert len(closed) >= 1
    assert all(ended(pid, 10) for pid, _ in closed)


def test_appends_go_on_while_the_server_warns_that_its_numbers_of_transactions_run_out(
    server_of_its_own: DatabaseServer,
) -> None:
    open_log(server_of_its_own.url).close()
    server_of_its_own.stop()
    server_of_its_own.use_up_numbers(left=39_000_000)
    # Autovacuum would free numbers; then the server warns no more.
    server_of_its_own.start(["-cautovacuum_naptime=100000"])
    warnings: list[str | None] = []
    with closing(open_log(server_of_its_own.url)) as log:
        append(log, OWNER, message())
        with psycopg.connect(server_of_its_own.url) as other:
            other.add_notice_handler(lambda said: warnings.append(said.message_primary))
            other.execute("INSERT INTO heartbeat VALUES (1, 1)")
    assert any("must be vacuumed" in str(warning) for warning in warnings)


def test_a_question_that_was_given_up_ends_on_the_server_too(postgres_url: str) -> None:
    bounds = PostgresBounds(connections_kept=1, connections_max=1, answer_s_max=0.2)
    running = (
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
        " AND query LIKE '%pg_sleep%' AND pid <> pg_backend_pid()"
    )
    with closing(PostgresStore(postgres_url, bounds=bounds)) as store:
        with pytest.raises(PersistenceError, match="in time"), store.asking() as session:
            session.rows("SELECT pg_sleep(60)")
        for (pid,) in run_sql(postgres_url, running):
            assert ended(pid, 10)


def test_a_log_may_stand_in_a_database_without_an_encoding(
    server_of_its_own: DatabaseServer,
) -> None:
    server_of_its_own.run("CREATE DATABASE ascii ENCODING SQL_ASCII LOCALE 'C' TEMPLATE template0")
    url = server_of_its_own.url.removesuffix("postgres") + "ascii"
    with closing(open_log(url)) as log:
        append(log, OWNER, message())
        assert [decode(row.topic, row.state) for row in log.read_stream(OWNER)]


def test_a_pooler_that_shares_sessions_between_transactions_is_refused(
    server_of_its_own: DatabaseServer,
) -> None:
    with pooled(server_of_its_own.url) as url, pytest.raises(UnsafeLog, match="pooler"):
        open_log(url)


def test_a_pooler_that_has_no_session_left_is_given_up_in_time(
    server_of_its_own: DatabaseServer,
) -> None:
    bounds = PostgresBounds(answer_s_max=1, lock_s_max=1)
    with (
        pooled(server_of_its_own.url, is_whole=True) as url,
        pytest.raises(LogUnavailable, match="in time"),
    ):
        open_log(url, postgres=bounds)


@pytest.mark.parametrize("named_by", ["host", "hostaddr"])
def test_of_several_servers_the_primary_is_used(
    server_of_its_own: DatabaseServer, named_by: str
) -> None:
    with database_directory() as directory:
        standby = server_of_its_own.standby(directory / "two")
        standby.start()
        places = f"{named_by}=127.0.0.1,127.0.0.1&port={standby.port},{server_of_its_own.port}"
        with closing(open_log(f"postgresql://postgres@/postgres?{places}")) as log:
            append(log, OWNER, message())


def test_of_several_servers_a_statement_that_is_ended_costs_no_connection(
    server_of_its_own: DatabaseServer,
) -> None:
    """Only what another server could do better has the process connect again."""
    places = f"host=127.0.0.1,127.0.0.1&port={server_of_its_own.port},{server_of_its_own.port}"
    url, find = f"postgresql://postgres@/postgres?{places}", "SELECT pg_backend_pid()"
    bounds = PostgresBounds(connections_kept=1, connections_max=1)
    with closing(PostgresStore(url, bounds=bounds)) as store:
        with store.reading() as session:
            before = session.rows(find)
        with pytest.raises(ReadTooLong), store.reading(0.01) as session:
            session.rows("SELECT pg_sleep(60)")
        with store.reading() as session:
            assert session.rows(find) == before


def test_an_administrator_finds_the_sessions_of_each_process(postgres_url: str) -> None:
    with closing(PostgresStore(postgres_url)) as store, store.reading() as session:
        ((name,),) = session.rows("SHOW application_name")
    assert name == f"poste {os.getpid()}"


@pytest.mark.parametrize("parameter", ["application_name", "fallback_application_name"])
def test_all_parameters_of_the_url_reach_the_server(postgres_url: str, parameter: str) -> None:
    url = f"{postgres_url}&{parameter}=from-the-url"
    with closing(PostgresStore(url)) as store, store.reading() as session:
        ((name,),) = session.rows("SHOW application_name")
    assert name == "from-the-url"


def test_waits_within_the_server_are_bounded_by_ours_and_not_by_its_own(
    server_of_its_own: DatabaseServer,
) -> None:
    known = {name for (name,) in server_of_its_own.run("SELECT name FROM pg_settings")}
    ends = {"statement_timeout", "transaction_timeout", "idle_session_timeout"} & known
    for name in ends:
        server_of_its_own.run(f"ALTER ROLE postgres SET {name} = '7s'")
    url, bounds = server_of_its_own.url, PostgresBounds(lock_s_max=3, idle_s_max=7)
    with closing(PostgresStore(url, bounds=bounds)) as store, store.writing() as session:
        for name in ends:
            assert session.rows(f"SHOW {name}") == [("0",)], name
        ((lock,),) = session.rows("SHOW lock_timeout")
        ((idle,),) = session.rows("SHOW idle_in_transaction_session_timeout")
    assert (lock, idle) == ("3s", "7s")


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("postgresql://user:secret@127.0.0.1:1/none", "refused"),
        ("postgresql://user:secret@127.0.0.1:1,127.0.0.1:2/none", "port 2 failed"),
        ("postgresql://[", "not a URL"),
        ("postgresql://?port=x", "invalid integer"),
    ],
)
def test_a_server_that_cannot_be_reached_is_unavailable_at_once_and_says_why(
    url: str, why: str
) -> None:
    with pytest.raises(LogUnavailable, match=why) as unavailable:
        open_log(url)
    assert "secret" not in str(unavailable.value)
    assert "\n" not in str(unavailable.value)


def test_a_start_gives_up_a_machine_that_is_gone_after_its_own_time_and_not_that_of_tcp() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, contextlib.ExitStack() as held:
        for _ in range(3):  # the first ones are taken; what comes next gets no answer
            waiting = held.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        url = f"postgresql://127.0.0.1:{full.getsockname()[1]}/postgres"
        began_s = time.monotonic()
        assert not is_refused(url, PostgresBounds(connect_s_max=1))
        assert time.monotonic() - began_s < 60, "TCP tries for two minutes"


def test_no_release_that_may_be_installed_waits_for_an_answer_without_a_bound() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    needed = {found.name: found for found in map(Requirement, declared["dependencies"])}
    # Before 3.3.6 its Connection.wait takes no time-out.
    assert not any(needed["psycopg"].specifier.contains(f"3.3.{number}") for number in range(6))
