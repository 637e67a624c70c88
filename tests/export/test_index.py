"""The index of an export names every row, in files whose number grows with the logarithm."""

from __future__ import annotations

import os
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from actors.host.clock import system_clock
from eventstore.log.codec import decode
from eventstore.log.event_log import EventLog
from eventstore.log.events import BatchSealed
from eventstore.log.faults import Fault
from eventstore.parquet.audit.lookup import Lookup
from eventstore.parquet.catalog import catalog_of
from eventstore.parquet.errors import Damage, ExportDamaged, ExportUnavailable
from eventstore.parquet.files import INDEX, SUMMARIES, ExportPlace, open_place
from eventstore.parquet.index import (
    BLOCK_ENTRIES,
    OFFSET_BITS,
    ExportIndex,
    IndexFile,
    IndexReader,
    encoded_index,
    entries_in,
    identity_key,
    index_path,
    message_key,
    positions_in,
    runs_of,
    stream_key,
)
from eventstore.parquet.opening import open_exports
from eventstore.parquet.verify import index as verify_index
from eventstore.parquet.verify.export import verify_export
from eventstore.parquet.versions import SUMMARY_EVERY
from eventstore.parquet.write.index import RUNS_MERGED, _worth_merging
from eventstore.parquet.write.step import Bounds
from eventstore.parquet.write.table import TableWriter
from eventstore.stores.open_log import open_log
from tests.export.forging import SIGNER, SampleExport, with_value
from tests.export.samples import (
    SIGNED_BY,
    VERIFY,
    Growing,
    export_all,
    exporter,
    findings,
    whole_log,
    without_table,
)
from tests.log.samples import OWNER, OWNER_DID, released


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> SampleExport:
    return SampleExport(tmp_path_factory.mktemp("index"))


def index_of(place: ExportPlace) -> ExportIndex:
    index = catalog_of(place, VERIFY).index
    assert index is not None
    return index


def named_in(log: EventLog) -> Mapping[int, set[int]]:
    """The positions of the rows that name what has a key, by the events of the log."""
    found: dict[int, set[int]] = defaultdict(set)
    for row in whole_log(log):
        event = decode(row.topic, row.state)
        if isinstance(event, BatchSealed):
            continue
        found[stream_key(row.stream)].add(row.position)
        kind = type(event).__name__
        for field in ("by_did", "owner_did", "account_did", "prior_did"):
            found[identity_key(getattr(event, field, None) or "")].add(row.position)
        if kind == "MessageQueued":
            found[identity_key(event.sender_did)].add(row.position)  # type: ignore[attr-defined]
        ids = [getattr(event, "message_id", None), *getattr(event, "message_ids", [])]
        for message_id in filter(None, ids):
            found[message_key(message_id)].add(row.position)
        for refused in getattr(event, "refusals", []):
            found[identity_key(refused.sender_did)].add(row.position)
    del found[identity_key("")]
    return found


def test_every_row_is_found_by_all_that_it_names(sample: SampleExport) -> None:
    with closing(open_log_of(sample)) as log:
        expected = named_in(log)
    index = index_of(sample.place)
    assert len(expected) > 30
    for key, positions in expected.items():
        assert positions_in(sample.place, index, [key]) == sorted(positions)
    assert positions_in(sample.place, index, [identity_key("did:example:unknown")]) == []


def open_log_of(sample: SampleExport) -> EventLog:
    return open_log(sample.log_url)


