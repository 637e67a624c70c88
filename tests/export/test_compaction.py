from __future__ import annotations

import os
from contextlib import closing, suppress

import pytest

from actors.host.clock import system_clock
from eventstore.log.event_log import EventLog
from eventstore.parquet.errors import ExportDamaged, ExportUnavailable
from eventstore.parquet.files import END, INDEX, ExportPlace
from eventstore.parquet.manifest import is_data, is_manifest
from eventstore.parquet.tree import TREE
from eventstore.parquet.write.exporter import ExportTimes
from eventstore.parquet.write.step import Bounds
from tests.export.samples import (
    DAY_MS,
    SMALL,
    Growing,
    catalog_of,
    export_all,
    exported_log,
    exporter,
    registered,
    whole_log,
    written,
)
from tests.log.samples import AT_MS, SealedWriter

LARGE = Bounds()


def _compact(log: EventLog, place: ExportPlace, files_min: int = 2, bounds: Bounds = LARGE) -> int:
    with closing(exporter(log, place, bounds)) as export:
        return export.compact(files_min=files_min)


def test_many_small_files_become_one_with_the_same_rows(log: EventLog, place: ExportPlace) -> None:
    growing = Growing(log)
    growing.grow(20)
    export_all(log, place)
    steps = len(catalog_of(place).statements)
    assert _compact(log, place) == steps - 1
    assert exported_log(place) == list(whole_log(log))
    (statement,) = catalog_of(place).statements
    assert len(statement.manifest.replaces) == steps
    # Of each transaction a message and an event; a step without contents is not read for them.
    assert statement.manifest.contents == 40
    growing.grow(20)
    export_all(log, place)
    assert exported_log(place) == list(whole_log(log))
    assert _compact(log, place) > 0
    assert exported_log(place) == list(whole_log(log))


def test_replaced_files_stay_readable_until_the_next_sweep(
    sqlite_log: EventLog, place: ExportPlace
) -> None:
    Growing(sqlite_log).grow(20)
    export_all(sqlite_log, place)
    export_all(sqlite_log, place)  # removes what was put together of the index
    before = written(place)
    with closing(exporter(sqlite_log, place, LARGE)) as export:
        export.compact(files_min=2)
        assert written(place).items() > before.items()
        replaced = [path for path in before if path.startswith(("events/", "manifests/"))]
        assert [*catalog_of(place).strays] == sorted(replaced)
        export.sweep()
    assert len([path for path in written(place) if not path.startswith((TREE, INDEX))]) == 3
    assert catalog_of(place).strays == []
    assert exported_log(place) == list(whole_log(sqlite_log))


def test_replaced_files_stay_for_readers_as_long_as_they_are_to(
    sqlite_log: EventLog, place: ExportPlace
) -> None:
    growing = Growing(sqlite_log)
    growing.grow(20)
    export_all(sqlite_log, place)
    export_all(sqlite_log, place)  # removes what was put together of the index
    before, late_s = written(place), 0
    with closing(
        exporter(sqlite_log, place, LARGE, clock=lambda: system_clock() + 1_000 * late_s)
    ) as export:
        export.compact(files_min=2)
        export.sweep(60)
        assert written(place).items() > before.items()
        growing.grow(4)
        while export.step():
            pass
        late_s = 120
        export.sweep(600)
        assert written(place).items() > before.items()
        export.sweep(60)
    assert catalog_of(place).strays == []
    assert exported_log(place) == list(whole_log(sqlite_log))


def test_how_long_a_replaced_file_stays_goes_by_the_one_that_replaced_it(
    sqlite_log: EventLog, place: ExportPlace
) -> None:
    growing = Growing(sqlite_log)
    with closing(exporter(sqlite_log, place, Bounds(rows_max=150))) as export:
        replaced = set[str]()
        for hours in (2, 0):
            growing.grow(20)
            export_all(sqlite_log, place)
            before = {path for path in written(place) if is_data(path) or is_manifest(path)}
            export.compact(files_min=2)
            catalog = export.catalog
            counting = {statement.manifest.path for statement in catalog.statements}
            for path in counting - before:
                at_s = system_clock() / 1_000 - 3_600 * hours
                os.utime(place.full_path(path), (at_s, at_s))
            replaced = before - counting - {file.path for file in catalog.files}
        assert len(export.catalog.statements) == 2
        export.sweep(3_600)
        assert replaced < written(place).keys()
        export.sweep()
    assert replaced.isdisjoint(written(place))


