"""What was verified is marked and not read again; what is no such mark is not believed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from msgspec.structs import replace

from eventstore.log.event_log import EventLog
from eventstore.log.faults import Fault
from eventstore.log.name_check import ERASURE
from eventstore.log.public_key import PublicKey
from eventstore.log.tiles import TiledTree
from eventstore.parquet.errors import Damage, ExportUnavailable
from eventstore.parquet.files import END, ExportPlace, open_place
from eventstore.parquet.manifest import ManifestTree, Signer, heads_of, tree_said
from eventstore.parquet.tree import CHECKPOINT, TREE, seal_leaves
from eventstore.parquet.verify.export import verify_export
from eventstore.parquet.verify.findings import ExportFinding, ExportSummary
from eventstore.parquet.verify.mark import RULES, VerifiedMarks
from eventstore.parquet.verify.tree import TreeCheck
from eventstore.parquet.write.commit import write_data
from eventstore.parquet.write.step import Bounds
from eventstore.stores.open_log import open_log
from http_edge.crypto import signatures
from http_edge.server.exits import Exit
from tests.contract.test_erasure_contract import erase, settle
from tests.contract.test_name_erasure_contract import send
from tests.contract.test_retention_contract import Mediator
from tests.export.forging import SIGNER, TRUSTED, SampleExport, with_value
from tests.export.samples import (
    SEED,
    SIGNED_BY,
    Growing,
    catalog_of,
    contents,
    export_all,
    exporter,
    findings,
    registered,
)
from tests.export.test_cli import _mediator
from tests.export.test_names_in_export import GONE, STAYS, STEPS, acknowledge, take_out
from tests.unit.cli.conftest import Run, run

__all__ = ["run"]


class Verifying(NamedTuple):
    """An export that grows, and the folder of who verifies it."""

    growing: Growing
    log: EventLog
    place: ExportPlace
    folder: ExportPlace

    def marks(self, seed: bytes = SEED) -> VerifiedMarks:
        key = PublicKey(signatures.public_key(seed))
        return VerifiedMarks(self.folder, Signer(key.text, partial(signatures.sign, seed)))

    def grow(self, transactions: int) -> None:
        self.growing.grow(transactions)
        export_all(self.log, self.place)

    def check(
        self, marks: VerifiedMarks | None = None, witnessed: Mapping[str, bytes] | None = None
    ) -> tuple[list[ExportFinding], ExportSummary, str]:
        used = marks or self.marks()
        *found, summary = verify_export(self.place, SIGNED_BY, marks=used, witnessed=witnessed)
        assert isinstance(summary, ExportSummary)
        findings = [one for one in found if isinstance(one, ExportFinding)]
        return findings, summary, used.take_ignored()


@pytest.fixture
def verifying(sqlite_log: EventLog, place: ExportPlace, tmp_path: Path) -> Verifying:
    made = Verifying(Growing(sqlite_log), sqlite_log, place, open_place(str(tmp_path / "marks")))
    made.grow(9)
    return made


def test_what_was_verified_is_not_read_again_and_the_end_is_the_same(
    verifying: Verifying,
) -> None:
    _, first, _ = verifying.check()
    assert (first.verified_before_up_to, first.rows) == (0, first.position)
    for transactions in (0, 1, 7):
        before = verifying.check()[1].position
        verifying.grow(transactions)
        findings, summary, ignored = verifying.check()
        assert (findings, ignored, summary.verified_before_up_to) == ([], "", before)
        assert summary.rows == summary.position - before
        everything = verify_all(verifying)
        assert (summary.tree, summary.heads, summary.streams) == (
            everything.tree,
            everything.heads,
            everything.streams,
        )


def verify_all(verifying: Verifying) -> ExportSummary:
    *found, summary = verify_export(verifying.place, SIGNED_BY)
    assert not found
    assert isinstance(summary, ExportSummary)
    return summary


def test_all_is_verified_where_heads_must_be_found_or_something_is_damaged(
    verifying: Verifying,
) -> None:
    verifying.check()
    first = catalog_of(verifying.place).statements[0].manifest
    *found, summary = verify_export(
        verifying.place,
        SIGNED_BY,
        known_heads=heads_of(first.path, first),
        marks=verifying.marks(),
    )
    assert isinstance(summary, ExportSummary)
    assert (found, summary.verified_before_up_to) == ([], 0)
    assert summary.earlier_check_up_to == first.last
    verifying.place.remove(END)
    findings, summary, _ = verifying.check()
    assert ([one.path for one in findings], summary.verified_before_up_to) == ([END], 0)


def test_an_old_head_is_a_finding_although_the_rows_are_not_read_again(
    verifying: Verifying,
) -> None:
    old = verifying.place.read(CHECKPOINT)
    for _ in range(2):
        verifying.grow(1)
    assert verifying.check()[0] == []
    verifying.place.write(CHECKPOINT, old)
    findings, summary, _ = verifying.check()
    assert summary.rows == 0
    assert [(one.fault, one.path) for one in findings] == [(Damage.ROLLED_BACK, CHECKPOINT)]


def test_steps_that_were_put_together_since_are_verified_once_more(verifying: Verifying) -> None:
    verifying.check()
    verifying.grow(4)
    with closing(exporter(verifying.log, verifying.place, Bounds(rows_max=10_000))) as export:
        assert export.compact(files_min=2)
    findings, summary, ignored = verifying.check()
    assert (findings, ignored) == ([], "")
    assert summary.position == catalog_of(verifying.place).last
    assert verifying.check()[1].rows == 0


def test_files_that_took_the_place_of_verified_ones_are_verified_and_nothing_else(
    verifying: Verifying,
) -> None:
    verifying.check()
    before = {file.path for file in catalog_of(verifying.place).files}
    with closing(exporter(verifying.log, verifying.place, Bounds(rows_max=30))) as export:
        assert export.compact(files_min=2)
    catalog = catalog_of(verifying.place)
    written = [file for file in catalog.files if file.path not in before]
    findings, summary, ignored = verifying.check()
    assert (findings, ignored, summary.verified_before_up_to) == ([], "", catalog.last)
    assert 0 < summary.rows == sum(file.rows for file in written) < catalog.last
    assert verifying.check()[1].rows == 0


@pytest.fixture
def sample(tmp_path: Path) -> SampleExport:
    return SampleExport(tmp_path)


def check_sample(sample: SampleExport, tmp_path: Path) -> tuple[list[Fault | Damage], int]:
    """What is wrong with it, by fault, and how many rows were read."""
    marks = VerifiedMarks(open_place(str(tmp_path / "marks")), SIGNER)
    *found, summary = verify_export(sample.place, TRUSTED, marks=marks)
    assert isinstance(summary, ExportSummary)
    return [one.fault for one in found if isinstance(one, ExportFinding)], summary.rows


@pytest.mark.parametrize(
    ("column", "fault"), [("message_id", Fault.WRONG_COLUMN), ("state", Fault.BROKEN_SEAL)]
)
def test_a_rewritten_file_that_says_something_else_is_found_though_all_is_signed(
    sample: SampleExport, tmp_path: Path, column: str, fault: Fault
) -> None:
    assert check_sample(sample, tmp_path)[0] == []
    path = min(sample.files)
    row = sample.tables[path]["type"].to_pylist().index("message-queued")
    value = sample.tables[path][column][row].as_py()
    other = value[:-1] + bytes([value[-1] ^ 1]) if column == "state" else "another"
    sample.forge(path, lambda table: with_value(table, row, column, other))
    faults, rows = check_sample(sample, tmp_path)
    assert fault in faults
    assert rows == sum(file.rows for file in sample.manifest_of(path).files)


def test_a_step_over_midnight_is_read_again_if_one_of_its_files_was_rewritten(
    sample: SampleExport, tmp_path: Path
) -> None:
    assert check_sample(sample, tmp_path)[0] == []
    manifest = next(manifest for manifest in sample.manifests if len(manifest.files) == 2)
    path = manifest.files[1].path
    identity = sample.tables[path]["identity"].to_pylist()[0]
    sample.forge(path, lambda table: with_value(table, 0, "identity", f"{identity}:another"))
    faults, rows = check_sample(sample, tmp_path)
    assert Fault.WRONG_COLUMN in faults
    assert rows == manifest.rows


@pytest.mark.parametrize("is_sound", [True, False])
def test_seals_in_rewritten_files_have_to_be_those_of_the_tree(
    sample: SampleExport, tmp_path: Path, is_sound: bool
) -> None:
    assert check_sample(sample, tmp_path)[0] == []
    path = min(sample.files)
    manifest, table = sample.manifest_of(path), sample.tables[path]
    day = path.split("/")[1].removeprefix("date=")
    halves = [write_data(sample.place, day, half, 0) for half in (table[:9], table[9:])]
    assert isinstance(manifest.tree, ManifestTree)
    tree = manifest.tree if is_sound else ManifestTree(manifest.tree.size, "00" * 32)
    others = [file for file in manifest.files if file.path != path]
    sample.remove(path)
    sample.sign(manifest, files=[*halves, *others], tree=tree)
    faults, rows = check_sample(sample, tmp_path)
    assert rows == manifest.rows
    assert faults == ([] if is_sound else [Fault.WRONG_TREE])


def test_other_seals_with_a_tree_of_their_own_are_not_those_of_the_newest_tree(
    sample: SampleExport,
) -> None:
    first, newest = sample.manifests[0], sample.manifests[-1]
    tree = TreeCheck(sample.place)
    assert list(tree.join(newest, None)) == []
    leaves = seal_leaves(sample.place, first)
    assert list(tree.check_again(first, leaves)) == []
    others = [*leaves[:-1], bytes(32)]
    of_others = tree_said(TiledTree().extended(others)[0])
    for said in (first.tree, of_others, replace(of_others, size=len(others) - 1)):
        (found,) = tree.check_again(replace(first, tree=said), others)
        assert (found.fault, found.path) == (Fault.WRONG_TREE, first.path)


def test_damage_in_what_is_new_is_found_and_not_marked(verifying: Verifying) -> None:
    verifying.check()
    marked = contents(verifying.folder)
    verifying.grow(6)
    newest = catalog_of(verifying.place).files[-1]
    content = bytearray(verifying.place.read(newest.path))
    content[len(content) // 2] ^= 1
    verifying.place.write(newest.path, bytes(content))
    findings, _, _ = verifying.check()
    assert newest.path in {one.path for one in findings}
    assert contents(verifying.folder) == marked


def test_a_file_that_is_missing_or_cut_is_found_though_it_was_verified(
    verifying: Verifying,
) -> None:
    oldest = catalog_of(verifying.place).files[0].path
    verifying.check()
    content = verifying.place.read(oldest)
    verifying.place.write(oldest, content[:-1])
    assert [(one.path, one.fault) for one in verifying.check()[0]] == [(oldest, Damage.TRUNCATED)]
    verifying.place.remove(oldest)
    assert [(one.path, one.fault) for one in verifying.check()[0]] == [(oldest, Damage.MISSING)]


def test_a_tile_that_is_lost_is_a_finding_although_its_rows_were_verified(
    verifying: Verifying,
) -> None:
    held = {"a witness": verifying.place.read(CHECKPOINT)}
    verifying.check()
    for transactions, tile in ((3, "tile/0/000.p/24"), (120, "tile/0/000")):
        verifying.grow(transactions)
        content = verifying.place.read(f"{TREE}/{tile}")
        if tile.endswith("/000"):
            verifying.check()
        verifying.place.remove(f"{TREE}/{tile}")
        findings, _, _ = verifying.check(witnessed=held)
        assert [(one.fault, one.path) for one in findings] == [(Damage.MISSING, f"{TREE}/{tile}")]
        verifying.place.write(f"{TREE}/{tile}", content)
        assert verifying.check(witnessed=held)[0] == []


def test_a_tree_that_lost_its_end_is_a_finding_although_its_rows_were_verified(
    verifying: Verifying,
) -> None:
    verifying.check()
    verifying.place.remove(f"{TREE}/tile/0/000.p/18")
    assert [(one.fault, one.path) for one in verifying.check()[0]] == [(Damage.CHANGED, TREE)]


def test_a_history_that_is_not_the_verified_one_is_found_though_all_is_signed(
    verifying: Verifying, tmp_path: Path
) -> None:
    verifying.check()
    other = open_place(str(tmp_path / "other"))
    with closing(open_log(f"sqlite:{tmp_path / 'other.db'}")) as log:
        growing = Growing(log)
        growing.commit({"shard-0": [registered(100)]})
        growing.grow(9)
        export_all(log, other)
    assert findings(other) == []
    for path in contents(verifying.place):
        verifying.place.remove(path)
    for path, content in contents(other).items():
        verifying.place.write(path, content)
    found = {(one.fault, one.path) for one in verifying.check()[0]}
    assert (Fault.WRONG_TREE, "the mark of what was verified") in found


def test_a_flipped_bit_in_what_was_verified_is_found_by_verifying_all(
    verifying: Verifying,
) -> None:
    oldest = catalog_of(verifying.place).files[0].path
    verifying.check()
    content = bytearray(verifying.place.read(oldest))
    content[len(content) // 2] ^= 1
    verifying.place.write(oldest, bytes(content))
    assert verifying.check()[0] == []  # as it is documented
    marks = VerifiedMarks(verifying.folder, SIGNER, are_forgotten=True)
    assert oldest in {one.path for one in verifying.check(marks)[0]}


@pytest.fixture
def erasure_path(sqlite_log: EventLog, place: ExportPlace, marks: VerifiedMarks) -> str:
    """The verified file that has an erasure by which names left verified files since."""
    mediator = Mediator(sqlite_log)
    for did in (GONE, STAYS):
        settle(mediator, did)
    send(mediator, STAYS, GONE, b"message")
    export_all(sqlite_log, place, STEPS)
    erase(mediator, GONE)
    export_all(sqlite_log, place, STEPS)
    take_out(sqlite_log, place)
    assert len([*verify_export(place, SIGNED_BY, marks=marks)]) == 1
    [path] = [file.path for file in catalog_of(place).files if ERASURE in file.types]
    acknowledge(mediator, STAYS)
    export_all(sqlite_log, place, STEPS)
    assert take_out(sqlite_log, place).names > 0
    assert path in place.data_sizes()
    return path


@pytest.fixture
def marks(tmp_path: Path) -> VerifiedMarks:
    return VerifiedMarks(open_place(str(tmp_path / "marks")), SIGNER)


@pytest.mark.parametrize("fault", [Damage.CHANGED, Damage.MISSING, Damage.TRUNCATED])
def test_damage_to_a_verified_file_that_has_an_erasure_is_one_finding(
    place: ExportPlace, marks: VerifiedMarks, erasure_path: str, fault: Damage
) -> None:
    last = catalog_of(place).last
    content = bytearray(place.read(erasure_path))
    content[len(content) // 2] ^= 1
    place.remove(erasure_path)
    if fault is not Damage.MISSING:
        is_short = fault is Damage.TRUNCATED
        place.write(erasure_path, bytes(content[:-1] if is_short else content))
    *found, summary = verify_export(place, SIGNED_BY, marks=marks)
    assert [(one.path, one.fault) for one in found if isinstance(one, ExportFinding)] == [
        (erasure_path, fault)
    ]
    assert isinstance(summary, ExportSummary)
    assert (summary.findings, summary.position) == (1, last)


def test_a_verified_file_that_has_an_erasure_and_is_put_together_meanwhile_is_not_damaged(
    sqlite_log: EventLog, place: ExportPlace, marks: VerifiedMarks, erasure_path: str
) -> None:
    class ChangingPlace(ExportPlace):
        def read(self, path: str, bytes_max: int | None = None) -> bytes:
            if path == erasure_path:
                with closing(exporter(sqlite_log, place, Bounds())) as export:
                    export.compact(files_min=2)
                    export.sweep()
            return super().read(path, bytes_max)

    changing = ChangingPlace(place.filesystem, place.root)
    with pytest.raises(ExportUnavailable, match="check again"):
        list(verify_export(changing, SIGNED_BY, marks=marks))
    assert findings(place) == []


def test_a_mark_that_was_forged_or_is_of_another_key_or_export_is_not_used(
    verifying: Verifying, tmp_path: Path
) -> None:
    verifying.check()
    marked = contents(verifying.folder)
    [mark] = [path for path in marked if path.endswith(".json")]
    [streams] = [path for path in marked if path.endswith(".streams")]
    [files] = [path for path in marked if path.endswith(".files")]
    said = json.loads(marked[mark])
    forged = json.dumps(said | {"position": said["position"] - 1}, separators=(",", ":")).encode()
    for path, content, why in (
        (mark, forged, "bad signature"),
        (mark, b"{", "broken manifest"),
        (streams, marked[streams] + b"x", "not the file that the mark names"),
        (files, marked[files][32:], "not the file that the mark names"),
    ):
        verifying.folder.write(path, content)
        findings, summary, ignored = verifying.check()
        assert (findings, summary.verified_before_up_to, why in ignored) == ([], 0, True)
    assert contents(verifying.folder) == marked  # what was verified is marked again
    other = bytes(range(1, 33))
    assert "bad signature" in verifying.check(verifying.marks(other))[2]
    elsewhere = open_place(str(shutil.copytree(verifying.place.root, tmp_path / "elsewhere")))
    last = list(verify_export(elsewhere, SIGNED_BY, marks=verifying.marks()))[-1]
    assert isinstance(last, ExportSummary)
    assert last.verified_before_up_to == 0


@pytest.mark.parametrize("rules", [RULES - 1, RULES + 1])
def test_a_mark_by_the_rules_of_another_release_is_not_used(
    verifying: Verifying, monkeypatch: pytest.MonkeyPatch, rules: int
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("eventstore.parquet.verify.mark.RULES", rules)
        verifying.check()
    findings, summary, ignored = verifying.check()
    assert (findings, summary.verified_before_up_to, "other rules" in ignored) == ([], 0, True)


def test_a_mark_under_the_name_of_another_place_is_not_used(
    verifying: Verifying, tmp_path: Path
) -> None:
    verifying.check()
    elsewhere = open_place(str(shutil.copytree(verifying.place.root, tmp_path / "elsewhere")))
    marked = contents(verifying.folder)
    assert [*verify_export(elsewhere, SIGNED_BY, marks=verifying.marks())][:-1] == []
    for ours in marked:
        kind = ours.rpartition(".")[2]
        (theirs,) = {p for p in verifying.folder.sizes("") if p.endswith(kind)} - marked.keys()
        verifying.folder.write(theirs, marked[ours])
    used = verifying.marks()
    *found, summary = verify_export(elsewhere, SIGNED_BY, marks=used)
    assert isinstance(summary, ExportSummary)
    assert (found, summary.verified_before_up_to) == ([], 0)
    assert verifying.place.address() in used.take_ignored()


def test_a_mark_that_was_put_back_costs_work_alone(verifying: Verifying) -> None:
    verifying.check()
    early = contents(verifying.folder)
    position = catalog_of(verifying.place).last
    verifying.grow(5)
    verifying.check()
    for path, content in early.items():
        verifying.folder.write(path, content)
    findings, summary, ignored = verifying.check()
    assert (findings, ignored, summary.verified_before_up_to) == ([], "", position)


def test_an_export_that_was_put_back_behind_the_mark_is_a_finding(
    verifying: Verifying,
) -> None:
    early = contents(verifying.place)
    verifying.grow(5)
    verifying.check()
    for path in contents(verifying.place):
        verifying.place.remove(path)
    for path, content in early.items():
        verifying.place.write(path, content)
    findings, _, _ = verifying.check()
    assert [one.fault for one in findings] == [Damage.ROLLED_BACK]


def test_the_program_marks_and_says_what_it_did_not_read(run: Run, tmp_path: Path) -> None:
    with _mediator(tmp_path / "data"):
        run("export", "--data-dir", "data", "--to", "out")
        verify = ("verify", "--data-dir", "data", "--from", "out", "--json")
        rows = []
        for options in ((), (), ("--all",)):
            ran = run(*verify, *options)
            assert (ran.code, ran.err) == (Exit.OK, "")
            summary = json.loads(ran.out)["summary"]
            rows.append((summary["rows"], summary["verified_before_up_to"]))
        assert rows == [(50, 0), (0, 50), (50, 0)]
        [mark] = (tmp_path / "data" / "verified").glob("*.json")
        mark.write_text("{}")
        ran = run(*verify)
        assert (ran.code, "a mark could not be used" in ran.err) == (Exit.OK, True)