@given(
    st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=40), st.sampled_from((1, 2, 3, 1_024))
)
def test_a_file_gives_back_its_entries_whatever_its_blocks(
    entries: list[int], children: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("eventstore.parquet.index.BLOCK_ENTRIES", 3)
        patch.setattr("eventstore.parquet.index.NODE_CHILDREN", max(children, 2))
        array = pa.array(sorted(entries), pa.uint64())
        content, root = encoded_index(array)
        place = MemoryPlace(content)
        file = IndexFile(path="one", first=1, last=9, low=0, entries=len(entries), root=root)
        for key in {entry >> 32 for entry in entries} | {0, 2**32 - 1}:
            found = IndexReader(place, file).positions(key)  # type: ignore[arg-type]
            assert found == [1 + (e & 0xFFFFFFFF) for e in sorted(entries) if e >> 32 == key]
        parts = list(IndexReader(place, file).entries(0, 2**32))  # type: ignore[arg-type]
        assert pa.concat_arrays(parts).equals(array)
        halves = entries_in(array, 0, 2**31), entries_in(array, 2**31, 2**32)
        assert pa.concat_arrays(halves).equals(array)


class MemoryPlace:
    """One file."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def read_part(self, _path: str, start: int, length: int) -> bytes:
        return self._content[start : start + length]


def test_files_are_merged_and_split_by_key(
    sqlite_log: EventLog, place: ExportPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eventstore.parquet.write.index.FILE_ENTRIES", 40)
    monkeypatch.setattr("eventstore.parquet.write.index.MERGED_AT_ONCE", 16)
    growing = Growing(sqlite_log)
    most = 0
    with closing(exporter(sqlite_log, place)) as export:
        for _ in range(80):
            growing.grow()
            assert export.step()
            assert export.catalog.index is not None
            most = max(most, len(runs_of(export.catalog.index)))
    assert most <= 7 + 7 + 7
    index = index_of(place)
    assert max(len(files) for files in runs_of(index)) > 1
    for key, positions in named_in(sqlite_log).items():
        assert positions_in(place, index, [key]) == sorted(positions)
    assert findings(place) == []
    # What was merged away is removed by the next exporter, and nothing that counts.
    with closing(exporter(sqlite_log, place)):
        assert {*place.sizes(INDEX)} == {file.path for file in index_of(place).files}


@pytest.mark.timeout(60)
def test_a_merge_ends_though_ranges_of_keys_after_a_large_one_have_no_entries(
    sqlite_log: EventLog, place: ExportPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eventstore.parquet.write.index.FILE_ENTRIES", 8)
    monkeypatch.setattr("eventstore.parquet.write.index.MERGED_AT_ONCE", 2)
    growing = Growing(sqlite_log)
    with closing(exporter(sqlite_log, place)) as export:
        for _ in range(RUNS_MERGED):
            growing.commit({"shard-0": [(OWNER, released(OWNER_DID))] * 3})
            assert export.step()
    index = index_of(place)
    assert [(file.low, file.entries) for file in index.files] == [(0, 3 * RUNS_MERGED)]
    assert positions_in(place, index, [stream_key(OWNER.bytes)]) == sorted(
        named_in(sqlite_log)[stream_key(OWNER.bytes)]
    )
    assert findings(place) == []


def test_a_merge_has_a_bounded_part_of_the_entries_of_one_key(
    sqlite_log: EventLog, place: ExportPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many rows name it; the runs are one more for each such part."""
    monkeypatch.setattr("eventstore.parquet.write.index.FILE_ENTRIES", 8)
    monkeypatch.setattr("eventstore.parquet.write.index.MERGED_AT_ONCE", 2)
    growing = Growing(sqlite_log)
    steps = RUNS_MERGED * RUNS_MERGED + 3
    with closing(exporter(sqlite_log, place)) as export:
        for _ in range(steps):
            growing.commit({"shard-0": [(OWNER, released(OWNER_DID))] * 3})
            assert export.step()
    index = index_of(place)
    assert max(file.entries for file in index.files) == 3 * RUNS_MERGED
    assert len(runs_of(index)) == RUNS_MERGED + 3
    assert positions_in(place, index, [stream_key(OWNER.bytes)]) == sorted(
        named_in(sqlite_log)[stream_key(OWNER.bytes)]
    )
    assert findings(place) == []


def test_a_large_file_is_not_written_again_for_a_few_small_ones(
    sqlite_log: EventLog, place: ExportPlace
) -> None:
    growing = Growing(sqlite_log)
    growing.grow(2 * RUNS_MERGED)
    export_all(sqlite_log, place, Bounds())
    (large,) = index_of(place).files
    for _ in range(RUNS_MERGED):
        growing.grow()
        export_all(sqlite_log, place)
    assert large in index_of(place).files


def test_a_step_of_seals_alone_makes_no_index_file(
    sqlite_log: EventLog, place: ExportPlace
) -> None:
    growing = Growing(sqlite_log)
    growing.grow()
    export_all(sqlite_log, place)
    files = index_of(place).files
    growing.commit({"shard-0": []})
    export_all(sqlite_log, place)
    assert (index_of(place).files, index_of(place).last) == (files, sqlite_log.position())
    assert findings(place) == []


@pytest.mark.parametrize(
    ("span", "merged"), [((1 << OFFSET_BITS) - 1, RUNS_MERGED), (1 << OFFSET_BITS, 0)]
)
def test_a_merged_file_spans_no_more_positions_than_its_entries_can_name(
    span: int, merged: int
) -> None:
    firsts = range(1, 1 + RUNS_MERGED)
    lasts = [*firsts[:-1], 1 + span]
    runs = [
        [IndexFile(path="", first=first, last=last, low=0, entries=1, root="")]
        for first, last in zip(firsts, lasts, strict=True)
    ]
    assert _worth_merging(runs) == merged


@pytest.mark.parametrize(("every", "summaries"), [(3, 1), (SUMMARY_EVERY, 0)])
def test_replaced_index_files_and_summaries_stay_for_readers_however_old_they_are(
    sqlite_log: EventLog,
    place: ExportPlace,
    monkeypatch: pytest.MonkeyPatch,
    every: int,
    summaries: int,
) -> None:
    monkeypatch.setattr("eventstore.parquet.write.table.SUMMARY_EVERY", every)
    growing, late_s = Growing(sqlite_log), 0
    with closing(
        exporter(sqlite_log, place, clock=lambda: system_clock() + 1_000 * late_s)
    ) as export:
        for _ in range(7):
            growing.grow()
            assert export.step()
        replaced = [*place.sizes(INDEX), *place.sizes(SUMMARIES)]
        assert len(replaced) == 7 + summaries
        for path in replaced:
            os.utime(place.full_path(path), (0, 0))
        growing.grow()
        assert export.step()
        assert {*replaced} <= {*catalog_of(place, VERIFY).strays}
        export.sweep(60)
        assert {*replaced} <= {*catalog_of(place, VERIFY).strays}
        late_s = 120
        export.sweep(60)
    assert catalog_of(place, VERIFY).strays == []


def test_an_index_file_that_was_replaced_while_it_was_being_read_is_not_called_damaged(
    sqlite_log: EventLog, place: ExportPlace
) -> None:
    growing = Growing(sqlite_log)
    with closing(exporter(sqlite_log, place)) as export:
        for _ in range(7):
            growing.grow()
            assert export.step()
        (opened,) = open_exports(place.root, SIGNED_BY).parts

        def merge(_reached: int, _rows: int) -> None:
            growing.grow()
            while export.step():
                pass
            export.sweep()

        with pytest.raises(ExportUnavailable, match=f"{INDEX}/.* replaced by another one"):
            list(verify_export(place, SIGNED_BY, progress=merge))
        with (
            Lookup(opened, opened.catalog.last) as lookup,
            pytest.raises(ExportUnavailable, match=f"{INDEX}/.* replaced by another one"),
        ):
            list(lookup.of_message("message-3"))
    assert findings(place) == []


def test_an_export_without_an_index_gets_one_with_the_next_export(
    sqlite_log: EventLog, place: ExportPlace
) -> None:
    Growing(sqlite_log).grow(12)
    export_all(sqlite_log, place)
    made = index_of(place)
    without_table(place)
    assert catalog_of(place, VERIFY).index is None
    export_all(sqlite_log, place)
    again = index_of(place)
    assert again.last == made.last
    for key, positions in named_in(sqlite_log).items():
        assert positions_in(place, again, [key]) == sorted(positions)
    assert findings(place) == []


@pytest.mark.parametrize("where", [0, 0.5, -1])
def test_a_flipped_bit_is_named_and_never_hides_a_row(sample: SampleExport, where: float) -> None:
    with closing(open_log_of(sample)) as log:
        expected = named_in(log)
    index = index_of(sample.place)
    for file in index.files:
        content = bytearray(sample.contents[file.path])
        content[int(where * len(content)) if where >= 0 else -1] ^= 1
        with sample.tampered():
            sample.put(file.path, bytes(content))
            found, _ = sample.check()
            assert [(one.path, one.fault) for one in found] == [(file.path, Damage.CHANGED)]
            for key, positions in expected.items():
                with suppress(ExportDamaged):
                    assert positions_in(sample.place, index, [key]) == sorted(positions)
            sample.remove(file.path)
            found, _ = sample.check()
            assert [(one.path, one.fault) for one in found] == [(file.path, Damage.MISSING)]


@pytest.mark.parametrize("change", ["leaves out", "adds", "names none"])
def test_an_index_that_was_signed_and_is_wrong_is_found(sample: SampleExport, change: str) -> None:
    catalog = catalog_of(sample.place, VERIFY)
    assert catalog.index is not None
    file, *others = catalog.index.files
    entries = pa.concat_arrays(list(IndexReader(sample.place, file).entries(0, 2**32)))
    if change == "leaves out":
        entries = entries.slice(1)
    elif change == "adds":
        entries = pa.concat_arrays([entries, entries.slice(len(entries) - 1)])
    content, root = encoded_index(entries)
    forged = replace_file(file, entries=len(entries), root=root)
    files = others if change == "names none" else [forged, *others]
    with sample.tampered():
        if change != "names none":
            sample.put(forged.path, content)
        _sign(sample, ExportIndex(last=catalog.index.last, files=files))
        found, _ = sample.check()
        assert Damage.WRONG_INDEX in {one.fault for one in found}


def test_an_index_is_not_blamed_for_rows_that_were_changed_though_all_is_signed(
    sample: SampleExport,
) -> None:
    path, index = min(sample.files), index_of(sample.place)
    row = sample.tables[path]["type"].to_pylist().index("identity-registered")  # no seal
    with sample.tampered():
        sample.forge(path, lambda table: with_value(table, row, "by_did", "did:example:forged"))
        for file in index.files:
            sample.put(file.path, sample.contents[file.path])
        _sign(sample, index)
        found, _ = sample.check()
    assert Fault.WRONG_COLUMN in {one.fault for one in found}
    assert Damage.WRONG_INDEX not in {one.fault for one in found}


def _sign(sample: SampleExport, index: ExportIndex) -> None:
    """Let the newest version name another index."""
    catalog = catalog_of(sample.place, VERIFY)
    writer = TableWriter(sample.place, SIGNER, lambda: 0, versions_kept_s=60)
    writer.mark(writer.commit(catalog, catalog.statements, index=index))


@pytest.mark.parametrize("lows", [[1], [2**31], [0, 0], [0, 2**31, 2**30]])
def test_keys_that_no_file_of_an_index_has_are_found_though_all_is_signed(
    sample: SampleExport, lows: list[int]
) -> None:
    """Each file has all entries of its keys; a look-up goes to the file by these alone."""
    index = index_of(sample.place)
    file, *others = index.files
    (entries,) = IndexReader(sample.place, file).entries(0, 2**32)
    files = []
    with sample.tampered():
        for low, high in zip(lows, [*lows[1:], 2**32], strict=True):
            some = entries_in(entries, low, max(high, low + 2**30))
            content, root = encoded_index(some)
            made = replace(replace_file(file, entries=len(some), root=root), low=low)
            sample.put(made.path, content)
            files.append(made)
        _sign(sample, ExportIndex(last=index.last, files=[*files, *others]))
        found, _ = sample.check()
        assert Damage.WRONG_INDEX in {one.fault for one in found}


def test_an_index_that_ends_before_the_rows_of_a_manifest_is_found_though_all_is_signed(
    sample: SampleExport,
) -> None:
    """A look-up reads only manifests behind the end of the index row by row."""
    index = index_of(sample.place)
    *others, file, _ = index.files
    (entries,) = IndexReader(sample.place, file).entries(0, 2**32)
    offsets = [entry & (2**32 - 1) for entry in entries.to_pylist()]
    kept = pa.array([offset < max(offsets) for offset in offsets])
    content, root = encoded_index(entries.filter(kept))
    shorter = replace_file(file, entries=pc.sum(kept).as_py(), root=root)
    shorter = replace(shorter, last=file.first + max(offsets) - 1)
    with sample.tampered():
        sample.put(shorter.path, content)
        _sign(sample, ExportIndex(last=shorter.last, files=[*others, shorter]))
        found, _ = sample.check()
        assert Damage.WRONG_INDEX in {one.fault for one in found}


@pytest.mark.parametrize("change", ["nothing", "leaves out"])
def test_a_run_of_any_length_is_checked_with_a_bounded_part_of_its_entries_in_memory(
    sample: SampleExport, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    monkeypatch.setattr(verify_index, "HELD_ENTRIES_MAX", 16)
    sizes, in_file = list[int](), verify_index._in_file

    def noted(entries: pa.UInt64Array) -> pa.UInt64Array:
        sizes.append(len(entries))
        return in_file(entries)

    monkeypatch.setattr(verify_index, "_in_file", noted)
    if change == "nothing":
        assert sample.check()[0] == []
        assert len(sizes) > 1
    else:
        test_an_index_that_was_signed_and_is_wrong_is_found(sample, change)
    largest = max(file.entries for file in index_of(sample.place).files)
    assert max(sizes) <= 16 + largest


@pytest.mark.parametrize("is_chosen", [True, False])
def test_a_run_that_does_not_fit_into_temporary_files_is_no_damage(
    sample: SampleExport, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, is_chosen: bool
) -> None:
    missing = str(tmp_path / "none")
    monkeypatch.setattr(verify_index, "HELD_ENTRIES_MAX", 16)
    monkeypatch.setattr(tempfile, "tempdir", missing if is_chosen else None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [missing])
    with pytest.raises(ExportUnavailable, match="none"):
        sample.check()


def replace_file(file: IndexFile, *, entries: int, root: str) -> IndexFile:
    return IndexFile(
        path=index_path(file.first, file.last, root[:16]),
        first=file.first,
        last=file.last,
        low=file.low,
        entries=entries,
        root=root,
    )


def test_a_stray_file_is_named(sample: SampleExport) -> None:
    with sample.tampered():
        sample.put(f"{INDEX}/another", b"x")
        found, _ = sample.check()
        assert [(one.path, one.fault) for one in found] == [(f"{INDEX}/another", Damage.STRAY)]


def test_a_block_is_what_is_read_of_a_large_file(tmp_path: Path) -> None:
    entries = pa.array(range(0, 2**40, 2**20), pa.uint64())
    content, root = encoded_index(entries)
    place = open_place(str(tmp_path))
    place.write("one", content)
    file = IndexFile(path="one", first=1, last=2**32, low=0, entries=len(entries), root=root)
    read: list[int] = []

    class Counting(ExportPlace):
        def read_part(self, path: str, start: int, length: int) -> bytes:
            read.append(length)
            return super().read_part(path, start, length)

    counting = Counting(place.filesystem, place.root)
    assert IndexReader(counting, file).positions(200) == [1 + n for n in range(0, 2**32, 2**20)]
    assert sum(read) < 4 * BLOCK_ENTRIES * 8 < len(content) / 20
