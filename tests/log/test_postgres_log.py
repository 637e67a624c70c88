"""What the PostgreSQL log promises beyond the contract: one transaction, no retry, durability."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import msgspec
import psycopg
import pytest
from eventsourcing.persistence import NotSupportedError, PersistenceError

from actors.core.commands import Page, QueryContracts, QueueMessage, SaveContract
from actors.core.refusals import Refusal
from actors.core.replies import ContractsPage, Done, Refused
from eventstore.log.codec import encode
from eventstore.log.errors import AppendConflict, AppendUnknown, LogUnavailable, UnsafeLog
from eventstore.log.event_log import EventLog, QueueDepth, WaitingQueue
from eventstore.log.events import MessagesRemoved
from eventstore.log.faults import Finding
from eventstore.log.seal import GENESIS, seal
from eventstore.log.verify import verify
from eventstore.read_models import queue_depths
from eventstore.read_models.postings import Posting, add, is_empty, on_lists
from eventstore.stores.open_log import open_log
from eventstore.stores.postgres_append import append as append_rows
from eventstore.stores.postgres_bounds import PostgresBounds
from eventstore.stores.postgres_log import PostgresStore
from eventstore.stores.postgres_queue_totals import TOGETHER
from eventstore.stores.recorder_log import wrong_read_models
from tests.database_server import DatabaseServer, database_directory
from tests.log.questions import noted_questions
from tests.log.raw_sql import run_sql
from tests.log.samples import AT_MS, COMMAND, OTHER, OWNER, OWNER_DID, append, message
from tests.unit.actors.given import contract, host, registration, run, submission, unclaimed

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


def test_whether_a_long_list_is_empty_is_asked_of_its_index(postgres_url: str) -> None:
    others = [posting for n in range(20_000) for posting in on_lists([b"%020d" % n], Posting(0, n))]
    long = [posting for n in range(5_000) for posting in on_lists([b"z" * 20], Posting(0, n))]
    with closing(PostgresStore(postgres_url)) as store, store.writing() as session:
        add(session, others)
        add(session, long)
        session.run_many("ANALYZE postings", [()])
        counted = "SELECT pg_stat_get_xact_tuples_returned('postings'::regclass)"
        ((before,),) = session.rows(counted)
        assert not is_empty(session, b"z" * 20)
        ((after,),) = session.rows(counted)
    assert after - before <= 1


def test_a_message_behind_others_touches_no_index_of_queues(postgres_url: str) -> None:
    first = QueueDepth(OWNER, 1, 1200, 5, OWNER_DID, outbound=True, idle_since_ms=7)
    counted = "SELECT pg_stat_get_xact_tuples_{}updated('queue_depths'::regclass)"
    with closing(PostgresStore(postgres_url)) as store, store.writing() as session:
        for more in range(20):
            depth = msgspec.structs.replace(first, messages=1 + more, bytes=1200 + 1200 * more)
            queue_depths.save(session, [depth])
        assert [session.rows(counted.format(kind)) for kind in ("", "hot_")] == [[(19,)], [(19,)]]


def test_sums_over_queues_change_no_row_that_others_see_and_stay_few_rows(
    log: EventLog, postgres_url: str
) -> None:
    # Versions of one row would all be passed over as long as an old transaction runs.
    updated = "SELECT pg_stat_get_xact_tuples_updated('queue_totals'::regclass)"
    with closing(PostgresStore(postgres_url)) as store:
        with store.writing() as session:
            for number in range(2 * TOGETHER):
                depth = QueueDepth(OWNER, number, 7 * number, 5, OWNER_DID)
                queue_depths.save(session, [depth])
            assert session.rows(updated) == [(0,)]
        ((rows,),) = run_sql(postgres_url, "SELECT count(*) FROM queue_totals")
        assert rows <= TOGETHER
        figures = log.figures()
        assert (figures.identities, figures.queue_messages) == (1, number)
        assert figures.queue_bytes == 7 * number
        assert wrong_read_models(store)[0].table != "queue_totals"


def test_a_log_of_the_release_before_goes_on_with_its_sums(
    log: EventLog, postgres_url: str
) -> None:
    log.append([encode(OWNER, 1, message())], [message()], [QueueDepth(OWNER, 2, 9, 5, OWNER_DID)])
    for before in (
        "DROP TABLE queue_totals",
        "CREATE TABLE queue_totals (id bigint, queues bigint, messages bigint, bytes bigint)",
        "INSERT INTO queue_totals VALUES (0, 1, 2, 9)",
    ):
        run_sql(postgres_url, before)
    # What a dump reads is left as it is: neither the start nor an append waits for its end.
    with psycopg.connect(postgres_url) as dump:
        dump.execute("LOCK TABLE queue_totals IN ACCESS SHARE MODE")
        open_log(postgres_url).close()
        is_old = "SELECT count(*) FROM pg_attribute WHERE attrelid = 'queue_totals'::regclass"
        is_old += " AND attname = 'id'"
        assert run_sql(postgres_url, is_old) == [(1,)]
    with closing(open_log(postgres_url)) as later:
        assert run_sql(postgres_url, is_old) == [(0,)]
        depth = QueueDepth(OWNER, 3, 10, 5, OWNER_DID)
        later.append([encode(OWNER, 2, message())], [message()], [depth])
        figures = later.figures()
    assert (figures.identities, figures.queue_messages, figures.queue_bytes) == (1, 3, 10)


def test_a_log_of_the_release_before_gets_the_index_and_the_room(
    log: EventLog, postgres_url: str
) -> None:
    for undone in (
        "DROP INDEX outbound_by_oldest",
        "ALTER TABLE queue_depths RESET (fillfactor)",
        "CREATE INDEX outbound_queues ON queue_depths (oldest_at_ms) WHERE messages > 0",
    ):
        run_sql(postgres_url, undone)
    with closing(open_log(postgres_url)):
        names = "SELECT indexname FROM pg_indexes WHERE indexname LIKE 'outbound%'"
        assert run_sql(postgres_url, names) == [("outbound_by_oldest",)]
        room = "SELECT reloptions FROM pg_class WHERE oid = 'queue_depths'::regclass"
        assert run_sql(postgres_url, room) == [(["fillfactor=70"],)]


@pytest.fixture
def questions(log: EventLog, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    append(log, OWNER, message(bytes(1200)))  # connects
    return noted_questions(monkeypatch)


def test_an_append_is_one_question_and_one_answer(log: EventLog, questions: list[object]) -> None:
    depths = [QueueDepth(OWNER, 1, 1200, 5, OWNER_DID)]
    queued = message(bytes(1200))
    removed = MessagesRemoved(
        at_ms=AT_MS, command=COMMAND, message_ids=["message"], reason="purged", versions=[1]
    )
    rows = [encode(OWNER, 2, queued), encode(OWNER, 3, removed)]
    log.append(rows, [queued, removed], depths)
    assert len(questions) == 1
    assert [len(log.read_contents(after=n - 1, until=n)) for n in (1, 2, 3)] == [0, 1, 0]
    assert log.waiting_queues(limit=9) == [WaitingQueue(OWNER_DID, 1, 1200, 5, outbound=False)]


def test_what_a_command_reads_is_one_question_and_one_answer(
    log: EventLog, questions: list[object]
) -> None:
    for read in (
        lambda: log.load_snapshots([OWNER, OTHER]),
        lambda: log.read_streams({OWNER: 0, OTHER: 0}, limit=9),
        lambda: log.read_stream(OWNER),
        lambda: log.read_records({OWNER: [1], OTHER: [1, 2]}),
        lambda: log.known_saved_events(OWNER, ["a", "b"]),
    ):
        questions.clear()
        read()
        assert len(questions) == 1


def test_no_append_reads_a_whole_table_also_if_it_was_planned_when_that_was_empty(
    log: EventLog, postgres_url: str
) -> None:
    removed = MessagesRemoved(
        at_ms=AT_MS, command=COMMAND, message_ids=["m"], reason="purged", versions=[*range(99)]
    )
    nothing: dict[str, Any] = {"epoch": 1, "at_ms": AT_MS, "window_ms": 1, "nonces": b""}
    digest = GENESIS
    scans = "SELECT pg_stat_get_xact_numscans('stored_events'::regclass)"
    with psycopg.connect(postgres_url) as connection:
        for seals in range(1, 20):
            sealed = seal([], [], partition="shard-0", previous=digest, **nothing)
            digest = sealed.digest
            rows = [
                encode(OWNER, 2 * seals, message()),
                encode(OWNER, 2 * seals + 1, removed),
                encode(OTHER, seals, sealed),
            ]
            append_rows(connection.cursor(), rows, [message(), removed, sealed], [])
        assert connection.execute(scans).fetchone() == (0,)


def test_who_stands_still_in_an_append_keeps_others_waiting_for_three_seconds_at_most(
    log: EventLog, postgres_url: str
) -> None:
    append(log, OTHER, message())
    with psycopg.connect(postgres_url) as paused:
        # Until its transaction ends it has the lock.
        append_rows(paused.cursor(), [encode(OWNER, 1, message())], [message()], [])
        began_s = time.monotonic()
        append(log, OWNER, message())
        assert time.monotonic() - began_s < 3
        with pytest.raises(psycopg.Error, match="idle-in-transaction"):
            paused.commit()
        paused.close()
    assert len(log.read_stream(OWNER)) == 1


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


@pytest.mark.parametrize("setting", ["fsync", "full_page_writes"])
def test_a_server_that_loses_commits_in_a_power_cut_is_refused_also_later(
    server_of_its_own: DatabaseServer, setting: str
) -> None:
    url = server_of_its_own.url
    bounds = PostgresBounds(connect_s_max=1)
    with closing(open_log(url, postgres=bounds)) as log:
        append(log, OWNER, message())
        server_of_its_own.run(f"ALTER SYSTEM SET {setting} = off")
        server_of_its_own.stop()
        server_of_its_own.start()
        with pytest.raises(UnsafeLog, match=f"{setting}=off"):
            open_log(url)
        # As after a fail-over to a server that is set up in another way.
        with pytest.raises(AppendUnknown):
            log.append([encode(OWNER, 2, message())], [message()])
        with closing(open_log(url, allow_unsafe=True)) as careless:
            assert len(careless.read_stream(OWNER)) == 1


def test_a_commit_that_did_not_wait_for_its_standby_is_unknown(
    server_of_its_own: DatabaseServer,
) -> None:
    database = server_of_its_own
    # A role that wants to hear of nothing hears of this.
    database.run("ALTER ROLE postgres SET client_min_messages = error")
    with closing(open_log(database.url)) as log, ThreadPoolExecutor(1) as thread:
        append(log, OWNER, message())
        # The standby never comes: the commit waits, until it is cancelled.
        database.run("ALTER SYSTEM SET synchronous_standby_names = 'none'")
        database.run("SELECT pg_reload_conf()")
        cancel = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
        deadline = time.monotonic() + 20
        versions = itertools.count(2)
        appended = thread.submit(_append_at, log, next(versions))
        while not database.run(cancel):
            assert time.monotonic() < deadline
            if appended.done():
                # The server had not read its settings again; it does so when it comes to it.
                appended.result()
                appended = thread.submit(_append_at, log, next(versions))
        with pytest.raises(AppendUnknown):
            appended.result()
        database.run("ALTER SYSTEM RESET synchronous_standby_names")
        database.run("SELECT pg_reload_conf()")
        assert len(log.read_stream(OWNER)) == next(versions) - 1


def _append_at(log: EventLog, version: int) -> None:
    log.append([encode(OWNER, version, message())], [message()])


def test_an_old_primary_that_waits_for_its_lost_standby_is_left_for_the_new_one(
    server_of_its_own: DatabaseServer,
) -> None:
    old = server_of_its_own
    bounds = PostgresBounds(connections_kept=3, connect_s_max=2, lock_s_max=1, answer_s_max=3)
    with database_directory() as directory:
        new = old.standby(directory / "two")
        new.start()
        old.require_standby()
        with closing(open_log(new.url_with(old), postgres=bounds)) as log:
            _append_at(log, 1)
            new.promote()
            # Stored by the old one, and never confirmed; its locks stay for as long as it waits.
            with pytest.raises(AppendUnknown):
                _append_at(log, 2)
            _append_at(log, 2)
            assert len(log.read_stream(OWNER)) == 2
        with closing(open_log(new.url)) as found:
            assert len(found.read_stream(OWNER)) == 2


def test_a_fail_over_that_may_lose_commits_is_warned_of(
    server_of_its_own: DatabaseServer, caplog: pytest.LogCaptureFixture
) -> None:
    open_log(server_of_its_own.url_with(server_of_its_own)).close()
    assert "synchronous_standby_names is empty" in caplog.text


def test_a_server_that_stands_still_is_given_up_in_time(server_of_its_own: DatabaseServer) -> None:
    bounds = PostgresBounds(connect_s_max=1, lock_s_max=1, answer_s_max=1)
    with closing(open_log(server_of_its_own.url, postgres=bounds)) as log:
        append(log, OWNER, message())
        server_of_its_own.pause()
        started = time.monotonic()
        with pytest.raises(AppendUnknown):
            log.append([encode(OWNER, 2, message())], [message()])
        with pytest.raises(LogUnavailable):
            log.position()
        assert time.monotonic() - started < 8
        server_of_its_own.resume()
        # What had arrived is stored all the same, sooner or later than what comes next.
        stored: list[int] = []
        while len(stored) < 3:
            with contextlib.suppress(AppendConflict):
                append(log, OWNER, message())
            stored = [row.originator_version for row in log.read_stream(OWNER)]
        assert stored == [*range(1, len(stored) + 1)]


def test_after_a_fail_over_that_lost_commits_an_owner_says_so_and_goes_on_with_what_the_log_has(
    log: EventLog, postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    me, friend = "did:x:me", "did:x:friend"
    owner, contracts = host(log), QueryContracts(Page(0, 9))
    # One that stores nothing, and one that does.
    for command in (
        unclaimed(me, contracts),
        submission(me, QueueMessage(friend, b"hi"), sender=friend),
    ):
        run(owner, submission(me, registration(me)))
        kept = log.position()
        (done,) = run(owner, submission(me, SaveContract(contract(friend, me))))
        assert done == Done()
        run_sql(postgres_url, f"DELETE FROM stored_events WHERE notification_id > {kept}")
        caplog.clear()
        (refused,) = run(owner, command)
        assert refused == Refused(Refusal.TEMPORARILY_UNAVAILABLE)
        (said,) = [record for record in caplog.records if "has lost" in record.getMessage()]
        assert said.__dict__["seals_lost"] == 1
        (page,) = run(owner, submission(me, contracts))
        assert page == ContractsPage([], 0)
    caplog.clear()
    run(host(log), submission(me, contracts))  # as another owner, which has claimed the partition
    (refused,) = run(owner, submission(me, SaveContract(contract(friend, me))))
    assert refused == Refused(Refusal.NOT_OWNER)
    assert "has lost" not in caplog.text
    assert not [found for found in verify(log) if isinstance(found, Finding)]


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


def test_a_reading_transaction_cannot_write(postgres_url: str) -> None:
    with (
        closing(PostgresStore(postgres_url)) as store,
        pytest.raises(PersistenceError, match="read-only"),
        store.reading() as session,
    ):
        session.run_many("INSERT INTO heartbeat VALUES (?, ?)", [(1, 1)])


def test_an_append_waits_for_the_one_before_it_also_of_an_earlier_release(
    postgres_url: str,
) -> None:
    # Else positions would not follow the order of the commits, and a reader could miss rows.
    bounds = PostgresBounds(lock_s_max=0.2)
    with closing(open_log(postgres_url, postgres=bounds)) as log:
        for version, earlier in enumerate((_append_in, _append_as_before), start=1):
            with psycopg.connect(postgres_url) as first:
                earlier(first, version)
                with pytest.raises(AppendUnknown, match="lock timeout"):
                    append(log, OWNER, message())
            append(log, OWNER, message())
            assert [row.originator_id for row in log.read_log()] == [OTHER, OWNER] * version


def test_one_of_an_earlier_release_waits_for_an_append(log: EventLog, postgres_url: str) -> None:
    append(log, OTHER, message())
    with psycopg.connect(postgres_url) as first, psycopg.connect(postgres_url) as second:
        _append_in(first, 2)
        second.execute("SET lock_timeout = '200ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            _append_as_before(second, 3)


def _append_in(transaction: psycopg.Connection[Any], version: int) -> None:
    append_rows(transaction.cursor(), [encode(OTHER, version, message())], [message()], [])
    # Or else the server ends the session on a machine on which what follows takes two seconds.
    transaction.execute("SET LOCAL idle_in_transaction_session_timeout = 0")


def _append_as_before(transaction: psycopg.Connection[Any], version: int) -> None:
    transaction.execute("LOCK TABLE public.stored_events IN EXCLUSIVE MODE")
    row = encode(OTHER, version, message())
    values = (OTHER, version, row.topic, row.state)
    transaction.execute("INSERT INTO stored_events VALUES (%s, %s, %s, %s)", values)


def test_no_append_waits_for_vacuum_and_vacuum_for_none(log: EventLog, postgres_url: str) -> None:
    append(log, OWNER, message())
    with psycopg.connect(postgres_url) as vacuuming:
        vacuuming.execute("LOCK TABLE stored_events IN SHARE UPDATE EXCLUSIVE MODE")  # as it does
        append(log, OWNER, message())
    with psycopg.connect(postgres_url) as appending:
        _append_in(appending, 1)
        with psycopg.connect(postgres_url, autocommit=True) as vacuum:
            vacuum.execute("SET lock_timeout = '200ms'")
            vacuum.execute("VACUUM stored_events")


def test_a_log_opens_beside_vacuum_and_an_append(log: EventLog, postgres_url: str) -> None:
    append(log, OWNER, message())
    for mode in ("SHARE UPDATE EXCLUSIVE", "ROW EXCLUSIVE"):
        with psycopg.connect(postgres_url) as other:
            for table in ("stored_events", "contents", "queue_depths", "queue_totals", "postings"):
                other.execute(f"LOCK TABLE {table} IN {mode} MODE".encode())
            open_log(postgres_url, postgres=PostgresBounds(lock_s_max=0.2)).close()


def test_a_log_of_an_earlier_release_is_vacuumed_early_from_now_on(postgres_url: str) -> None:
    open_log(postgres_url).close()
    before = "autovacuum_vacuum_threshold = 100000000, autovacuum_vacuum_scale_factor = 0.5"
    run_sql(postgres_url, "ALTER TABLE stored_events RESET (vacuum_truncate)")
    run_sql(postgres_url, f"ALTER TABLE stored_events SET ({before})")
    open_log(postgres_url).close()
    with psycopg.connect(postgres_url) as connection:
        found = connection.execute(
            "SELECT reloptions FROM pg_class WHERE oid = 'public.stored_events'::regclass"
        ).fetchone()
    assert found is not None
    assert {"autovacuum_vacuum_threshold=20000", "vacuum_truncate=false"} <= set(found[0])


def test_the_recorder_does_not_pretend_to_notify(postgres_url: str) -> None:
    with closing(PostgresStore(postgres_url)) as store, pytest.raises(NotSupportedError):
        store.recorder.subscribe()


def test_a_row_at_a_position_is_in_one_append_even_after_a_failed_one(log: EventLog) -> None:
    append(log, OWNER, message())
    with pytest.raises(AppendConflict):
        log.append([encode(OWNER, 1, message())], [message()])
    append(log, OWNER, message(), message())
    positions = [row.id for row in log.read_log()]
    assert positions == sorted(positions)
    assert positions[2] == positions[1] + 1
