"""An export in a store, or on a disk, that refuses some requests: nothing is damaged by that."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pytest
from deltalake import Schema
from moto.server import ThreadedMotoServer

from eventstore.log.event_log import EventLog
from eventstore.parquet.errors import ExportDamaged, ExportUnavailable
from eventstore.parquet.files import TABLE_LOG, ExportPlace, open_place
from eventstore.parquet.versions import commit_path
from eventstore.parquet.write.exporter import Exporter
from http_edge.cli.live_comparison import exported_identities
from projections.generations.delta_table import DeltaFolder
from tests.export.samples import (
    Growing,
    catalog_of,
    did,
    export_all,
    exported_log,
    exporter,
    findings,
    whole_log,
)
from tests.export.test_late_exporter import before_change

Refusals: TypeAlias = dict[tuple[str, str], str]
"""The HTTP status that answers requests of a method for paths with a text in them."""
_CHECKPOINT: Final = ".checkpoint.parquet"
_FORBIDDEN: Final = "403 Forbidden"
_SLOW_DOWN: Final = "503 Slow Down"


@pytest.fixture
def refusals(s3_server: ThreadedMotoServer) -> Refusals:
    refused: Refusals = {}
    server = vars(s3_server)["_server"]
    answer = server.app

    def answers(request: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        for (method, part), status in refused.items():
            if request["REQUEST_METHOD"] == method and part in request["PATH_INFO"]:
                return _refused(start, status)
        found: Iterable[bytes] = answer(request, start)
        return found

    server.app = answers
    return refused


@pytest.fixture
def losing(s3_server: ThreadedMotoServer) -> set[str]:
    """Paths of which the store keeps the next object, and answers that it has not."""
    lost = set[str]()
    server = vars(s3_server)["_server"]
    answer = server.app

    def answers(request: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        path = next((path for path in lost if request["PATH_INFO"].endswith(path)), "")
        if request["REQUEST_METHOD"] == "PUT" and path:
            lost.remove(path)
            b"".join(answer(request, lambda *_: None))
            return _refused(start, _SLOW_DOWN)
        found: Iterable[bytes] = answer(request, start)
        return found

    server.app = answers
    return lost


def _refused(start: Callable[..., Any], status: str) -> Iterable[bytes]:
    start(status, [("Content-Type", "application/xml")])
    return [b"<Error><Code>Refused</Code></Error>"]


def _assert_goes_on(log: EventLog, place: ExportPlace) -> None:
    export_all(log, place)
    assert exported_log(place) == list(whole_log(log))
    assert findings(place) == []


@pytest.mark.parametrize("status", [_FORBIDDEN, _SLOW_DOWN])
def test_a_commit_that_a_store_refuses_damages_nothing_and_is_made_later(
    sqlite_log: EventLog, s3_uri: str, refusals: Refusals, status: str
) -> None:
    growing, place = Growing(sqlite_log), open_place(s3_uri)
    growing.grow()
    with closing(exporter(sqlite_log, place)) as export:
        assert export.step()
        growing.grow()
        refusals["PUT", TABLE_LOG] = status
        with pytest.raises(ExportUnavailable, match=status[:3]):
            export.step()
        refusals.clear()
        assert export.step()
    _assert_goes_on(sqlite_log, place)


def test_a_table_that_a_store_refuses_to_begin_damages_nothing(
    sqlite_log: EventLog, s3_uri: str, refusals: Refusals
) -> None:
    Growing(sqlite_log).grow()
    place = open_place(s3_uri)
    refusals["PUT", TABLE_LOG] = _FORBIDDEN
    with pytest.raises(ExportUnavailable, match="403"):
        exporter(sqlite_log, place)
    refusals.clear()
    _assert_goes_on(sqlite_log, place)


def test_a_commit_that_a_store_took_without_an_answer_is_done(
    sqlite_log: EventLog, s3_uri: str, losing: set[str]
) -> None:
    """The library repeats the request, and is answered that there is one already."""
    growing, place = Growing(sqlite_log), open_place(s3_uri)
    losing.add(commit_path(0))
    with closing(exporter(sqlite_log, place)) as export:
        assert not losing
        growing.grow()
        losing.add(commit_path(export.catalog.next_version))
        assert export.step()
        assert not losing
    _assert_goes_on(sqlite_log, place)


def _until_checkpoint(growing: Growing, export: Exporter) -> None:
    for _ in range(5):
        growing.grow()
        assert export.step()


def test_a_checkpoint_that_a_store_refuses_damages_nothing_and_is_made_later(
    sqlite_log: EventLog, s3_uri: str, refusals: Refusals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eventstore.parquet.write.table.SUMMARY_EVERY", 2)
    growing, place = Growing(sqlite_log), open_place(s3_uri)
    refusals["PUT", _CHECKPOINT] = _FORBIDDEN
    with closing(exporter(sqlite_log, place)) as export:
        with pytest.raises(ExportUnavailable, match="403"):
            _until_checkpoint(growing, export)
        refusals.clear()
        growing.grow()
        assert export.step()
    assert any(_CHECKPOINT in path for path in place.sizes(TABLE_LOG))
    _assert_goes_on(sqlite_log, place)


@pytest.mark.parametrize("part", [commit_path(0), _CHECKPOINT])
def test_a_part_of_the_log_of_the_table_that_a_store_does_not_give_is_not_damaged(
    sqlite_log: EventLog,
    s3_uri: str,
    refusals: Refusals,
    monkeypatch: pytest.MonkeyPatch,
    part: str,
) -> None:
    monkeypatch.setattr("eventstore.parquet.write.table.SUMMARY_EVERY", 2)
    place = open_place(s3_uri)
    with closing(exporter(sqlite_log, place)) as export:
        if part == _CHECKPOINT:
            _until_checkpoint(Growing(sqlite_log), export)
    refusals["GET", part] = _SLOW_DOWN
    with pytest.raises(ExportUnavailable, match=r"503|SERVICE_UNAVAILABLE"):
        catalog_of(place)
    refusals.clear()
    catalog_of(place)


def test_identities_in_a_file_that_a_store_does_not_give_are_unavailable(
    sqlite_log: EventLog, s3_uri: str, refusals: Refusals
) -> None:
    Growing(sqlite_log).grow()
    place = open_place(s3_uri)
    export_all(sqlite_log, place)
    assert did(1) in exported_identities(place)
    refusals["GET", "events/date="] = _FORBIDDEN
    with pytest.raises(ExportUnavailable, match="events/date="):
        exported_identities(place)


def test_identities_in_a_file_that_cannot_be_decoded_are_damaged(
    sqlite_log: EventLog, place: ExportPlace
) -> None:
    Growing(sqlite_log).grow()
    export_all(sqlite_log, place)
    (path,) = place.data_sizes()
    place.write(path, place.read(path)[:-4] + b"none")
    with pytest.raises(ExportDamaged, match=path):
        exported_identities(place)


def test_a_rebuilt_table_that_a_store_refuses_is_not_damaged(
    s3_uri: str, refusals: Refusals
) -> None:
    folder = DeltaFolder(open_place(s3_uri), "seals")
    refusals["PUT", "_delta_log"] = _FORBIDDEN
    with pytest.raises(ExportUnavailable, match="403"):
        _commit(folder)
    refusals.clear()
    assert _commit(folder) == 0
    refusals["PUT", "_delta_log"] = _FORBIDDEN
    with pytest.raises(ExportUnavailable, match="403"):
        _commit(folder)
    refusals.clear()
    refusals["GET", "_delta_log/0"] = _FORBIDDEN
    with pytest.raises(ExportUnavailable, match="403"):
        folder.opened()
    refusals.clear()
    assert _commit(folder) == 1


def _commit(folder: DeltaFolder) -> int | None:
    schema = Schema.from_arrow(pa.schema([("n", pa.int64())]))
    return folder.make_version(folder.opened(), [], [], schema, about="seals")


@contextmanager
def _full_on_call(size_bytes: int) -> Iterator[Callable[[], None]]:
    """Yield what lets every write beyond this size fail, as on a full disk, from then on."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_table_that_finds_no_room_damages_nothing_and_is_begun_later(
    sqlite_log: EventLog, place: ExportPlace
) -> None:
    Growing(sqlite_log).grow()
    with _full_on_call(100) as full, pytest.raises(ExportUnavailable, match="too large") as said:
        exporter(sqlite_log, place.checked(before_change(1, full)))  # the first is of its head
    assert str(said.value).startswith(TABLE_LOG)
    _assert_goes_on(sqlite_log, place)


