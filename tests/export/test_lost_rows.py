"""An export that lost files: each loss is one finding, and nothing else is reported for it."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from eventstore.log.event_log import EventLog
from eventstore.log.faults import Fault, Head
from eventstore.log.streams import identity_stream
from eventstore.parquet.errors import Damage
from eventstore.parquet.files import ExportPlace
from eventstore.parquet.manifest import heads_of
from eventstore.parquet.tree import CHECKPOINT, TREE
from eventstore.parquet.verify.export import verify_export
from eventstore.parquet.verify.findings import ExportFinding, ExportSummary
from eventstore.parquet.verify.manifests import ManifestPart
from eventstore.parquet.verify.rows import Streams, check_part
from eventstore.parquet.verify.stream_ends import StreamEnds
from eventstore.parquet.write.step import Bounds
from tests.export.forging import SampleExport, without
from tests.export.samples import SIGNED_BY, Growing, catalog_of, did, export_all

ONE_EACH = Bounds(rows_max=1, bytes_max=1_000_000)
"""A transaction in each step."""


def checked(place: ExportPlace) -> tuple[list[ExportFinding], ExportSummary]:
    *found, summary = verify_export(place, SIGNED_BY)
    assert isinstance(summary, ExportSummary)
    return [one for one in found if isinstance(one, ExportFinding)], summary


@pytest.fixture
def steps(sqlite_log: EventLog, place: ExportPlace) -> ExportPlace:
    """An export of six steps, each with an index file of its own."""
    Growing(sqlite_log).grow(3)
    export_all(sqlite_log, place, ONE_EACH)
    index = catalog_of(place).index
    assert index is not None
    assert len(index.files) == 6
    return place


@pytest.mark.parametrize("lost", [(1, 2), (2, 3, 4), (4, 5)])
def test_the_index_is_not_blamed_for_manifests_that_are_lost(
    steps: ExportPlace, lost: tuple[int, ...]
) -> None:
    manifests = [statement.manifest for statement in catalog_of(steps).statements]
    paths = [manifest.path for manifest in manifests]
    for number in lost:
        steps.remove(paths[number])
    found, summary = checked(steps)
    assert summary.rows == sum(m.rows for n, m in enumerate(manifests) if n not in lost)
    assert [one.path for one in found if one.fault is Damage.MISSING] == [
        paths[number] for number in lost
    ]
    assert {one.fault for one in found} <= {Damage.MISSING, Damage.GAP, Damage.STRAY}


def test_an_index_file_in_place_of_another_is_found_although_its_rows_are_lost(
    steps: ExportPlace,
) -> None:
    catalog = catalog_of(steps)
    assert catalog.index
    first, *others = catalog.index.files
    other = next(file for file in others if file.entries == first.entries)
    steps.write(first.path, steps.read(other.path))
    lost = catalog.files[0].path
    steps.remove(lost)
    found, _ = checked(steps)
    assert {(Damage.MISSING, lost), (Damage.CHANGED, first.path)} <= {
        (one.fault, one.path) for one in found
    }


@pytest.mark.parametrize("length", [0, 7, 8, -8, -1])
def test_an_index_file_that_was_cut_is_one_finding(steps: ExportPlace, length: int) -> None:
    index = catalog_of(steps).index
    assert index is not None
    path = index.files[1].path
    steps.write(path, steps.read(path)[:length])
    found, _ = checked(steps)
    assert [(one.fault, one.path) for one in found] == [(Damage.CHANGED, path)]


def test_rows_that_cannot_be_read_are_not_counted(steps: ExportPlace) -> None:
    files = catalog_of(steps).files
    for file in files:
        steps.remove(file.path)
    found, summary = checked(steps)
    assert [(one.fault, one.path) for one in found] == [
        (Damage.MISSING, file.path) for file in files
    ]
    assert (summary.rows, summary.seals, summary.earlier_check_up_to) == (0, 0, 0)
    assert summary.findings == len(files)


def _streams_of(steps: ExportPlace) -> list[Streams]:
    """What the rows of each manifest say of their streams."""
    found, before = [], dict[str, Head]()
    for statement in catalog_of(steps).statements:
        heads = heads_of(statement.manifest.path, statement.manifest)
        part = check_part(steps, ManifestPart(statement.manifest, heads, before), {})
        assert part.streams is not None
        found.append(part.streams)
        before = heads
    return found


def test_a_version_that_is_missing_between_manifests_is_named_where_it_should_stand(
    steps: ExportPlace,
) -> None:
    streams = _streams_of(steps)
    # Each has one event of the same identity: its third, fourth and fifth.
    first, third, fourth, fifth = (streams[number] for number in (0, 1, 3, 5))
    ends = StreamEnds()
    assert [*ends.join(first)] == []
    found = [one for joined in (fourth, fourth, third) for one in ends.join(joined)]
    own = identity_stream(did(1))  # beside it are the streams of partitions
    assert [(one.fault, one.version, one.explanation) for one in found if one.stream == own] == [
        (Fault.VERSION_BREAK, 4, "version 3 should stand here"),
        (Fault.VERSION_BREAK, 4, "version 5 should stand here"),
        (Fault.VERSION_BREAK, 3, "version 5 should stand here"),
    ]
    files = [statement.manifest.files[0] for statement in catalog_of(steps).statements]
    assert [(one.path, one.row, one.first_position) for one in found if one.stream == own] == [
        (files[number].path, 0, files[number].first) for number in (3, 3, 1)
    ]
    ends.lose()
    assert [*ends.join(fifth)] == []


def test_rows_that_were_verified_may_stand_there_again_and_none_of_them_may_be_missing(
    steps: ExportPlace,
) -> None:
    first, third = _streams_of(steps)[:2]
    own, ends = identity_stream(did(1)), StreamEnds()
    assert [*ends.join(first), *ends.join(third)] == []
    again = StreamEnds(ends.table())
    assert [*again.join(third, is_partly_known=True)] == []
    found = [*StreamEnds(ends.table()).join(first, is_partly_known=True)]
    assert {(one.fault, one.stream) for one in found} == {(Fault.VERSION_BREAK, own)}


def test_a_stream_goes_on_behind_lost_rows_from_what_it_was_before_them(steps: ExportPlace) -> None:
    streams = _streams_of(steps)
    first, third, fifth = (streams[number] for number in (0, 1, 5))
    own, ends = identity_stream(did(1)), StreamEnds()
    assert [*ends.join(first), *ends.join(third)] == []
    ends.lose()
    found = [one for one in ends.join(first) if one.stream == own]
    assert [one.explanation for one in found] == ["version 4 should stand here"]
    ends.lose()
    assert [one for one in ends.join(fifth) if one.stream == own] == []
    known = dict(zip(*(column.to_pylist() for column in ends.table().columns[:2]), strict=True))
    assert (known[own.bytes], len(known)) == (5, len(ends))


def test_rows_before_a_lost_file_are_held_against_their_seals(tmp_path: Path) -> None:
    """Of a manifest with several files, whose later rows have no seal to be held against."""
    sample = SampleExport(tmp_path)
    before, lost = next(
        (one, other)
        for manifest in sample.manifests
        for one, other in pairwise(sorted(manifest.files, key=lambda file: file.first))
        if one.last < other.first
    )
    cut = sample.forge(before.path, lambda table: without(table, [1]))
    sample.remove(lost.path)
    found, _ = sample.check()
    assert {one.path for one in found} == {cut.path, lost.path}
    position = sample.tables[before.path]["position"][1].as_py()
    covering = [(one.first_position or 0, one.last_position or 0) for one in found]
    assert any(first - 1 <= position <= last for first, last in covering)


def test_heads_are_not_blamed_for_a_tile_that_is_lost(
    sqlite_log: EventLog, place: ExportPlace
) -> None:
    growing = Growing(sqlite_log)
    growing.grow(3)
    export_all(sqlite_log, place)
    held = place.read(CHECKPOINT)
    growing.grow(3)
    export_all(sqlite_log, place)
    tile = f"{TREE}/tile/0/000.p/12"
    place.remove(tile)
    *found, _ = verify_export(place, SIGNED_BY, witnessed={"a witness": held})
    assert [(one.fault, one.path) for one in found if isinstance(one, ExportFinding)] == [
        (Damage.MISSING, tile)
    ]


def test_a_tile_that_is_lost_with_its_rows_is_a_finding_beside_theirs(
    sqlite_log: EventLog, place: ExportPlace
) -> None:
    growing = Growing(sqlite_log)
    held = b""
    for transactions in (20, 110, 1):
        growing.grow(transactions)
        export_all(sqlite_log, place, Bounds())
        held = held or place.read(CHECKPOINT)
    lost = [catalog_of(place).files[1].path, f"{TREE}/tile/0/000"]
    for path in lost:
        place.remove(path)
    *found, _ = verify_export(place, SIGNED_BY, witnessed={"a witness": held})
    assert [(one.fault, one.path) for one in found if isinstance(one, ExportFinding)] == [
        (Damage.MISSING, path) for path in lost
    ]
