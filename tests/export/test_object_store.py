"""The export in an S3 store: a real server of this machine."""

from __future__ import annotations

from contextlib import closing

import pytest
from moto.server import ThreadedMotoServer

from eventstore.log.event_log import EventLog
from eventstore.parquet.errors import ExportUnavailable
from eventstore.parquet.files import open_place
from tests.export.samples import (
    Growing,
    catalog_of,
    export_all,
    exported_log,
    exporter,
    whole_log,
)


def test_an_export_to_s3_follows_compacts_and_reads_back(sqlite_log: EventLog, s3_uri: str) -> None:
    place = open_place(s3_uri)
    growing = Growing(sqlite_log)
    for _ in range(3):
        growing.grow(6)
        export_all(sqlite_log, place)
    assert exported_log(place) == list(whole_log(sqlite_log))
    with closing(exporter(sqlite_log, place)) as export:
        assert export.compact(files_min=2) >= 0
        export.sweep()
    assert exported_log(place) == list(whole_log(sqlite_log))
    assert catalog_of(place).strays == []


def test_a_store_that_is_gone_is_said_and_the_export_goes_on_later(
    sqlite_log: EventLog, s3_server: ThreadedMotoServer, s3_uri: str
) -> None:
    growing = Growing(sqlite_log)
    place = open_place(s3_uri)
    with closing(exporter(sqlite_log, place)) as export:
        growing.grow()
        assert export.step()
        growing.grow()
        # The objects of this server live in the process, so they outlive it.
        s3_server.stop()
        with pytest.raises(ExportUnavailable, match="events/date="):
            export.step()
        again = ThreadedMotoServer(
            ip_address="127.0.0.1", port=s3_server.get_host_and_port()[1], verbose=False
        )
        again.start()
        try:
            assert export.step()
            assert exported_log(place) == list(whole_log(sqlite_log))
        finally:
            again.stop()


def test_an_address_with_a_password_is_not_repeated_in_errors() -> None:
    with pytest.raises(ExportUnavailable) as said:
        open_place("s4://key:secret@exports/mediator")
    assert "secret" not in str(said.value)
