"""Who was erased and came back before names left: export, archive and tables keep its new life."""

from __future__ import annotations

from contextlib import closing

import pytest

from actors.core.account_commands import ReleaseKey
from actors.core.commands import QueueMessage, UpdateKeylist
from eventstore.log.event_log import EventLog
from eventstore.log.name_check import ERASURE
from eventstore.log.streams import erased_name, identity_stream
from eventstore.parquet.files import ExportPlace
from eventstore.parquet.manifest import DataFile
from eventstore.parquet.rows import read_table
from eventstore.parquet.write import compaction
from eventstore.parquet.write.compaction import TakenOut
from tests.contract.test_erasure_contract import erase, settle
from tests.contract.test_name_erasure_contract import register
from tests.contract.test_retention_contract import Mediator
from tests.export.leaving import faults_in, leave
from tests.export.samples import catalog_of, export_all, exported_log, exporter, findings, whole_log
from tests.export.test_names_in_export import (
    GONE,
    STAYS,
    STEPS,
    acknowledge,
    end_contracts,
    log,
    mediator,
    take_out,
)
from tests.log.stored import faults
from tests.unit.actors.given import run, submission, unclaimed

__all__ = ["log", "mediator"]


def come_back(mediator: Mediator, log: EventLog) -> int:
    """Erase an identity, which comes back and writes again; the position of the erasure's end."""
    acknowledge(mediator, STAYS)
    end_contracts(mediator)
    settle(mediator, STAYS)
    erase(mediator, GONE)
    until = log.stream_rows(identity_stream(GONE), topics={ERASURE})[-1].position
    settle(mediator, GONE)
    run(mediator.host, submission(GONE, QueueMessage(GONE, b"to itself")))
    return until


def named_at(place: ExportPlace) -> tuple[list[int], set[str]]:
    """The positions of exported rows whose state has the name, and how their own name reads."""
    positions = [row.position for row in exported_log(place) if GONE.encode() in row.state]
    tables = [read_table(place, file) for file in catalog_of(place).files]
    own = identity_stream(GONE).bytes
    rows = [row for table in tables for row in table.to_pylist() if row["stream"] == own]
    names = {(row["position"] in positions, row["identity"]) for row in rows}
    return positions, {name for _, name in names}


def test_an_export_keeps_the_names_of_the_new_life_alone(
    mediator: Mediator, log: EventLog, place: ExportPlace
) -> None:
    until = come_back(mediator, log)
    export_all(log, place, STEPS)
    assert take_out(log, place).names > 0
    positions, names = named_at(place)
    assert positions
    assert min(positions) > until
    assert names == {erased_name(GONE), GONE}
    for file in catalog_of(place).files:
        for row in read_table(place, file).to_pylist():
            if row["position"] <= until and row["type"] != "batch-sealed":
                assert GONE not in repr(row), row["type"]
    assert [row.state for row in exported_log(place)] == [row.state for row in whole_log(log)]
    assert (findings(place), faults(log)) == ([], [])


def test_a_key_that_another_gave_up_has_one_name_in_all_rows_of_an_export(
    mediator: Mediator, log: EventLog, place: ExportPlace
) -> None:
    (key,) = register(mediator, STAYS, GONE)
    erase(mediator, GONE)
    run(mediator.host, unclaimed(STAYS, UpdateKeylist([], [GONE])))
    run(mediator.host, unclaimed(f"key:{GONE}", ReleaseKey(STAYS, key.claim)))
    settle(mediator, GONE)
    export_all(log, place, STEPS)
    take_out(log, place)
    assert [row.state for row in exported_log(place)] == [row.state for row in whole_log(log)]
    assert (findings(place), faults(log)) == ([], [])


def test_files_that_name_who_has_come_back_are_not_read_again_for_what_left(
    mediator: Mediator, log: EventLog, place: ExportPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def reading(place: ExportPlace, file: DataFile, *columns: tuple[str, ...]) -> object:
        read.append(file.path)
        return read_table(place, file, *columns)

    come_back(mediator, log)
    export_all(log, place, STEPS)
    with closing(exporter(log, place, STEPS)) as export:
        assert export.take_out_erased().names > 0
        export.take_out_erased()
        monkeypatch.setattr(compaction, "read_table", reading)
        paths = {statement.manifest.path for statement in catalog_of(place).statements}
        assert set(export._nameless) == paths
        assert export.take_out_erased() == TakenOut()


def test_rows_in_the_archive_lose_the_names_of_the_former_life(
    mediator: Mediator, log: EventLog, place: ExportPlace
) -> None:
    until = come_back(mediator, log)
    export_all(log, place, STEPS)
    leave(log, place)
    assert take_out(log, place).names > 0
    positions, _ = named_at(place)
    assert positions
    assert min(positions) > until
    assert (findings(place), faults(log)) == ([], [])
    leave(log, place)
    assert faults_in(log) == []