def test_files_that_were_replaced_while_the_clock_was_ahead_do_not_stay_until_that_time(
    sqlite_log: EventLog, place: ExportPlace
) -> None:
    growing = Growing(sqlite_log)
    growing.grow(20)
    export_all(sqlite_log, place)
    ahead_s = 2 * 365 * 86_400
    with closing(
        exporter(
            sqlite_log,
            place,
            LARGE,
            ExportTimes(60),
            clock=lambda: system_clock() + 1_000 * ahead_s,
        )
    ) as export:
        before = set(written(place))
        export.compact(files_min=2)
        for path in set(written(place)) - before:
            at_s = system_clock() / 1_000 + ahead_s
            os.utime(place.full_path(path), (at_s, at_s))
        assert catalog_of(place).strays
        ahead_s = 0
        growing.grow(4)
        assert export.step()
    assert catalog_of(place).strays == []
    assert exported_log(place) == list(whole_log(sqlite_log))


def test_an_export_goes_on_after_a_compaction_that_failed_at_any_change(
    sqlite_log: EventLog, place: ExportPlace
) -> None:
    growing, failed, left = Growing(sqlite_log), 0, 0

    def check() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise ExportUnavailable(END, "the store is gone")

    with closing(exporter(sqlite_log, place.checked(check), LARGE)) as export:
        is_compacted = False
        while not is_compacted:
            for _ in range(4):
                growing.grow()
                assert export.step()
            failed += 1
            left = failed
            with suppress(ExportUnavailable):
                export.compact(files_min=2)
                is_compacted = True
            left = 0
            growing.grow()
            assert export.step()
            assert exported_log(place) == list(whole_log(sqlite_log))
    assert failed > 4


def test_a_large_file_is_not_written_again_for_a_few_small_ones(
    sqlite_log: EventLog, place: ExportPlace
) -> None:
    growing = Growing(sqlite_log)
    growing.grow(20)
    export_all(sqlite_log, place, LARGE)
    growing.grow(4)
    export_all(sqlite_log, place)
    _compact(sqlite_log, place)
    first, second = catalog_of(place).statements
    assert (first.manifest.rows, second.manifest.rows) == (100, 20)


def test_few_files_and_files_beyond_the_bounds_are_left_alone(
    sqlite_log: EventLog, place: ExportPlace
) -> None:
    Growing(sqlite_log).grow(20)
    export_all(sqlite_log, place)
    assert _compact(sqlite_log, place, files_min=11) == 0
    assert _compact(sqlite_log, place, bounds=SMALL) == 0
    assert _compact(sqlite_log, place, files_min=10) == 9


def test_days_stay_apart(sqlite_log: EventLog, place: ExportPlace) -> None:
    writer = SealedWriter(sqlite_log)
    for number in range(6):
        writer.commit({"shard-0": [registered(number, AT_MS + number % 3 * DAY_MS)]})
        export_all(sqlite_log, place)
    _compact(sqlite_log, place)
    assert len(catalog_of(place).statements) == 1
    assert len({file.path.split("/")[1] for file in catalog_of(place).files}) == 3
    assert len(catalog_of(place).files) == 3
    assert exported_log(place) == list(whole_log(sqlite_log))


def test_a_changed_file_is_not_put_into_a_new_one(sqlite_log: EventLog, place: ExportPlace) -> None:
    Growing(sqlite_log).grow(10)
    export_all(sqlite_log, place)
    path = catalog_of(place).files[1].path
    content = bytearray(place.read(path))
    content[100] ^= 1
    place.write(path, bytes(content))
    with pytest.raises(ExportDamaged, match=path):
        _compact(sqlite_log, place)
