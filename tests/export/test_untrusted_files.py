"""What someone puts in place of an export's file costs no more memory than the file itself."""

from __future__ import annotations

import hashlib
import os
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from uuid import UUID

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import rfc8785
from deltalake import DeltaTable
from msgspec.structs import replace

from eventstore.log.faults import Fault
from eventstore.parquet.catalog import catalog_of, read_data
from eventstore.parquet.errors import Damage, ExportDamaged
from eventstore.parquet.files import (
    END,
    HEAD,
    MANIFESTS,
    STATEMENT_BYTES_MAX,
    TABLE_LOG,
    ExportPlace,
    open_place,
)
from eventstore.parquet.manifest import (
    DataFile,
    data_path,
    parse_manifest,
    positions_of,
    signed,
)
from eventstore.parquet.table import open_table
from eventstore.parquet.tree import read_tile, tile_at
from eventstore.parquet.verify.file import read_file
from eventstore.parquet.verify.index import IndexCheck
from eventstore.parquet.verify.manifests import Leftovers, read_manifests
from eventstore.parquet.versions import (
    commit_path,
    is_torn,
    parse_version,
    read_mark,
    read_summary,
    version_of,
)
from tests.export.forging import SIGNER, SampleExport, with_value
from tests.export.samples import VERIFY

_MIB = 1 << 20


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> SampleExport:
    return SampleExport(tmp_path_factory.mktemp("sample"))


@pytest.fixture
def file(sample: SampleExport) -> Iterator[DataFile]:
    with sample.tampered():
        yield sample.files[min(sample.files)]


@contextmanager
def peak_bytes() -> Iterator[list[int]]:
    """The most memory that Arrow holds meanwhile."""
    before, found = pa.default_memory_pool(), list[int]()
    watched = pa.proxy_memory_pool(before)
    pa.set_memory_pool(watched)
    try:
        yield found
    finally:
        pa.set_memory_pool(before)
        found.append(watched.max_memory())


def expanding(table: pa.Table) -> bytes:
    """A file of some kilobytes with one text of a mebibyte in each of its rows."""
    names = pa.DictionaryArray.from_arrays(
        pa.array([0] * table.num_rows, pa.int32()), pa.array(["a" * _MIB])
    )
    table = table.set_column(table.schema.get_field_index("identity"), "identity", names)
    sink = pa.BufferOutputStream()
    pq.write_table(
        table,
        sink,
        compression="zstd",
        write_statistics=False,
        dictionary_pagesize_limit=2 * _MIB,
        store_schema=False,
    )
    return bytes(sink.getvalue())


@pytest.mark.parametrize("is_padded", [True, False])
def test_a_file_that_decodes_to_far_more_than_it_has_is_named_and_not_decoded(
    sample: SampleExport, file: DataFile, *, is_padded: bool
) -> None:
    content = expanding(pa.concat_tables([sample.tables[file.path]] * 8))
    sample.put(file.path, content)
    said = replace(file, bytes=len(content)) if is_padded else file
    with peak_bytes() as peak:
        found = read_file(sample.place, said)
        assert (found.table, found.is_whole) == (None, False)
    assert peak[0] < 8 * _MIB
    (named,) = found.findings
    assert named.fault is (Damage.CHANGED if is_padded else Damage.TRUNCATED)
    assert (named.path, named.first_position, named.last_position) == (
        file.path,
        file.first,
        file.last,
    )


def test_a_file_that_a_manifest_without_a_valid_signature_names_is_not_decoded(
    sample: SampleExport, file: DataFile
) -> None:
    content = expanding(pa.concat_tables([sample.tables[file.path]] * 8))
    manifest = sample.manifest_of(file.path)
    sha256 = hashlib.sha256(content).hexdigest()
    forged = replace(manifest, files=[replace(file, bytes=len(content), sha256=sha256)])
    sample.put(file.path, content)
    sample.put(manifest.path, rfc8785.dumps(msgspec.to_builtins(forged)))
    with peak_bytes() as peak:
        found = sample.check()[0]
    assert peak[0] < 8 * _MIB
    assert (Damage.BAD_SIGNATURE, manifest.path) in {(one.fault, one.path) for one in found}


