"""What an export lacks at its end although the log beside it has it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from eventstore.log import event_log
from eventstore.log.codec import decode_seal
from eventstore.log.event_log import EventLog
from eventstore.parquet.errors import Damage
from eventstore.parquet.files import HEAD, ExportPlace
from eventstore.parquet.verify import against_log
from eventstore.parquet.verify.export import verify_export
from eventstore.parquet.verify.findings import ExportSummary
from tests.export.samples import SIGNED_BY, Growing, export_all, whole_log


@pytest.mark.parametrize("rows_at_once", [1, 2, 1_024])
def test_the_first_transaction_that_is_missing_is_named_with_its_time(
    sqlite_log: EventLog, place: ExportPlace, monkeypatch: pytest.MonkeyPatch, rows_at_once: int
) -> None:
    growing = Growing(sqlite_log)
    growing.grow(2)
    export_all(sqlite_log, place)
    growing.grow()
    *_, summary = verify_export(place, SIGNED_BY)
    assert isinstance(summary, ExportSummary)
    monkeypatch.setattr(event_log, "_PAGE_ROWS", rows_at_once)
    # Two rows and their seal, and then those of another partition.
    at_ms = decode_seal(whole_log(sqlite_log)[12].state).at_ms
    assert [*against_log.compare_end(sqlite_log, summary, recorded_before_ms=at_ms)] == []
    (found,) = against_log.compare_end(sqlite_log, summary, recorded_before_ms=at_ms + 1)
    assert (found.fault, found.first_position, found.last_position) == (Damage.ENDS_EARLY, 11, 13)
    at = datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds")
    assert found.explanation.endswith(
        f"to position 15; what follows the export was recorded at {at}"
    )


@pytest.mark.parametrize("name", ["mediator_did", "mediator_key", "shards"])
def test_a_log_with_another_constant_than_its_export_was_changed(
    sqlite_log: EventLog, place: ExportPlace, name: str
) -> None:
    Growing(sqlite_log).grow()
    export_all(sqlite_log, place)
    *_, summary = verify_export(place, SIGNED_BY)
    assert isinstance(summary, ExportSummary)
    sqlite_log.setting(name, "another")
    (found,) = against_log.compare_end(sqlite_log, summary, recorded_before_ms=0)
    assert (found.fault, found.path) == (Damage.MISPLACED, HEAD)
    assert "but the log beside it another" in found.explanation
    assert name in found.explanation
