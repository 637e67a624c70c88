"""Reading a log at a standby of PostgreSQL, which follows its primary some time later."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from eventstore.log.errors import LogUnavailable, ReadCancelled
from eventstore.log.session import Store, unavailable
from eventstore.stores.open_log import open_log, open_store
from http_edge.cli.main import explained
from http_edge.crypto.mediator_keys import load_or_create
from http_edge.server.archive_round import archive_once
from http_edge.server.exits import Exit
from http_edge.server.mediator_log import opened_to_export, opened_to_read
from http_edge.settings.settings import Settings
from tests.database_server import DatabaseServer, database_directory

pytestmark = pytest.mark.postgres


@pytest.fixture
def standby(server_of_its_own: DatabaseServer) -> Iterator[DatabaseServer]:
    """Of a server with a log; it waits for no reader."""
    open_log(server_of_its_own.url).close()
    with database_directory() as directory:
        standby = server_of_its_own.standby(directory / "two")
        standby.start(["-cmax_standby_streaming_delay=0"])
        yield standby


@pytest.mark.parametrize("how", ["", "?target_session_attrs=any"])
def test_what_is_exported_is_read_at_no_standby(
    standby: DatabaseServer, tmp_path: Path, how: str
) -> None:
    settings = Settings(data_dir=tmp_path, log=standby.url + how)
    opened_to_read(settings).close()
    with pytest.raises(LogUnavailable, match="is in hot standby mode"):
        opened_to_export(settings)
    standby.promote()
    opened_to_export(settings).close()


def test_no_row_leaves_by_what_a_standby_says(standby: DatabaseServer, tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, log=standby.url)
    load_or_create(settings.keys_path)
    with pytest.raises(LogUnavailable, match="is in hot standby mode"):
        archive_once(settings, is_checked=False)


def _read_while_emptied(store: Store, primary: DatabaseServer) -> None:
    with unavailable(), store.reading() as session:
        session.rows("SELECT count(*) FROM contents")
        primary.run("TRUNCATE contents")
        session.rows("SELECT pg_sleep(60)")


def test_a_reading_that_a_standby_ends_is_answered_with_what_helps(
    server_of_its_own: DatabaseServer, standby: DatabaseServer
) -> None:
    with (
        closing(open_store(standby.url, to_read=True)) as store,
        pytest.raises(ReadCancelled) as ended,
    ):
        _read_while_emptied(store, server_of_its_own)
    stop = explained(ended.value)
    assert stop is not None
    assert (stop.exit_code, "conflict with recovery" in stop.message) == (Exit.UNREACHABLE, True)
    assert "max_standby_streaming_delay" in stop.remedy
    assert "--log" not in stop.remedy
