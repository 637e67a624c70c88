"""What other programs go by to leave out parts of an export is true, or named though it is signed.

The row stays where it was, with its seal and its place in the tree: who reads all rows finds it.
Who has a program look for it does not.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import Schema
from msgspec.structs import replace

from eventstore.parquet.errors import Damage
from eventstore.parquet.files import ExportPlace
from eventstore.parquet.manifest import DataFile
from eventstore.parquet.schema import PARQUET_OPTIONS
from eventstore.parquet.table import ARROW_SCHEMA, statistics_in
from eventstore.parquet.verify.file import misleading
from eventstore.parquet.versions import commit_path
from tests.export.forging import SampleExport, with_value


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> SampleExport:
    return SampleExport(tmp_path_factory.mktemp("sample"))


def _footer(table: pa.Table, **options: Any) -> Any:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **{**PARQUET_OPTIONS, **options})
    return pq.read_metadata(pa.BufferReader(sink.getvalue()))


def _wrong(file: DataFile, footer: Any, table: pa.Table) -> list[set[str]]:
    found = [*misleading(file, footer, table)]
    assert {(one.fault, one.path) for one in found} <= {(Damage.CHANGED, file.path)}
    return [{*one.explanation.rpartition(": ")[2].split(", ")} for one in found]


def test_statistics_that_no_row_of_their_group_contradicts_are_accepted(
    sample: SampleExport,
) -> None:
    for path, table in sample.tables.items():
        assert _wrong(sample.files[path], _footer(table, row_group_size=7), table) == []


@pytest.mark.parametrize(
    ("column", "value"),
    [
        *(("position", 10**6), ("position", 0), ("type", "a"), ("type", "z"), ("shard", None)),
        *(("recorded_at", 0), ("stream", bytes(16)), ("message_id", "~"), ("will_queue", True)),
        ("expires_at_s", -1.0),
    ],
)
def test_bounds_that_leave_out_a_row_are_named_with_their_group(
    sample: SampleExport, column: str, value: object
) -> None:
    path, table = next(iter(sample.tables.items()))
    changed = with_value(table, 9, column, value)
    footer = _footer(table, row_group_size=7)
    assert _wrong(sample.files[path], footer, changed) == [{column}]
    assert "row group 1 " in next(misleading(sample.files[path], footer, changed)).explanation


@pytest.mark.parametrize(
    ("options", "columns"),
    [
        ({"write_page_index": True}, {"position", "type", "state"}),
        ({"bloom_filter_options": {"type": {"ndv": 9, "fpp": 0.01}}}, {"type"}),
        ({"write_statistics": True}, set[str]()),
    ],
)
def test_indexes_that_no_exporter_writes_are_named(
    sample: SampleExport, options: dict[str, Any], columns: set[str]
) -> None:
    path, table = next(iter(sample.tables.items()))
    (wrong,) = _wrong(sample.files[path], _footer(table, **options), table)
    assert columns <= wrong
    assert columns or all(".list.element" in name for name in wrong)


def _with_last_position(content: bytes, file: DataFile, said: int) -> bytes:
    """Let the footer of a file say another greatest position."""
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    last, other = (struct.pack("<q", position) for position in (file.last, said))
    return content[:footer] + content[footer:].replace(last, other)


def test_a_row_that_programs_pass_over_is_named_though_all_is_signed(sample: SampleExport) -> None:
    file = next(file for file in sample.files.values() if file.rows > 2)
    manifest = sample.manifest_of(file.path)
    forged = _with_last_position(sample.contents[file.path], file, file.first)
    looked_for = pc.field("position") == file.last
    sha256 = hashlib.sha256(forged).hexdigest()
    files = [replace(f, sha256=sha256) if f.path == file.path else f for f in manifest.files]
    with sample.tampered():
        full_path = sample.place.full_path(file.path)
        assert ds.dataset(full_path).to_table(filter=looked_for).num_rows == 1
        sample.put(file.path, forged)
        sample.sign(manifest, files=files)
        assert ds.dataset(full_path).to_table(filter=looked_for).num_rows == 0
        assert [(f.fault, f.path) for f in sample.check()[0]] == [(Damage.CHANGED, file.path)]


Lie = Callable[[pytest.MonkeyPatch, str], None]


def _about(kind: str, column: str = "version", bound: object = 5) -> Lie:
    def lie(patch: pytest.MonkeyPatch, path: str) -> None:
        def lying(place: ExportPlace, of: str) -> Any:
            said = statistics_in(place, of)
            return said | ({kind: said[kind] | {column: bound}} if of == path else {})

        patch.setattr("eventstore.parquet.write.table.statistics_in", lying)

    return lie


def _about_days(patch: pytest.MonkeyPatch, path: str) -> None:
    def day(file: DataFile) -> str:
        found: str = file.path.split("/")[1].removeprefix("date=")
        return "2000-01-01" if file.path == path else found

    patch.setattr(DataFile, "day", property(day))


@pytest.mark.parametrize(
    "lie",
    [
        *map(_about, ("minValues", "maxValues", "nullCount")),
        _about("minValues", "type", "z" * 300),
        _about_days,
    ],
)
def test_an_entry_of_the_table_that_leads_past_a_file_is_named_though_all_is_signed(
    sample: SampleExport, lie: Lie
) -> None:
    path = next(iter(sample.files))
    with sample.tampered():
        sample.commit(sample.statements)
        assert sample.check()[0] == []
        with pytest.MonkeyPatch.context() as patch:
            lie(patch, path)
            sample.commit(sample.statements)
        assert [(f.fault, f.path) for f in sample.check()[0]] == [(Damage.BROKEN_COMMIT, path)]


def test_a_table_of_other_columns_is_named_though_all_is_signed(sample: SampleExport) -> None:
    at = ARROW_SCHEMA.get_field_index("reason")
    other = ARROW_SCHEMA.set(at, ARROW_SCHEMA.field(at).with_name("grounds"))
    with sample.tampered():
        with pytest.MonkeyPatch.context() as patch:
            schema = Schema.from_arrow(other)
            patch.setattr("eventstore.parquet.write.table.DELTA_SCHEMA", schema)
            sample.commit(sample.statements)
        found = [(f.fault, f.path) for f in sample.check()[0]]
    assert found == [(Damage.BROKEN_COMMIT, commit_path(0))]
