"""A log in PostgreSQL that was served before: by an earlier build, or with other options."""

from __future__ import annotations

from contextlib import closing

import pytest

from eventstore.log.errors import LogUnavailable, ReadModelsMissing
from eventstore.stores.open_log import open_log
from eventstore.stores.postgres_log import PostgresStore
from eventstore.stores.recorder_log import wrong_read_models
from tests.log.raw_sql import run_sql
from tests.log.samples import OWNER, append, message
from tests.log.test_read_models import fill
from tests.unit.cli.conftest import Run, run

__all__ = ["run"]


def test_a_log_of_an_early_build_is_read_once_it_was_served(postgres_url: str) -> None:
    with closing(open_log(postgres_url)) as log:
        append(log, OWNER, message(b"one"))
    run_sql(postgres_url, "DROP TABLE contents, archived_states")
    for _ in range(2):  # the first time makes nothing
        with pytest.raises(LogUnavailable, match=r"contents, archived_states; the first start of"):
            open_log(postgres_url, to_read=True)
    open_log(postgres_url).close()
    with closing(open_log(postgres_url, to_read=True)) as log:
        assert len(log.read_rows(after=0, rows_max=9, bytes_max=9_999)) == 1


def test_a_log_of_the_first_builds_is_rebuilt_before_it_was_served(
    postgres_url: str, run: Run
) -> None:
    with closing(open_log(postgres_url)) as log:
        append(log, OWNER, message(b"one"))
    run_sql(postgres_url, "DROP TABLE contents, archived_states, dedicated")
    with pytest.raises(ReadModelsMissing, match="dedicated"):
        open_log(postgres_url)
    ran = run("log", "rebuild-read-models", "--log", postgres_url)
    assert ran.code == 0, ran.err
    open_log(postgres_url).close()


def test_a_log_of_an_earlier_build_is_checked_before_it_was_served(postgres_url: str) -> None:
    fill(postgres_url)
    run_sql(postgres_url, "ALTER TABLE queue_depths DROP COLUMN idle_since_ms")
    with closing(PostgresStore(postgres_url, makes_missing=True, to_read=True)) as store:
        assert wrong_read_models(store) == []
    lacks = "SELECT count(*) FROM pg_attribute WHERE attname = 'idle_since_ms'"
    assert run_sql(postgres_url, lacks) == [(0,)]


def test_a_log_of_an_earlier_build_is_served_by_a_role_that_does_not_own_its_tables(
    postgres_url: str,
) -> None:
    open_log(postgres_url).close()
    run_sql(postgres_url, "ALTER TABLE queue_totals REPLICA IDENTITY DEFAULT")
    for these in ("SCHEMA", "ALL TABLES IN SCHEMA", "ALL SEQUENCES IN SCHEMA"):
        run_sql(postgres_url, f"GRANT ALL ON {these} public TO pg_write_all_data")
    url = f"{postgres_url}&options=-crole%3Dpg_write_all_data"
    with closing(open_log(url)) as log:
        append(log, OWNER, message(b"one"))
        assert log.figures().queue_messages == 0


def test_a_log_is_served_by_a_role_that_may_make_nothing_once_all_of_it_is_there(
    postgres_url: str,
) -> None:
    open_log(postgres_url).close()
    run_sql(postgres_url, "REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    for these in ("ALL TABLES IN SCHEMA", "ALL SEQUENCES IN SCHEMA"):
        run_sql(postgres_url, f"GRANT ALL ON {these} public TO pg_write_all_data")
    url = f"{postgres_url}&options=-crole%3Dpg_write_all_data"
    with closing(open_log(url)) as log:
        append(log, OWNER, message(b"one"))
        log.mark("mark", "set")
        assert log.position() == 1
    run_sql(postgres_url, "DROP TABLE heartbeat")
    with pytest.raises(LogUnavailable, match="permission denied for schema public"):
        open_log(url)


def test_options_that_an_administrator_has_set_since_stay_at_the_next_start(
    postgres_url: str,
) -> None:
    open_log(postgres_url).close()
    theirs = {"autovacuum_vacuum_scale_factor=0.01", "vacuum_truncate=true"}
    run_sql(postgres_url, f"ALTER TABLE stored_events SET ({', '.join(theirs)})")
    open_log(postgres_url).close()
    ((options,),) = run_sql(
        postgres_url, "SELECT reloptions FROM pg_class WHERE oid = 'stored_events'::regclass"
    )
    assert theirs <= {*options}
