"""A step of an export, and what is kept in memory to read steps, stay within their bounds."""

from __future__ import annotations

from contextlib import closing

import pytest

from eventstore.log.event_log import EventLog
from eventstore.log.streams import identity_stream
from eventstore.parquet.files import ExportPlace
from eventstore.parquet.write.step import Bounds, IdentityNames
from tests.export.samples import Growing, did, exporter
from tests.log.samples import OWNER, message

KEPT = 3


def test_the_bytes_of_contents_fill_a_step_as_those_of_rows_do(
    sqlite_log: EventLog, place: ExportPlace
) -> None:
    Growing(sqlite_log).commit({"shard-0": [(OWNER, message(bytes(9_000)))]})
    with closing(exporter(sqlite_log, place, Bounds(bytes_max=9_000))) as export:
        step = export.step()
    assert step is not None
    assert step.is_full


def test_no_more_names_than_the_bound_are_kept_however_many_identities_a_log_has(
    sqlite_log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eventstore.parquet.write.step.IDENTITIES_KEPT", KEPT)
    Growing(sqlite_log).grow(3 * KEPT)
    names = IdentityNames(sqlite_log)
    for number in range(1, 3 * KEPT + 1):
        stream = identity_stream(did(number)).bytes
        found = names([stream])
        assert found[stream] == did(number)
        assert len(found) <= KEPT