def test_a_file_that_grew_is_named_and_what_it_grew_by_is_not_read(
    sample: SampleExport, file: DataFile
) -> None:
    place = Watched(sample.place.filesystem, sample.place.root)
    sample.put(file.path, sample.contents[file.path] + bytes(_MIB))
    (named,) = read_file(place, file).findings
    assert (named.fault, named.path) == (Damage.TRUNCATED, file.path)
    assert f"at least {file.bytes + 1} bytes" in named.explanation
    with pytest.raises(ExportDamaged, match="SHA-256"):
        read_data(place, file)
    assert place.most == file.bytes + 1


def test_a_tile_that_grew_is_named_and_what_it_grew_by_is_not_read(sample: SampleExport) -> None:
    path = next(path for path in sample.paths if tile_at(path))
    tile = tile_at(path)
    assert tile is not None
    with sample.tampered():
        sample.put(path, sample.contents[path] + bytes(_MIB))
        with pytest.raises(ExportDamaged, match=f"{tile.size_bytes + 1} bytes"):
            read_tile(sample.place, tile)
        assert path in {one.path for one in sample.check()[0]}


class Watched(ExportPlace):
    """A place that notes the most bytes that were read of a file at once."""

    most = 0

    def read(self, path: str, bytes_max: int | None = None) -> bytes:
        content = super().read(path, bytes_max)
        self.most = max(self.most, len(content))
        return content


def grown(sample: SampleExport) -> Iterator[tuple[str, bool]]:
    """A file of each kind but tiles, data and index files; and whether each reader reads it."""
    version = catalog_of(sample.place, VERIFY).version
    assert version is not None
    manifests = sample.manifests[0].path, sample.manifests[-1].path
    for path in (HEAD, END, newest_commit(sample), version.summary, *manifests):
        yield path, True
    yield min(path for path in sample.paths if version_of(path) >= 0), False
    for name in version.checkpoint:
        yield f"{TABLE_LOG}/{name}", False