def _step_without_room(log: EventLog, place: ExportPlace, before: Callable[[], None]) -> None:
    """Make a step that finds the disk full from its commit on; call ``before`` just before that."""
    act: Callable[[], None] | None = None

    def check() -> None:
        if act is not None:
            act()

    def fill() -> None:
        before()
        full()

    with closing(exporter(log, place.checked(check))) as export, _full_on_call(100) as full:
        act = before_change(5, fill)  # after data, tiles, index and manifest
        export.step()


def test_a_commit_that_finds_no_room_damages_nothing_and_is_made_later(
    sqlite_log: EventLog, place: ExportPlace
) -> None:
    Growing(sqlite_log).grow()
    with pytest.raises(ExportUnavailable, match="too large") as said:
        _step_without_room(sqlite_log, place, lambda: None)
    assert str(said.value).startswith(TABLE_LOG)
    _assert_goes_on(sqlite_log, place)


def test_a_commit_that_cannot_be_written_hides_no_damage(
    sqlite_log: EventLog, place: ExportPlace
) -> None:
    Growing(sqlite_log).grow()

    def damage() -> None:
        place.write(max(place.sizes(TABLE_LOG)), b"{")

    with pytest.raises(ExportDamaged, match="broken commit"):
        _step_without_room(sqlite_log, place, damage)
