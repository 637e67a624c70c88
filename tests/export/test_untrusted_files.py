"""What someone puts in place of an export's file costs no more memory than the file itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from eventstore.log.faults import Fault
from eventstore.parquet.catalog import read_data
from eventstore.parquet.errors import Damage, ExportDamaged
from eventstore.parquet.files import ExportPlace
from eventstore.parquet.manifest import DataFile
from eventstore.parquet.tree import read_tile, tile_at
from eventstore.parquet.verify.file import read_file
from eventstore.parquet.versions import is_torn, version_of
from tests.export.forging import SampleExport, with_value

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


def test_a_file_that_grew_is_named_and_what_it_grew_by_is_not_read(
    sample: SampleExport, file: DataFile
) -> None:
    read_bytes: list[int] = []

    class Watched(ExportPlace):
        def read(self, path: str, bytes_max: int | None = None) -> bytes:
            content = super().read(path, bytes_max)
            read_bytes.append(len(content))
            return content

    place = Watched(sample.place.filesystem, sample.place.root)
    sample.put(file.path, sample.contents[file.path] + bytes(_MIB))
    (named,) = read_file(place, file).findings
    assert (named.fault, named.path) == (Damage.TRUNCATED, file.path)
    assert f"at least {file.bytes + 1} bytes" in named.explanation
    with pytest.raises(ExportDamaged, match="SHA-256"):
        read_data(place, file)
    assert read_bytes == [file.bytes + 1] * 2


def test_a_tile_that_grew_is_named_and_what_it_grew_by_is_not_read(sample: SampleExport) -> None:
    path = next(path for path in sample.paths if tile_at(path))
    tile = tile_at(path)
    assert tile is not None
    with sample.tampered():
        sample.put(path, sample.contents[path] + bytes(_MIB))
        with pytest.raises(ExportDamaged, match=f"{tile.size_bytes + 1} bytes"):
            read_tile(sample.place, tile)
        assert path in {one.path for one in sample.check()[0]}


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