def test_no_file_of_an_export_is_read_beyond_its_bound(
    sample: SampleExport, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("files", "manifest", "versions"):
        monkeypatch.setattr(f"eventstore.parquet.{module}.STATEMENT_BYTES_MAX", _MIB)
    for path, is_read in [*grown(sample)]:
        place = Watched(sample.place.filesystem, sample.place.root)
        with sample.tampered():
            os.truncate(place.full_path(path), 4 * _MIB)
            contents = read_manifests(place, VERIFY)
            assert path in {one.path for one in contents.findings}
            with pytest.raises(ExportDamaged) if is_read else nullcontext() as refused:
                catalog_of(place, VERIFY, is_listed=False, is_whole=True)
            assert refused is None or refused.value.path == path
        assert place.most <= _MIB + 1


def test_an_index_file_that_grew_is_named_and_what_it_grew_by_is_not_read(
    sample: SampleExport,
) -> None:
    index = catalog_of(sample.place, VERIFY, is_listed=False).index
    assert index is not None
    file = index.files[0]
    place = Watched(sample.place.filesystem, sample.place.root)
    with sample.tampered():
        os.truncate(place.full_path(file.path), 4 * _MIB)
        check = IndexCheck(place, index)
        assert file.path in {one.path for one in check.end()}
    assert place.most == len(sample.contents[file.path]) + 1


def test_a_summary_may_have_as_much_as_its_signed_number_of_files_needs(
    sample: SampleExport, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = catalog_of(sample.place, VERIFY).version
    assert whole is not None
    assert whole.summary
    monkeypatch.setattr("eventstore.parquet.versions.STATEMENT_BYTES_MAX", 1)
    assert read_summary(sample.place, whole)


def test_json_of_a_statement_is_not_made_into_more_than_it_says(sample: SampleExport) -> None:
    """A list of lists takes some twenty times the memory of its text."""
    path = sample.manifests[0].path
    content = sample.contents[path][:-1] + b',"x":[' + b"[]," * _MIB + b"[]]}"
    tracemalloc.start()
    with pytest.raises(ExportDamaged, match="x"):
        parse_manifest(path, content, VERIFY)
    with pytest.raises(ExportDamaged, match="no signed statement"):
        parse_version(1, b'{"add":' + content + b"}\n", VERIFY)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * len(content)


def test_strays_of_many_unreadable_manifests_are_found_in_one_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = Counter[str]()

    def counted(path: str) -> tuple[int, int]:
        calls[path] += 1
        return positions_of(path)

    monkeypatch.setattr("eventstore.parquet.verify.manifests.positions_of", counted)
    lost = [f"{MANIFESTS}/{first:020d}-{first + 4:020d}.json" for first in range(1, 90, 10)]
    data = [data_path("2030-01-01", at, at + 1, "0" * 16) for at in range(1, 100)]
    place = open_place("/nowhere")
    strays = Leftovers(place, data, [], [], lost).strays([])
    assert set(calls.values()) == {1}
    kept = {path for path in data if positions_of(path)[0] % 10 in (0, 5, 6, 7, 8, 9)}
    assert strays == kept | set(data[90:])


def test_rows_with_an_event_of_a_later_release_are_checked_all_the_same(
    sample: SampleExport, file: DataFile
) -> None:
    manifest, (topic, *_) = sample.manifest_of(file.path), file.types
    types = {f"{name}0" if name == topic else name: count for name, count in file.types.items()}
    files = [replace(each, types=types) if each == file else each for each in manifest.files]
    sample.sign(manifest, files=files)
    contents = read_manifests(sample.place, VERIFY)
    found = [(one.fault, one.path) for one in contents.findings]
    assert found == [(Damage.UNKNOWN_EVENT, file.path)]
    assert [part.manifest.path for part in contents.parts] == [m.path for m in sample.manifests]


@pytest.mark.parametrize("kind", ["no JSON", "not as it was signed", "a head that is no digest"])
def test_files_that_a_damaged_manifest_may_name_are_not_called_strays(
    sample: SampleExport, file: DataFile, kind: str
) -> None:
    manifest, before = sample.manifest_of(file.path), read_manifests(sample.place, VERIFY)
    content = sample.contents[manifest.path]
    if kind == "no JSON":
        content = content[:-1]
    elif kind == "not as it was signed":
        content = content.replace(b'"stands_for":"', b'"stands_for":"0')
    else:
        digest = next(iter(manifest.heads.values())).digest.encode()
        content = content.replace(digest, b"x" * len(digest))
    sample.put(manifest.path, content)
    after = read_manifests(sample.place, VERIFY)
    assert manifest.path in {one.path for one in after.findings}
    assert manifest.path not in {part.manifest.path for part in after.parts}
    assert after.strays == before.strays


def test_files_inside_the_wider_of_two_damaged_manifests_are_not_called_strays() -> None:
    lost = [f"{MANIFESTS}/{first:020d}-{last:020d}.json" for first, last in ((1, 90), (10, 20))]
    data = [data_path("2030-01-01", at, at + 1, "0" * 16) for at in (5, 30, 88, 90)]
    strays = Leftovers(open_place("/nowhere"), data, [], [], lost).strays([])
    assert strays == {data[-1]}


def newest_commit(sample: SampleExport) -> str:
    return max(path for path in sample.paths if version_of(path) >= 0)


@pytest.mark.parametrize("kind", ["nested", "nested checkpoint", "checkpoint in parts", "large"])
def test_what_would_end_the_process_is_not_shown_to_the_library_of_the_table(
    sample: SampleExport, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    path, content = newest_commit(sample), b"[" * 200_000 + b"]" * 200_000
    if kind == "nested checkpoint":
        path = path.replace(".json", f".checkpoint.{UUID(int=1)}.json")
    elif kind == "checkpoint in parts":
        path = path.replace(".json", f".checkpoint.{1:010d}.{1:010d}.parquet")
    elif kind == "large":
        monkeypatch.setattr("eventstore.parquet.manifest.STATEMENT_BYTES_MAX", _MIB)
        content = sample.contents[path] + b" " * _MIB
    with sample.tampered():
        sample.put(path, content)
        with pytest.raises(ExportDamaged) as refused:
            open_table(sample.place)
    assert refused.value.path == path


def test_a_checkpoint_of_a_later_version_hides_no_commit_from_the_look_at_them(
    sample: SampleExport,
) -> None:
    path = newest_commit(sample)
    later = f"{TABLE_LOG}/{version_of(path) + 1:020d}.checkpoint.parquet"
    with sample.tampered():
        sample.put(path, b"[" * 200_000 + b"]" * 200_000)
        sample.put(later, b"any")
        with pytest.raises(ExportDamaged) as refused:
            open_table(sample.place, version_of(path))
    assert (refused.value.damage, refused.value.path) == (Damage.BROKEN_COMMIT, path)


def test_a_checkpoint_that_was_changed_is_not_decoded_to_open_an_export(
    sample: SampleExport,
) -> None:
    path = max(path for path in sample.paths if path.endswith(".checkpoint.parquet"))
    with sample.tampered():
        sample.put(path, sample.contents[path] + b"more")
        with pytest.raises(ExportDamaged, match="the signed one") as refused:
            catalog_of(sample.place, VERIFY)
    assert (refused.value.damage, refused.value.path) == (Damage.CHANGED, path)


def test_a_hint_at_the_newest_checkpoint_that_grew_is_not_shown_to_the_library(
    sample: SampleExport,
) -> None:
    path = f"{TABLE_LOG}/_last_checkpoint"
    with sample.tampered():
        os.truncate(sample.place.full_path(path), STATEMENT_BYTES_MAX + 1)
        with pytest.raises(ExportDamaged) as refused:
            catalog_of(sample.place, VERIFY)
    assert (refused.value.damage, refused.value.path) == (Damage.CHANGED, path)


class Losing(ExportPlace):
    """A place that loses its checkpoints once the log of the table was listed."""

    def sizes(self, folder: str) -> dict[str, int]:
        found = super().sizes(folder)
        for path in filter(lambda path: path.endswith(".checkpoint.parquet"), found):
            Path(self.full_path(path)).unlink()
        return found


def test_an_export_whose_checkpoint_is_removed_while_it_is_opened_is_refused(
    sample: SampleExport,
) -> None:
    place = Losing(sample.place.filesystem, sample.place.root)
    with sample.tampered(), pytest.raises(ExportDamaged, match="checkpoint"):
        catalog_of(place, VERIFY)


@pytest.mark.parametrize("is_listed", [False, True])
def test_an_export_whose_newest_commit_is_nested_without_end_is_refused(
    sample: SampleExport, *, is_listed: bool
) -> None:
    path = newest_commit(sample)
    with sample.tampered():
        sample.put(path, b"[" * 200_000 + b"]" * 200_000)
        with pytest.raises(ExportDamaged) as refused:
            catalog_of(sample.place, VERIFY, is_listed=is_listed)
    assert (refused.value.damage, refused.value.path) == (Damage.BROKEN_COMMIT, path)


def test_a_mark_that_was_put_back_lets_no_checkpoint_in_that_is_not_due(
    sample: SampleExport,
) -> None:
    mark = read_mark(sample.place, None)
    assert mark is not None
    before = commit_path(mark.version - 1)
    commit = hashlib.sha256(sample.contents[before]).hexdigest()
    older = replace(mark, version=mark.version - 1, commit=commit, signature="")
    name = f"{TABLE_LOG}/{mark.version:020d}.checkpoint.parquet"
    assert name not in sample.paths
    with sample.tampered():
        sample.put(END, signed(older, SIGNER.sign)[1])
        DeltaTable(sample.place.table.uri).create_checkpoint()
        with pytest.raises(ExportDamaged) as refused:
            catalog_of(sample.place, VERIFY)
        assert (refused.value.damage, refused.value.path) == (Damage.STRAY, name)
        found = {(one.fault, one.path) for one in read_manifests(sample.place, VERIFY).findings}
    assert (Damage.STRAY, name) in found


def test_a_commit_that_is_nested_without_end_is_named(sample: SampleExport) -> None:
    path = max(path for path in sample.paths if version_of(path) >= 0)
    nested = b"[" * 100_000 + b"]" * 100_000
    with sample.tampered():
        sample.put(path, nested)
        assert (Damage.BROKEN_COMMIT, path) in {(f.fault, f.path) for f in sample.check()[0]}
    assert is_torn(nested)


@pytest.mark.parametrize("position", [1, 0, -5])
def test_a_row_with_a_position_before_its_manifest_is_named_though_all_is_signed(
    sample: SampleExport, position: int
) -> None:
    path = sorted(sample.files)[1]
    with sample.tampered():
        sample.forge(path, lambda table: with_value(table, 3, "position", position))
        found, _ = sample.check()
    assert (Fault.WRONG_POSITION, path, 3) in {(one.fault, one.path, one.row) for one in found}
