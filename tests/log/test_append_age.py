"""Appends under way in PostgreSQL: since when there are any, and what an export says meanwhile."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import psycopg
import pytest

from actors.host.clock import system_clock
from eventstore.log.errors import AppendUnknown
from eventstore.parquet.files import open_place
from eventstore.parquet.write.exporter import ExportTimes
from eventstore.stores.open_log import open_log
from eventstore.stores.postgres_append import TURN, append
from tests.database_server import DatabaseServer, database_directory
from tests.export.samples import Growing, exporter, registered
from tests.log.faulty_log import FailNext, FaultyLog

pytestmark = pytest.mark.postgres
AT_ONCE = ExportTimes(settled_s=0, complete_every_s=0)
WAITING = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
SECONDS_MAX = 20


@pytest.fixture
def standby(server_of_its_own: DatabaseServer) -> Iterator[DatabaseServer]:
    """A standby that every commit waits for."""
    with database_directory() as directory:
        standby = server_of_its_own.standby(directory / "two")
        standby.start()
        server_of_its_own.require_standby()
        yield standby


def _append(connection: psycopg.Connection, log: FaultyLog, growing: Growing) -> int:
    """Append a row, but do not commit it; return when it was recorded, after the append began."""
    connection.execute("SELECT")
    at_ms = system_clock() + 1
    log.plan(FailNext())
    with pytest.raises(AppendUnknown):
        growing.commit({"shard-0": [registered(9, at_ms)]})
    rows, _ = log.appends[-1]
    append(connection.cursor(), rows, [], [])
    return at_ms


def test_no_export_is_complete_until_a_time_after_an_append_that_still_waits_for_its_standby(
    server_of_its_own: DatabaseServer, standby: DatabaseServer, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        log = FaultyLog(stack.enter_context(closing(open_log(server_of_its_own.url))))
        growing = Growing(log)
        growing.grow()
        place = open_place(str(tmp_path / "export"))
        export = stack.enter_context(closing(exporter(log, place, times=AT_ONCE)))
        assert export.step()
        connection = stack.enter_context(closing(psycopg.connect(server_of_its_own.url)))
        thread = stack.enter_context(ThreadPoolExecutor(1))
        standby.pause()
        stack.callback(standby.resume)
        at_ms = _append(connection, log, growing)  # whose session ends if it rests for two seconds
        committed = thread.submit(connection.commit)
        deadline = time.monotonic() + SECONDS_MAX
        while not server_of_its_own.run(WAITING):
            assert time.monotonic() < deadline
        assert export.step() is None
        said_ms = export.catalog.complete_until_ms
        assert said_ms is not None
        assert said_ms < at_ms
        standby.resume()
        committed.result()
        assert export.step()
        later_ms = export.catalog.complete_until_ms
        assert later_ms is not None
        assert later_ms >= at_ms
        assert export.catalog.last == log.position()


def test_the_age_of_an_append_is_that_of_this_database_and_infinite_if_it_is_hidden(
    server_of_its_own: DatabaseServer,
) -> None:
    server, url = server_of_its_own, server_of_its_own.url
    server.run("CREATE DATABASE beside")
    server.run("CREATE ROLE reader LOGIN")
    with ExitStack() as stack:
        own, beside = (
            stack.enter_context(closing(open_log(each)))
            for each in (url, f"{url.removesuffix('/postgres')}/beside")
        )
        server.run("GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader")
        by_reader = url.replace("//postgres@", "//reader@")
        reader = stack.enter_context(closing(open_log(by_reader, to_read=True)))
        logs = (own, beside, reader)
        appending = stack.enter_context(closing(psycopg.connect(url)))
        assert [log.append_age_s() for log in logs] == [0, 0, 0]
        appending.execute("SELECT pg_advisory_xact_lock(%s)", (TURN,))
        assert 0 < own.append_age_s() < math.inf
        assert [beside.append_age_s(), reader.append_age_s()] == [0, math.inf]
        server.run("GRANT pg_read_all_stats TO reader")
        assert 0 < reader.append_age_s() < math.inf
        appending.execute("SET track_activities = off")
        assert own.append_age_s() == math.inf
        appending.rollback()
        assert [log.append_age_s() for log in logs] == [0, 0, 0]
