"""The column of the identity loses a name only with an erasure."""

from __future__ import annotations

import pyarrow as pa
import pytest

from actors.core.commands import NameSpeaker
from eventstore.log.event_log import EventLog
from eventstore.log.faults import Fault
from eventstore.log.streams import erased_name, identity_stream
from eventstore.parquet.files import ExportPlace
from eventstore.parquet.write.step import Bounds
from tests.contract.test_erasure_contract import erase, settle
from tests.contract.test_retention_contract import Mediator
from tests.export.forging import SampleExport, with_value
from tests.export.samples import export_all, exported_rows, findings
from tests.export.test_names_in_export import GONE, STAYS, places_of, take_out
from tests.unit.actors.given import run, unclaimed


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> SampleExport:
    return SampleExport(tmp_path_factory.mktemp("sample"))


def test_a_name_that_is_gone_from_its_column_is_found_though_all_is_signed(
    sample: SampleExport,
) -> None:
    rows = [row for table in sample.tables.values() for row in table.to_pylist()]
    erased = {row["stream"] for row in rows if row["type"] == "identity-erased"}
    path, table = next(iter(sorted(sample.tables.items())))
    columns = (table[name].to_pylist() for name in ("identity", "stream"))
    row, name = next(
        (row, name)
        for row, (name, stream) in enumerate(zip(*columns, strict=True))
        if str(name).startswith("did:") and stream not in erased
    )
    with sample.tampered():
        sample.forge(path, lambda table: with_value(table, row, "identity", erased_name(name)))
        assert {found.fault for found in sample.check()[0]} == {Fault.MISSING_NAME}


def test_a_name_that_is_gone_from_all_rows_of_its_stream_in_a_step_is_found(
    sample: SampleExport,
) -> None:
    rows = [row for table in sample.tables.values() for row in table.to_pylist()]
    own = {row["stream"] for row in rows if row["type"] == "identity-erased"}
    path = sample.manifests[-1].files[-1].path
    table = sample.tables[path].to_pylist()
    own |= {row["stream"] for row in table if row["version"] == 1}
    stream, name = next(
        (row["stream"], row["identity"])
        for row in table
        if str(row["identity"]).startswith("did:") and row["stream"] not in own
    )

    def without_name(changed: pa.Table) -> pa.Table:
        for number, row in enumerate(table):
            if row["stream"] == stream:
                changed = with_value(changed, number, "identity", erased_name(name))
        return changed

    with sample.tampered():
        sample.forge(path, without_name)
        assert {found.fault for found in sample.check()[0]} == {Fault.MISSING_NAME}


def test_a_name_that_stands_in_the_first_row_of_a_file_alone_leaves_it(
    sqlite_log: EventLog, place: ExportPlace
) -> None:
    mediator = Mediator(sqlite_log)
    for did in (GONE, STAYS):
        settle(mediator, did)
    erase(mediator, GONE)
    export_all(sqlite_log, place, Bounds(rows_max=1))
    assert places_of(place, GONE)
    assert take_out(sqlite_log, place).names
    assert places_of(place, GONE) == []
    assert findings(place) == []


def test_a_did_that_speaks_for_an_account_after_its_erasure_has_its_name_again(
    sqlite_log: EventLog, place: ExportPlace
) -> None:
    mediator = Mediator(sqlite_log)
    settle(mediator, GONE)
    erase(mediator, GONE)
    export_all(sqlite_log, place)
    assert take_out(sqlite_log, place).names
    run(mediator.host, unclaimed(GONE, NameSpeaker(STAYS)))
    export_all(sqlite_log, place)
    stream = identity_stream(GONE).bytes
    *before, spoke = [row["identity"] for row in exported_rows(place) if row["stream"] == stream]
    assert set(before) == {erased_name(GONE)}
    assert spoke == GONE
    assert findings(place) == []
