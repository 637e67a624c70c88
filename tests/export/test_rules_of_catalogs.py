"""The rules by which manifests, files and the end of an export count, at their bounds."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from eventstore.log.events import SEAL_TOPIC
from eventstore.parquet.catalog import (
    Catalog,
    check_continues,
    check_end,
    counting_among,
    table_damage,
)
from eventstore.parquet.errors import Damage, ExportDamaged, RowsPruned
from eventstore.parquet.manifest import (
    DataFile,
    Manifest,
    ManifestTree,
    Pruned,
    Statement,
    data_path,
    parse_manifest,
    signed,
)
from eventstore.parquet.schema import FORMAT, SCHEMA_VERSION
from eventstore.parquet.table import TableFile
from eventstore.parquet.versions import EndMark, commit_path
from eventstore.parquet.write.compaction import runs
from eventstore.parquet.write.step import Bounds
from tests.export.samples import SIGNER, VERIFY

_AT_MS = 1_700_000_000_000
_PRUNED = Pruned(rows=1, recorded_until_ms=_AT_MS, at_ms=_AT_MS)
_TREE = ManifestTree(1, "0" * 64)


def manifest_of(first: int, rows: int, *, last: int | None = None) -> Manifest:
    """A manifest with one file, whose rows have 10 bytes each."""
    last = first + rows - 1 if last is None else last
    file = DataFile(
        path=data_path("2030-01-01", first, last, "0" * 16),
        rows=rows,
        first=first,
        last=last,
        bytes=1,
        sha256="00",
        state_bytes=10 * rows,
        types={SEAL_TOPIC: rows},
    )
    return Manifest(
        format=FORMAT,
        schema=SCHEMA_VERSION,
        first=first,
        last=last,
        rows=rows,
        files=[file],
        heads={},
        replaces=[],
        stands_for="",
        previous="",
        signed_by=SIGNER.signed_by,
    )


def statements_of(*rows: int) -> list[Statement]:
    """Steps with so many rows, one behind the other."""
    firsts = [1 + sum(rows[:number]) for number in range(len(rows))]
    return [Statement(manifest_of(*one), "") for one in zip(firsts, rows, strict=True)]


@pytest.mark.parametrize(
    ("rows", "bounds", "merged"),
    [
        ((10, 5, 5), Bounds(), [(10, 5, 5)]),
        ((11, 5, 5), Bounds(), [(5, 5)]),
        ((5, 5), Bounds(rows_max=10), [(5, 5)]),
        ((5, 5), Bounds(rows_max=9), []),
        ((5, 5), Bounds(bytes_max=100), [(5, 5)]),
        ((5, 5), Bounds(bytes_max=99), []),
        ((5, 5, 7, 7), Bounds(rows_max=14), [(5, 5), (7, 7)]),
        ((5,), Bounds(), []),
    ],
)
def test_steps_are_merged_up_to_the_bounds_and_none_larger_than_the_others(
    rows: tuple[int, ...], bounds: Bounds, merged: Sequence[tuple[int, ...]]
) -> None:
    found = runs(statements_of(*rows), files_min=2, bounds=bounds)
    assert [tuple(one.manifest.rows for one in run) for run in found] == merged


def test_fewer_steps_than_are_worth_it_are_not_merged() -> None:
    steps = statements_of(5, 5)
    found = [list(runs(steps, files_min=fewest, bounds=Bounds())) for fewest in (2, 3)]
    assert found == [[steps], []]


def test_what_was_pruned_is_not_merged() -> None:
    pruned, *others = statements_of(5, 5, 5)
    pruned = pruned._replace(manifest=replace(pruned.manifest, pruned=_PRUNED))
    assert list(runs([pruned, *others], files_min=2, bounds=Bounds())) == [others]
    assert list(runs([], files_min=2, bounds=Bounds())) == []


def mark_of(version: int, commit: str, **complete: int) -> EndMark:
    mark = EndMark(
        format=FORMAT,
        schema=SCHEMA_VERSION,
        version=version,
        commit=commit,
        checkpoint={},
        position=9,
        complete_position=9,
        complete_until_ms=_AT_MS,
        signed_by=SIGNER.signed_by,
    )
    return replace(mark, **complete)


@pytest.mark.parametrize(
    ("version", "commit", "damage"),
    [
        (6, "a", Damage.ROLLED_BACK),
        (5, "b", Damage.CHANGED),
        (5, "a", None),
        (4, "b", None),
    ],
)
def test_the_end_of_an_export_is_that_of_its_newest_version_or_of_an_earlier_one(
    version: int, commit: str, damage: Damage | None
) -> None:
    mark = mark_of(version, commit)
    if damage is None:
        check_end(mark, 5, "a")
        return
    with pytest.raises(ExportDamaged) as refused:
        check_end(mark, 5, "a")
    assert (refused.value.damage, refused.value.path) == (damage, commit_path(version))


@pytest.mark.parametrize(
    ("mark", "until_ms"),
    [
        (None, None),
        (mark_of(1, ""), _AT_MS),
        (mark_of(1, "", complete_position=8), _AT_MS),
        (mark_of(1, "", complete_position=10), None),
        (mark_of(1, "", complete_position=0, complete_until_ms=0), None),
    ],
)
def test_an_export_is_complete_until_a_time_only_if_it_reaches_the_position_of_that_time(
    mark: EndMark | None, until_ms: int | None
) -> None:
    catalog = Catalog(None, statements_of(9), mark=mark)
    assert catalog.complete_until_ms == until_ms


def test_a_state_is_known_from_where_rows_were_removed_on() -> None:
    first, second = statements_of(5, 5)
    whole = Catalog(None, [first, second])
    pruned = first._replace(manifest=replace(first.manifest, pruned=_PRUNED))
    catalog = Catalog(None, [pruned, second])
    at = datetime.fromtimestamp(_AT_MS / 1000, UTC)
    earlier = datetime.fromtimestamp(_AT_MS / 1000 - 1, UTC)
    for point in (None, 5, at):
        catalog.check_not_pruned(point)
    for point in (4, earlier):
        whole.check_not_pruned(point)
        with pytest.raises(RowsPruned):
            catalog.check_not_pruned(point)
    assert (catalog.pruned_up_to, whole.pruned_up_to) == (5, 0)


def test_an_empty_export_ends_before_the_first_position_and_nothing_of_it_was_pruned() -> None:
    empty = Catalog(None)
    assert (empty.last, empty.pruned_up_to, empty.pruned, empty.link) == (0, 0, None, "")


def test_of_manifests_the_widest_counts_and_of_equal_ones_the_one_written_last() -> None:
    wide, inside, next_one = manifest_of(1, 9), manifest_of(1, 5), manifest_of(10, 2)
    again = replace(wide, rewritten=2)
    found = [Statement(one, "") for one in (next_one, inside, wide, again)]
    assert [one.manifest for one in counting_among(found)] == [again, next_one]


@pytest.mark.parametrize(
    ("reached", "link", "damage"),
    [
        (8, "", Damage.GAP),
        (9, "", None),
        (10, "", Damage.OVERLAP),
        (9, "00", Damage.BROKEN_CHAIN),
    ],
)
def test_a_manifest_begins_right_behind_the_one_before_it(
    reached: int, link: str, damage: Damage | None
) -> None:
    if damage is None:
        check_continues(manifest_of(10, 2), reached, link)
        return
    with pytest.raises(ExportDamaged) as refused:
        check_continues(manifest_of(10, 2), reached, link)
    assert refused.value.damage is damage


def test_a_table_has_the_files_of_its_manifests_no_more_and_none_that_differs() -> None:
    statements = statements_of(5, 5)
    one, other = (statement.manifest.files[0].path for statement in statements)
    right = {one: TableFile(1, 5), other: TableFile(1, 5)}
    assert list(table_damage(right, statements)) == []
    for wrong, path in (
        ({one: right[one]}, other),
        (right | {"events/more": TableFile(1, 5)}, "events/more"),
        (right | {one: TableFile(2, 5)}, one),
        (right | {one: TableFile(1, 4)}, one),
    ):
        assert [damage.path for damage in table_damage(wrong, statements)] == [path]


def named(manifest: Manifest) -> Manifest:
    """The manifest with its file named as it says."""
    (file,) = manifest.files
    path = data_path("2030-01-01", file.first, file.last, "0" * 16)
    return replace(manifest, files=[replace(file, path=path)])


def of_file(manifest: Manifest, **members: object) -> Manifest:
    return named(replace(manifest, files=[replace(manifest.files[0], **members)]))


_RIGHT = manifest_of(10, 5, last=20)
FIGURES: dict[str, tuple[Manifest, Damage | None]] = {
    "right": (_RIGHT, None),
    "one row": (manifest_of(1, 1), None),
    "position 0": (manifest_of(0, 1), Damage.BROKEN_MANIFEST),
    "ends before it begins": (replace(_RIGHT, first=20, last=19), Damage.BROKEN_MANIFEST),
    "no rows": (replace(_RIGHT, files=[], rows=0), Damage.BROKEN_MANIFEST),
    "fewer rows than its files": (replace(_RIGHT, rows=4), Damage.BROKEN_MANIFEST),
    "a file before it": (of_file(_RIGHT, first=9), Damage.MISPLACED),
    "a file behind it": (of_file(_RIGHT, last=21), Damage.MISPLACED),
    "a file that ends before it begins": (of_file(_RIGHT, first=15, last=14), Damage.MISPLACED),
    "a file without bytes": (of_file(_RIGHT, bytes=0), Damage.BROKEN_MANIFEST),
    "a file of fewer events": (of_file(_RIGHT, types={SEAL_TOPIC: 4}), Damage.BROKEN_MANIFEST),
    "pruned": (replace(manifest_of(1, 5), pruned=_PRUNED, tree=_TREE), None),
    "pruned without a tree": (
        replace(manifest_of(1, 5), pruned=_PRUNED),
        Damage.BROKEN_MANIFEST,
    ),
    "pruned behind the first position": (
        replace(manifest_of(2, 5), pruned=_PRUNED, tree=_TREE),
        Damage.BROKEN_MANIFEST,
    ),
}


@pytest.mark.parametrize("case", FIGURES)
def test_the_figures_of_a_manifest_fit_each_other_though_all_is_signed(case: str) -> None:
    manifest, damage = FIGURES[case]
    complete, content = signed(manifest, SIGNER.sign)
    if damage is None:
        assert parse_manifest(complete.path, content, VERIFY).manifest == complete
        return
    with pytest.raises(ExportDamaged) as refused:
        parse_manifest(complete.path, content, VERIFY)
    assert refused.value.damage is damage
