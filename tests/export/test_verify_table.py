"""The check of an export names every change to its table, and every statement that is wrong."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from contextlib import closing

import pyarrow as pa
import pytest
from msgspec.structs import replace

from eventstore.log.content import with_content, without_content
from eventstore.log.event_log import EventLog
from eventstore.log.faults import Fault
from eventstore.parquet.catalog import catalog_of
from eventstore.parquet.errors import Damage, ExportDamaged
from eventstore.parquet.files import END, HEAD, INDEX, SUMMARIES, TABLE_LOG, ExportPlace
from eventstore.parquet.manifest import (
    ExportHead,
    Signer,
    is_data,
    parse_manifest,
    parse_statement,
    signed,
)
from eventstore.parquet.schema import FORMAT
from eventstore.parquet.tree import CHECKPOINT, TREE
from eventstore.parquet.verify.export import verify_export
from eventstore.parquet.verify.findings import ExportFinding
from eventstore.parquet.verify.manifests import read_manifests
from eventstore.parquet.verify.table import TableCheck
from eventstore.parquet.versions import (
    commit_path,
    parse_version,
    read_mark,
    read_summary,
    version_of,
)
from eventstore.parquet.write.commit import write_data
from eventstore.parquet.write.exporter import ExportTimes
from tests.export.forging import TRUSTED, SampleExport, with_value
from tests.export.samples import SIGNER, Growing, exporter, findings, without_table


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> SampleExport:
    return SampleExport(tmp_path_factory.mktemp("sample"))


def test_a_flipped_bit_is_named_in_every_file_of_the_table(sample: SampleExport) -> None:
    of_table = [path for path in sample.paths if path.startswith((TABLE_LOG, SUMMARIES))]
    kinds = {path.partition(".")[2] for path in of_table}
    assert kinds == {"json", "checkpoint.parquet", ""}
    for path in [*of_table, END]:
        content = sample.contents[path]
        for at in (0, len(content) // 2, len(content) - 1):
            with sample.tampered():
                sample.put(path, content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :])
                findings, _ = sample.check()
                assert path in {finding.path for finding in findings}


def test_of_commits_that_others_name_by_their_hash_no_signature_is_checked(
    sample: SampleExport,
) -> None:
    checked: list[bytes] = []

    def verify(content: bytes, signature: bytes) -> bool:
        checked.append(content)
        return TRUSTED.verify(content, signature)

    *_, before, newest = filter(lambda path: version_of(path) >= 0, sample.paths)
    found = TableCheck(sample.place, verify, "").read()
    assert (found.findings, len(checked)) == ([], 2)  # the mark and the newest commit
    with sample.tampered():
        sample.put(before, sample.contents[before].replace(b'"', b"' ", 1))
        found = TableCheck(sample.place, verify, "").read()
        assert before in {finding.path for finding in found.findings}
        sample.remove(newest)
        checked.clear()
        TableCheck(sample.place, verify, "")
        assert len(checked) == 2  # the mark, and the commit before the one that cannot be read


def test_a_commit_that_is_changed_before_it_is_read_back_is_never_signed_for(
    sqlite_log: EventLog, place: ExportPlace
) -> None:
    """A later commit or mark with its SHA-256 would prove it to every check."""
    changed: list[str] = []

    class Raced(ExportPlace):
        """A place where a commit has another content as soon as it is there."""

        def sync(self, path: str) -> None:
            super().sync(path)
            if path in changed:
                previous = commit_path(version_of(path) - 1)
                self.write(previous, self.read(previous) + b"\n")
                sha256 = hashlib.sha256(self.read(previous)).hexdigest().encode()
                content = re.sub(rb'(previous\\":\\")\w+', rb"\g<1>" + sha256, self.read(path))
                self.write(path, content)

    growing = Growing(sqlite_log)
    with closing(exporter(sqlite_log, Raced(place.filesystem, place.root))) as export:
        growing.grow()
        assert export.step()
        growing.grow()
        changed.append(commit_path(export.catalog.next_version))
        for damage in (Damage.CHANGED, Damage.BAD_SIGNATURE):  # when written, and when read again
            with pytest.raises(ExportDamaged) as refused:
                export.step()
            assert (refused.value.damage, refused.value.path) == (damage, *changed)
    assert (Damage.BAD_SIGNATURE, *changed) in {(f.fault, f.path) for f in findings(place)}


@pytest.mark.parametrize(
    ("said", "instead", "damage"),
    [
        (rb'(\\"maxValues\\": \{\\"position\\": )\d+', rb"\g<1>1", Damage.CHANGED),
        (
            *(rb"\Z", b'\n{"protocol":{"minReaderVersion":1,"minWriterVersion":2}}'),
            Damage.CHANGED,
        ),
        (rb'(?s)(\{"add".*?"tags":)null(.*?\n)', rb"\g<0>\g<1>{}\g<2>", Damage.CHANGED),
        (rb'\{"add".*\n', b"", Damage.CHANGED),
        (rb"\Z", b'\n{"add":[1]}', Damage.CHANGED),
        (rb"\Z", b"\n[1]", Damage.BROKEN_COMMIT),
    ],
)
def test_a_commit_whose_actions_are_changed_before_it_is_read_back_is_never_signed_for(
    sqlite_log: EventLog, place: ExportPlace, said: bytes, instead: bytes, damage: Damage
) -> None:
    changed: list[str] = []

    class Raced(ExportPlace):
        def sync(self, path: str) -> None:
            super().sync(path)
            if path in changed:
                content = self.read(path)
                self.write(path, re.sub(said, instead, content, count=1))
                assert self.read(path) != content

    growing = Growing(sqlite_log)
    with closing(exporter(sqlite_log, Raced(place.filesystem, place.root))) as export:
        growing.grow()
        assert export.step()
        mark = place.read(END)
        growing.grow()
        changed.append(commit_path(export.catalog.next_version))
        with pytest.raises(ExportDamaged) as refused:
            export.step()
        assert (refused.value.damage, refused.value.path) == (damage, *changed)
        with pytest.raises(ExportDamaged):
            export.step()
    with pytest.raises(ExportDamaged):
        exporter(sqlite_log, place)
    assert place.read(END) == mark


def test_a_file_that_is_gone_from_the_log_of_the_table_is_named(sample: SampleExport) -> None:
    """The first commits may be gone, because a checkpoint stands for them."""
    mark = read_mark(sample.place, None)
    assert mark is not None
    _, *commits = filter(lambda path: version_of(path) >= 0, sample.paths)
    checkpoint = [f"{TABLE_LOG}/{name}" for name in mark.checkpoint]
    assert len(checkpoint) == 2
    for path in [*commits, *checkpoint]:
        with sample.tampered():
            sample.remove(path)
            fault = Damage.ROLLED_BACK if path == commits[-1] else Damage.MISSING
            assert (fault, path) in {(f.fault, f.path) for f in sample.check()[0]}


def test_commits_may_be_gone_up_to_a_checkpoint_and_no_further(sample: SampleExport) -> None:
    mark = read_mark(sample.place, None)
    assert mark is not None
    until = max(int(name.split(".")[0]) for name in mark.checkpoint if name[0] == "0")
    with sample.tampered():
        for path in filter(lambda path: 0 <= version_of(path) <= until, sample.paths):
            sample.remove(path)
        assert not any(version_of(finding.path) >= 0 for finding in sample.check()[0])
        sample.remove(commit_path(until + 1))
        assert commit_path(until + 1) in {finding.path for finding in sample.check()[0]}
    with sample.tampered():
        for path in (*filter(lambda path: version_of(path) >= until, sample.paths), END):
            sample.remove(path)
        lost = {(finding.fault, finding.path) for finding in sample.check()[0]}
        assert (Damage.ROLLED_BACK, commit_path(until)) in lost


def test_commits_that_changed_places_or_were_added_are_named(sample: SampleExport) -> None:
    *_, one, other = filter(lambda path: version_of(path) >= 0, sample.paths)
    with sample.tampered():
        sample.put(one, sample.contents[other])
        sample.put(other, sample.contents[one])
        assert {one, other} <= {finding.path for finding in sample.check()[0]}
    following = commit_path(version_of(other) + 1)
    last = commit_path(10**6)
    checkpoint = f"{TABLE_LOG}/{7:020d}.checkpoint.parquet"
    for added in (following, last, checkpoint, f"{TABLE_LOG}/more"):
        with sample.tampered():
            sample.put(added, sample.contents[other])
            found = sample.check()[0]
            assert added in {finding.path for finding in found}
            assert len(found) < 20, "a gap of any length is one finding"


def test_a_manifest_that_overlaps_another_is_named_and_not_the_one_behind_it(
    sample: SampleExport,
) -> None:
    manifest = sample.manifests[1]
    with sample.tampered():
        sample.sign(manifest, first=manifest.first - 1)
        findings, summary = sample.check()
        places = {f.path: f.fault for f in findings if f.fault in (Damage.OVERLAP, Damage.GAP)}
        assert summary.rows == sum(m.rows for m in sample.manifests if m is not manifest)
    assert places == {replace(manifest, first=manifest.first - 1).path: Damage.OVERLAP}


def test_an_export_that_names_no_usable_key_is_signed_by_no_one(sample: SampleExport) -> None:
    head = parse_statement(HEAD, sample.contents[HEAD], ExportHead)
    forged = replace(head, public_key="no key", signature="")
    with sample.tampered():
        sample.put(HEAD, signed(forged, SIGNER.sign)[1])
        findings, _ = sample.check(None)
    assert (Damage.BAD_SIGNATURE, HEAD) in {(f.fault, f.path) for f in findings}


def test_a_head_of_before_the_table_does_not_hide_a_forged_table(sample: SampleExport) -> None:
    """The mediator signed such a head when the export began, and anyone may have kept it."""
    head = parse_statement(HEAD, sample.contents[HEAD], ExportHead)
    *_, newest = filter(lambda path: version_of(path) >= 0, sample.paths)
    with sample.tampered():
        sample.put(HEAD, signed(replace(head, format=FORMAT, signature=""), SIGNER.sign)[1])
        for path in filter(lambda path: path.startswith((SUMMARIES, INDEX)), sample.paths):
            sample.remove(path)
        sample.put(newest, sample.contents[newest].replace(b'"add"', b'"remove"'))
        found = [(f.fault, f.path) for f in sample.check()[0]]
    assert found == [(Damage.ROLLED_BACK, HEAD)]


def test_a_forged_manifest_takes_no_place_from_a_sound_one(sample: SampleExport) -> None:
    manifest = sample.manifests[1]
    content = sample.contents[manifest.path].replace(manifest.signature.encode(), b"00" * 64)
    forged = manifest.path.replace(str(manifest.digest), "0" * 16)
    with sample.tampered():
        without_table(sample.place)
        sample.put(forged, content)
        findings, summary = sample.check()
    assert {f.path for f in findings if not f.path.startswith(TREE)} == {forged, HEAD}
    assert summary.rows == sum(m.rows for m in sample.manifests)


def test_a_statement_that_names_another_signer_is_named_though_its_signature_holds(
    sample: SampleExport,
) -> None:
    other = Signer("another", SIGNER.sign)
    with sample.tampered():
        sample.commit(sample.statements, other)
        found = {(f.fault, f.path) for f in sample.check()[0]}
    assert {(Damage.BAD_SIGNATURE, path) for path in (END, commit_path(0))} <= found
    with sample.tampered():
        sample.sign(sample.manifests[-1], signed_by="another")
        (finding,) = (f for f in sample.check()[0] if f.fault is Damage.BAD_SIGNATURE)
        with pytest.raises(ExportDamaged) as refused:
            catalog_of(sample.place, TRUSTED.verify)
    assert finding.path == refused.value.path == sample.manifests[-1].path
    assert refused.value.damage is Damage.BAD_SIGNATURE


def test_figures_that_a_file_does_not_have_are_named_though_all_is_signed(
    sample: SampleExport,
) -> None:
    manifest = sample.manifests[0]
    file, *others = manifest.files
    one, another, *_ = file.types
    more = file.types | {one: file.types[one] + 1}
    for figures in (
        {"state_bytes": file.state_bytes + 1},
        {"types": more | {another: file.types[another] - 1}},
        {"types": more, "rows": file.rows + 1},
    ):
        changed = replace(file, **figures)
        with sample.tampered():
            sample.sign(
                manifest, files=[changed, *others], rows=manifest.rows - file.rows + changed.rows
            )
            found = [f.fault for f in sample.check()[0] if f.path == file.path]
        assert found == [Damage.CHANGED] * len(figures)


@pytest.mark.parametrize("identity", [None, "did:web:another"])
@pytest.mark.parametrize("number", [0, -1], ids=["stream begins", "stream goes on"])
def test_an_identity_that_no_row_of_its_stream_has_is_named(
    sample: SampleExport, number: int, identity: str | None
) -> None:
    file = sample.manifests[number].files[0]
    rows = sample.tables[file.path].select(["stream", "version", "identity"]).to_pylist()
    begin = {row["stream"] for row in rows if row["version"] == 1}
    streams = (row["stream"] for row in rows if row["identity"])
    stream = next(one for one in streams if (one in begin) is (number == 0))

    def renamed(table: pa.Table) -> pa.Table:
        for index in (n for n, row in enumerate(rows) if row["stream"] == stream):
            table = with_value(table, index, "identity", identity)
        return table

    with sample.tampered():
        forged = sample.forge(file.path, renamed)
        found = {(finding.fault, finding.path) for finding in sample.check()[0]}
    assert (Fault.WRONG_COLUMN, forged.path) in found


def test_without_a_head_of_the_export_heads_that_others_hold_are_not_checked(
    sample: SampleExport,
) -> None:
    held = sample.note_of(sample.head_of(sample.manifests[0]))
    with sample.tampered():
        sample.remove(HEAD)
        findings, _ = sample.check(witnessed={"held.txt": held})
    assert [(f.fault, f.path) for f in findings] == [(Damage.MISSING, HEAD)]


def test_a_head_of_another_log_is_named_though_its_seals_are_these(sample: SampleExport) -> None:
    head = sample.head_of(sample.manifests[-1])
    with sample.tampered():
        sample.put(CHECKPOINT, sample.note_of(head._replace(origin="did:web:another")))
        found = {(finding.fault, finding.path) for finding in sample.check()[0]}
    assert (Damage.MISPLACED, CHECKPOINT) in found


def test_a_row_behind_the_last_seal_is_named_though_all_is_signed(sample: SampleExport) -> None:
    manifest = sample.manifests[-1]
    *others, file = manifest.files
    table, position = sample.tables[file.path], manifest.last + 1
    added = with_value(table.slice(0, 1), 0, "position", position)
    with sample.tampered():
        longer = write_data(sample.place, file.day, pa.concat_tables([table, added]), 0)
        files, rows = [*others, longer], manifest.rows + 1
        sample.sign(manifest, files=files, rows=rows, last=position)
        found = {(f.fault, f.last_position) for f in sample.check()[0]}
    assert (Fault.UNSEALED_ROWS, position) in found


def test_a_content_that_is_not_that_of_its_row_is_named_though_all_is_signed(
    sample: SampleExport,
) -> None:
    path, row, state = next(
        (path, row, state)
        for path in sample.files
        for row, state in enumerate(sample.tables[path]["state"].to_pylist())
        if without_content(state)[1]
    )
    fact, content = without_content(state)
    assert content
    changed = with_content(fact, bytes(len(content)))
    with sample.tampered():
        forged = sample.forge(path, lambda table: with_value(table, row, "state", changed))
        found = [(f.fault, f.path, f.row) for f in sample.check()[0]]
    assert (Fault.WRONG_CONTENT, forged.path, row) in found


def test_a_mark_of_the_end_that_names_another_commit_is_named_by_that_commit(
    sample: SampleExport,
) -> None:
    mark = read_mark(sample.place, None)
    assert mark
    other = replace(mark, commit="0" * 64, signature="")
    with sample.tampered():
        sample.put(END, signed(other, SIGNER.sign)[1])
        found = [(f.fault, f.path) for f in sample.check()[0]]
    assert found == [(Damage.CHANGED, commit_path(mark.version))]


@pytest.mark.parametrize("behind", [1, 2])
def test_a_mark_of_the_end_may_be_one_version_behind_and_no_more(
    sample: SampleExport, behind: int
) -> None:
    """An exporter may have been killed between a commit and the mark, but not twice."""
    mark = read_mark(sample.place, None)
    assert mark
    version = mark.version - behind
    commit = hashlib.sha256(sample.contents[commit_path(version)]).hexdigest()
    older = replace(mark, version=version, commit=commit, signature="")
    with sample.tampered():
        sample.put(END, signed(older, SIGNER.sign)[1])
        found = {(f.fault, f.path) for f in sample.check()[0]}
    assert ((Damage.ROLLED_BACK, END) in found) is (behind > 1)


def test_a_replaced_manifest_that_is_another_than_was_replaced_is_named(
    sample: SampleExport,
) -> None:
    kept = (m.replaces[-1] for m in sample.manifests if m.replaces)
    path = next(path for path in kept if path in sample.contents)
    manifest = parse_manifest(path, sample.contents[path], None).manifest
    with sample.tampered():
        sample.put(path, signed(replace(manifest, previous="", signature=""), SIGNER.sign)[1])
        found = [(f.fault, f.path) for f in sample.check()[0]]
    assert found == [(Damage.BROKEN_CHAIN, path)]


def test_rows_behind_a_manifest_that_names_another_before_it_are_held_against_the_seals_before(
    sample: SampleExport,
) -> None:
    with sample.tampered():
        sample.sign(sample.manifests[1], previous="00" * 32)
        contents = read_manifests(sample.place, TRUSTED.verify)
    assert [one.fault for one in contents.findings] == [Damage.BROKEN_CHAIN]
    heads = [{}, *(part.heads for part in contents.parts)]
    assert [part.before for part in contents.parts] == heads[:-1]


def test_in_place_of_a_lost_manifest_the_rows_of_those_that_it_replaced_are_checked(
    sample: SampleExport,
) -> None:
    lost = next(m for m in sample.manifests if m.replaces and set(m.replaces) <= set(sample.strays))
    with sample.tampered():
        sample.remove(lost.path)
        found, summary = sample.check()
    assert (Damage.MISSING, lost.path) in {(one.fault, one.path) for one in found}
    assert {one.fault for one in found} <= {Damage.MISSING, Damage.STRAY}
    assert summary.rows == sum(manifest.rows for manifest in sample.manifests)


def test_a_replaced_file_that_was_changed_is_one_finding(sample: SampleExport) -> None:
    for path in filter(is_data, sample.strays):
        with sample.tampered():
            sample.put(path, sample.contents[path] + b"x")
            assert [(f.fault, f.path) for f in sample.check()[0]] == [(Damage.CHANGED, path)]


@pytest.mark.parametrize("content", [b"[", b"7", b"[1]", b"[{}]", b'[{"sha256":""}]'])
def test_a_summary_that_is_none_is_damaged_though_all_is_signed(
    sample: SampleExport, content: bytes
) -> None:
    said = catalog_of(sample.place, TRUSTED.verify).version
    assert said is not None
    forged = replace(said, summary_sha256=hashlib.sha256(content).hexdigest())
    with sample.tampered():
        sample.put(said.summary, content)
        with pytest.raises(ExportDamaged) as refused:
            read_summary(sample.place, forged)
    assert (refused.value.damage, refused.value.path) == (Damage.BROKEN_MANIFEST, said.summary)


def test_an_earlier_summary_is_still_compared_with_its_signed_hash(
    sqlite_log: EventLog, place: ExportPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eventstore.parquet.write.table.SUMMARY_EVERY", 2)
    growing = Growing(sqlite_log)
    with closing(exporter(sqlite_log, place, times=ExportTimes(replaced_kept_s=3_600))) as export:
        for _ in range(8):
            growing.grow(2)
            while export.step():
                pass
    earlier, *_, _ = sorted(place.sizes(SUMMARIES))
    assert findings(place) == []
    place.write(earlier, place.read(earlier) + b" ")
    assert [(f.fault, f.path) for f in findings(place)] == [(Damage.CHANGED, earlier)]


@pytest.mark.parametrize(
    "commit",
    [
        *(b"", b"{", b"\xff", b"7", b"null", b'["commitInfo"]', b"{}", b'{"commitInfo":7}'),
        *(b'{"commitInfo":{}}', b'{"commitInfo":{"poste":7}}', b'{"commitInfo":{}}\n' * 2),
        b'{"commitInfo":{"poste":"\\ud800"}}',
    ],
)
def test_a_commit_without_a_statement_is_damaged_whatever_it_is(commit: bytes) -> None:
    with pytest.raises(ExportDamaged) as refused:
        parse_version(3, commit, TRUSTED.verify)
    assert (refused.value.damage, refused.value.path) == (Damage.BROKEN_COMMIT, commit_path(3))


def test_an_export_that_is_removed_while_it_is_checked_is_named_as_missing(
    sample: SampleExport,
) -> None:
    class Leaving(ExportPlace):
        """A place whose export is removed between the listing and the reading of the commits."""

        def read_all(self, paths: Iterable[str]) -> Iterator[tuple[str, bytes]]:
            names = list(paths)
            for path in sample.paths if any(version_of(name) >= 0 for name in names) else ():
                self.remove(path)
            return super().read_all(names)

    with sample.tampered():
        leaving = Leaving(sample.place.filesystem, sample.place.root)
        found = list(verify_export(leaving, TRUSTED))
    assert (Damage.MISSING, HEAD) in {
        (one.fault, one.path) for one in found if isinstance(one, ExportFinding)
    }
