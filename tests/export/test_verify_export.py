"""The check of an export names every change to its files, signed or not, and where it is."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from eventstore.log.events import SEAL_TOPIC
from eventstore.log.faults import Fault, Head
from eventstore.log.public_key import PublicKey
from eventstore.log.verify import Summary, verify
from eventstore.parquet.errors import Damage
from eventstore.parquet.files import END, HEAD, open_place
from eventstore.parquet.manifest import is_data, is_manifest
from eventstore.parquet.schema import SCHEMA
from eventstore.parquet.tree import CHECKPOINT
from eventstore.parquet.verify.export import verify_export
from eventstore.parquet.verify.findings import ExportFinding
from eventstore.parquet.versions import version_of
from eventstore.stores.open_log import open_log
from http_edge.crypto import signatures
from tests.export.forging import SIGNER, TRUSTED, SampleExport, with_value, without

FEW = settings(max_examples=20, deadline=None)


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> SampleExport:
    return SampleExport(tmp_path_factory.mktemp("sample"))


@pytest.fixture(scope="module")
def in_log(sample: SampleExport) -> Summary:
    """What the check of the log itself says."""
    with closing(open_log(sample.log_url)) as log:
        *_, summary = verify(log)
    assert isinstance(summary, Summary)
    return summary


def named(findings: Sequence[ExportFinding], path: str, row: int | None = None) -> bool:
    return any(f.path == path and (row is None or f.row == row) for f in findings)


def position_of(sample: SampleExport, path: str, row: int) -> int:
    return int(sample.tables[path]["position"][row].as_py())


def covered(findings: Sequence[ExportFinding], position: int) -> bool:
    """Whether a finding covers the position or adjoins it."""
    return any(
        f.first_position is not None
        and f.last_position is not None
        and f.first_position - 1 <= position <= f.last_position + 1
        for f in findings
    )


def test_an_unchanged_export_has_no_finding(sample: SampleExport, in_log: Summary) -> None:
    assert any(m.replaces for m in sample.manifests)
    assert any(len(m.files) > 1 for m in sample.manifests)
    assert any(map(is_manifest, sample.strays))
    assert {p for t in sample.tables.values() for p in t["protocol"].to_pylist()} == {
        None,
        "decentrl",
        "didcomm",
        "didcomm/v2",
    }
    findings, summary = sample.check()
    assert findings == []
    assert summary.heads == in_log.heads
    assert summary.key_is_trusted
    assert summary.signed_by == SIGNER.signed_by
    assert (summary.position, summary.rows, summary.seals, summary.streams) == (
        in_log.position,
        in_log.rows,
        in_log.seals,
        in_log.streams,
    )


def test_processes_find_what_one_finds(
    sample: SampleExport, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sample.tampered():
        path = sorted(sample.files)[1]
        sample.forge(path, lambda table: with_value(table, 3, "reason", "forged"))
        sample.remove(sorted(sample.files)[2])
        one = sample.check()
        monkeypatch.setattr("eventstore.parquet.verify.export.ROWS_PER_PROCESS", 1)
        monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
        assert sample.check() == one
        assert named(one[0], path, 3)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_flipped_bit_is_named_in_any_file(sample: SampleExport, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(sample.paths))
    content = bytearray(sample.contents[path])
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    key = data.draw(st.sampled_from([TRUSTED, None]))
    with sample.tampered():
        sample.put(path, bytes(content))
        assert named(sample.check(key)[0], path)


def test_a_signature_in_other_letters_is_named(sample: SampleExport) -> None:
    # The same signature to a reader, and other bytes to the chain.
    for path in (HEAD, sample.manifests[-1].path):
        with sample.tampered():
            content = json.loads(sample.contents[path])
            signature = content["signature"]
            upper = sample.contents[path].replace(signature.encode(), signature.upper().encode())
            sample.put(path, upper)
            assert [(f.fault, f.path) for f in sample.check()[0]] == [
                (Damage.BROKEN_MANIFEST, path)
            ]


def superseded(sample: SampleExport) -> list[str]:
    """The checkpoints that a newer one has taken the place of."""
    return sorted(path for path in sample.paths if path.endswith(".checkpoint.parquet"))[:-1]


@FEW
@given(data=st.data())
def test_a_file_that_is_cut_or_gone_is_named(sample: SampleExport, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from([p for p in sample.paths if p not in sample.strays]))
    length = data.draw(st.integers(-1, len(sample.contents[path]) - 1))
    with sample.tampered():
        if length < 0:
            sample.remove(path)
        else:
            sample.put(path, sample.contents[path][:length])
        findings, _ = sample.check()
        if length < 0 and (version_of(path) == 0 or path in superseded(sample)):
            # The oldest commits go when they are too old; a checkpoint stands for them, and
            # the newest one for all before it.
            assert findings == []
        elif is_data(path):
            assert [(f.fault is Damage.MISSING, f.path) for f in findings] == [(length < 0, path)]
        elif length < 0 and is_manifest(path):
            # What it would have said is missing, and its files are named by none.
            lost = next(m for m in sample.manifests if m.path == path)
            assert all(named(findings, file.path) for file in lost.files)
        else:
            assert named(findings, path)


@pytest.mark.parametrize("is_moved", [True, False])
def test_a_file_under_another_name_is_named(sample: SampleExport, *, is_moved: bool) -> None:
    for path in (HEAD, sample.manifests[1].path, *list(sample.files)[-2:], sample.strays[0]):
        number = re.search(r"\d{20}", path)
        other = path.replace(number[0], f"{int(number[0]) + 1:020d}", 1) if number else "events/x"
        with sample.tampered():
            sample.put(other, sample.contents[path])
            if is_moved:
                sample.remove(path)
            findings, _ = sample.check()
            assert named(findings, other)
            if is_moved and path in sample.files:
                assert named(findings, path)


def test_two_files_that_were_swapped_are_both_named(sample: SampleExport) -> None:
    for kind in (is_data, is_manifest):
        one, other, *_ = filter(kind, [p for p in sample.paths if p not in sample.strays])
        with sample.tampered():
            sample.put(one, sample.contents[other])
            sample.put(other, sample.contents[one])
            findings, _ = sample.check()
            assert named(findings, one)
            assert named(findings, other)


@FEW
@given(data=st.data())
def test_a_row_that_was_cut_out_is_named_though_all_is_signed(
    sample: SampleExport, data: st.DataObject
) -> None:
    path = data.draw(st.sampled_from(sorted(sample.files)))
    row = data.draw(st.integers(0, sample.files[path].rows - 1))
    position = position_of(sample, path, row)
    stream = UUID(bytes=sample.tables[path]["stream"][row].as_py())
    manifest = sample.manifest_of(path)
    with sample.tampered():
        sample.forge(path, lambda table: without(table, [row]))
        findings, _ = sample.check()
        # A seal of nothing is missed by the next of its partition, or by the heads.
        by_chain = {f.stream for f in findings} | {f.path for f in findings}
        assert covered(findings, position) or by_chain & {stream, manifest.path}


@FEW
@given(data=st.data())
def test_a_row_that_was_put_in_is_named_though_all_is_signed(
    sample: SampleExport, data: st.DataObject
) -> None:
    path = data.draw(st.sampled_from(sorted(sample.files)))
    source = data.draw(st.sampled_from(sorted(sample.files)))
    row = data.draw(st.integers(0, sample.files[path].rows - 1))
    copied = data.draw(st.integers(0, sample.files[source].rows - 1))
    position = position_of(sample, path, row)

    def put_in(table: pa.Table) -> pa.Table:
        added = with_value(sample.tables[source].slice(copied, 1), 0, "position", position)
        return pa.concat_tables([table.slice(0, row), added, table.slice(row)])

    with sample.tampered():
        sample.forge(path, put_in)
        findings, _ = sample.check()
        assert covered(findings, position)


@FEW
@given(data=st.data())
def test_rows_that_changed_places_are_named_though_all_is_signed(
    sample: SampleExport, data: st.DataObject
) -> None:
    path = data.draw(st.sampled_from(sorted(p for p in sample.files if sample.files[p].rows > 1)))
    table = sample.tables[path]
    low = data.draw(st.integers(0, table.num_rows - 2))
    high = data.draw(st.integers(low + 1, table.num_rows - 1))
    keeps_positions = data.draw(st.booleans())
    seal = SEAL_TOPIC.rpartition(".")[0]
    # Whole transactions of two partitions: nothing seals their order.
    assume({seal} != {table["type"][row].as_py() for row in (low, high)} or not keeps_positions)

    def swap(table: pa.Table) -> pa.Table:
        order = list(range(table.num_rows))
        order[low], order[high] = high, low
        swapped = table.take(order)
        index = table.schema.get_field_index("position")
        if keeps_positions:
            swapped = swapped.set_column(index, table.schema.field(index), table["position"])
        return swapped

    with sample.tampered():
        sample.forge(path, swap)
        findings, _ = sample.check()
        if keeps_positions:
            assert covered(findings, position_of(sample, path, low))
            assert covered(findings, position_of(sample, path, high))
        else:
            assert {f.fault for f in findings} & {Fault.WRONG_POSITION, Damage.MISPLACED}


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_value_that_was_changed_is_named_to_its_row_though_all_is_signed(
    sample: SampleExport, data: st.DataObject
) -> None:
    column = data.draw(st.sampled_from(SCHEMA.names))
    path = data.draw(st.sampled_from(sorted(sample.files)))
    table = sample.tables[path]
    row = data.draw(st.integers(0, table.num_rows - 1))
    before = table[column][row].as_py()
    after = _another(table.schema.field(column).type, before)
    is_null = before is not None and table.schema.field(column).nullable
    if is_null and data.draw(st.booleans()):
        after = None
    with sample.tampered():
        forged = sample.forge(path, lambda table: with_value(table, row, column, after))
        findings, _ = sample.check()
        if column == "position":
            assert findings
            assert {f.fault for f in findings} & {Fault.WRONG_POSITION, Damage.MISPLACED}
            return
        if column == "identity":
            # Of a stream that began in another file, the rows where it changes are reported.
            reported = [f for f in findings if f.explanation.startswith("identity")]
            assert {f.stream.bytes for f in reported if f.stream} == {table["stream"][row].as_py()}
            return
        if column in ("stream", "version", "type", "type_version", "state"):
            assert covered(findings, position_of(sample, path, row))
            return
        assert named(findings, forged.path, row)
        assert any(
            f.fault is Fault.WRONG_COLUMN and f.row == row and column in f.explanation
            for f in findings
        )


def _another(kind: pa.DataType, value: Any) -> Any:
    """A value of this type that is not this one."""
    if pa.types.is_fixed_size_binary(kind):
        return bytes([value[0] ^ 1]) + value[1:]
    if pa.types.is_binary(kind):
        return (value or b"") + b"x"
    if pa.types.is_string(kind):
        return (value or "") + "x"
    if pa.types.is_boolean(kind):
        return not value
    if pa.types.is_list(kind):
        return [*(value or []), _another(kind.value_type, None)]
    if pa.types.is_struct(kind):
        return {field.name: _another(field.type, None) for field in kind}
    if pa.types.is_timestamp(kind):
        at = value or datetime(2030, 1, 1, tzinfo=UTC)
        return at.replace(microsecond=at.microsecond ^ 1)
    return (value or 0) + 1


def test_two_rows_at_one_position_are_named_in_whatever_files_they_stand(
    sample: SampleExport,
) -> None:
    """Files of one manifest are cut by day, so each may be in order and both hold a position."""
    path = next(path for path in sorted(sample.files) if len(sample.manifest_of(path).files) > 1)
    last = sample.tables[path].num_rows - 1
    position = position_of(sample, path, last)
    with sample.tampered():
        sample.forge(path, lambda table: with_value(table, last, "position", position + 1))
        findings, _ = sample.check()
        assert {(f.fault, f.last_position) for f in findings} == {
            (Fault.WRONG_POSITION, position + 1)
        }


def test_what_is_no_utf8_or_of_other_columns_is_named(sample: SampleExport) -> None:
    path = min(sample.files)
    column = SCHEMA.get_field_index("reason")
    bad = pa.array([b"\xff"] * sample.files[path].rows, pa.binary()).view(pa.string())
    for change in (
        lambda table: table.set_column(column, SCHEMA.field(column), bad),
        lambda table: table.drop_columns(["reason"]),
        lambda table: table.append_column("more", table["reason"]),
        lambda table: table.replace_schema_metadata({"poste.schema": "2"}),
    ):
        with sample.tampered():
            sample.forge(path, change)
            findings, _ = sample.check()
            assert [(f.fault, f.path) for f in findings] == [(Damage.CHANGED, path)]


def test_an_unknown_version_of_an_event_is_named_to_its_row(sample: SampleExport) -> None:
    path = sorted(sample.files)[1]
    with sample.tampered():
        sample.forge(path, lambda table: with_value(table, 2, "type_version", 2))
        findings, _ = sample.check()
        assert Damage.UNKNOWN_EVENT in {f.fault for f in findings if f.path == path}
        row = next(f for f in findings if f.fault is Fault.UNKNOWN_TOPIC)
        assert (row.path, row.row) == (path, 2)
        assert row.last_position == position_of(sample, path, 2)


def test_a_file_on_another_day_is_named(sample: SampleExport) -> None:
    path = min(sample.files)
    manifest = sample.manifest_of(path)
    other = path.replace("date=2023-", "date=2022-")
    with sample.tampered():
        sample.put(other, sample.contents[path])
        sample.remove(path)
        sample.sign(manifest, files=[replace(sample.files[path], path=other)])
        findings, _ = sample.check()
        assert named(findings, other, 0)
        assert {f.fault for f in findings} == {Fault.WRONG_COLUMN}


def test_heads_that_the_rows_do_not_have_are_named(sample: SampleExport) -> None:
    manifest = sample.manifests[-1]
    name = min(manifest.heads)
    with sample.tampered():
        heads = {n: h for n, h in manifest.heads.items() if n != name}
        sample.sign(manifest, heads=heads | {"shard-99": manifest.heads[name]})
        found = sorted(sample.check()[0], key=lambda finding: finding.shard or "")
        assert {(one.fault, one.path) for one in found} == {(Fault.WRONG_HEAD, manifest.path)}
        said = "the newest seal in its rows is {}, it names another"
        assert [(one.shard, one.explanation) for one in found] == [
            (name, said.format(manifest.heads[name].version)),
            ("shard-99", said.format(0)),
        ]


def test_one_lost_file_is_one_finding(sample: SampleExport) -> None:
    for path in sample.files:
        with sample.tampered():
            sample.remove(path)
            findings, _ = sample.check()
            assert [(f.fault, f.path) for f in findings] == [(Damage.MISSING, path)]


def test_one_unreadable_manifest_is_one_finding(sample: SampleExport) -> None:
    for manifest in sample.manifests:
        for content in (b"{", b"", sample.contents[manifest.path].replace(b'"first":', b'"fi":')):
            with sample.tampered():
                sample.put(manifest.path, content)
                findings, _ = sample.check()
                assert [f.path for f in findings] == [manifest.path]


def test_a_forged_signature_is_one_finding_and_no_file_of_it_is_decoded(
    sample: SampleExport,
) -> None:
    manifest = sample.manifests[-2]
    assert not manifest.replaces
    with sample.tampered():
        content = sample.contents[manifest.path]
        sample.put(manifest.path, content.replace(manifest.signature.encode(), b"00" * 64))
        findings, summary = sample.check()
        assert [(f.fault, f.path) for f in findings] == [(Damage.BAD_SIGNATURE, manifest.path)]
        assert summary.rows == sum(m.rows for m in sample.manifests) - manifest.rows


def test_many_findings_are_counted_beyond_a_bound(
    sample: SampleExport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eventstore.parquet.verify.rows.FINDINGS_MAX", 5)
    path = max(sample.files, key=lambda path: sample.files[path].rows)
    index = SCHEMA.get_field_index("label")
    rows = sample.files[path].rows
    with sample.tampered():
        forged = pa.array(["forged"] * rows, pa.string())
        sample.forge(path, lambda table: table.set_column(index, SCHEMA.field(index), forged))
        findings, summary = sample.check()
        assert len(findings) == 5
        assert summary.findings == rows


def test_a_cut_end_is_seen_by_heads_that_are_known(sample: SampleExport, in_log: Summary) -> None:
    findings, summary = sample.check(known_heads=in_log.heads)
    assert findings == []
    assert summary.earlier_check_up_to == in_log.position
    last = sample.manifests[-1]
    with sample.tampered():
        for path in (last.path, *(file.path for file in last.files)):
            sample.remove(path)
        assert named(sample.check()[0], last.path)
        sample.commit(sample.statements[:-1])
        findings, _ = sample.check()
        assert [(f.fault, f.path) for f in findings] == [(Fault.MISSING_HEAD, CHECKPOINT)]
        sample.put_back_head(sample.manifests[-2])
        assert sample.check()[0] == []
        held = sample.note_of(sample.head_of(last))
        findings, _ = sample.check(witnessed={"held.txt": held})
        assert [(f.fault, f.path) for f in findings] == [(Fault.MISSING_HEAD, "held.txt")]
        findings, summary = sample.check(known_heads=in_log.heads)
        assert {f.fault for f in findings} == {Fault.MISSING_HEAD}
        assert {f.shard for f in findings} == {
            name
            for name, head in last.heads.items()
            if sample.manifests[-2].heads.get(name) != head
        }
        assert summary.position == sample.manifests[-2].last


def test_an_earlier_head_is_found_on_the_way(sample: SampleExport) -> None:
    early = sample.manifests[0]
    known = {
        name: Head(head.version, bytes.fromhex(head.digest)) for name, head in early.heads.items()
    }
    findings, summary = sample.check(known_heads=known)
    assert findings == []
    assert summary.earlier_check_up_to == early.last
    name = next(iter(known))
    forged = {**known, name: known[name]._replace(digest=bytes(32))}
    findings, _ = sample.check(known_heads=forged)
    assert [(f.fault, f.shard) for f in findings] == [(Fault.MISSING_HEAD, name)]


def test_without_a_trusted_key_the_summary_says_so(sample: SampleExport) -> None:
    findings, summary = sample.check(None)
    assert findings == []
    assert not summary.key_is_trusted
    other = PublicKey(signatures.public_key(bytes(32)))
    findings, summary = sample.check(other)
    assert summary.key_is_trusted
    every = {HEAD, END, *filter(is_manifest, sample.paths)}
    every |= {path for path in sample.paths if version_of(path) >= 0}
    assert {f.path for f in findings if f.fault is Damage.BAD_SIGNATURE} == every


def test_a_place_without_an_export_is_a_finding(tmp_path: Path) -> None:
    *findings, _ = verify_export(open_place(str(tmp_path / "none")), None)
    assert [(f.fault, f.path) for f in findings if isinstance(f, ExportFinding)] == [
        (Damage.MISSING, HEAD)
    ]


def test_progress_runs_to_all_rows(sample: SampleExport) -> None:
    steps: list[tuple[int, int]] = []
    list(verify_export(sample.place, None, progress=lambda at, end: steps.append((at, end))))
    rows = sum(manifest.rows for manifest in sample.manifests)
    assert steps[-1] == (rows, rows)
    assert steps == sorted(steps)
    assert len(steps) == len(sample.manifests)
