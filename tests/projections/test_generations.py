"""Generations: whatever rebuilds do at the same time, each one that is named is whole; no Spark."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from pyarrow import fs

from eventstore.parquet.errors import ExportUnavailable
from eventstore.parquet.files import EVENTS, ExportPlace, TableAddress
from projections.generations.delta_table import TablesBusy, TablesDamaged
from projections.generations.generation import (
    FORMAT,
    Generation,
    GenerationTable,
    TableColumn,
    content_hash,
)
from projections.generations.place import GENERATIONS, Kept, TablesPlace, only_rebuild
from tests.export.test_kills import FailingHandler

TABLES = ("queues", "seals")
BUCKETS = 4
ALL = Kept(newest=100)
NEWEST = Kept(newest=1, replaced_s=0)
COLUMNS = [TableColumn("stream", "binary", "stream"), TableColumn("n", "bigint", "n")]


def unlocked(target: Path, handler: fs.FileSystemHandler | None = None) -> TablesPlace:
    """A place as in an object store, where no lock keeps rebuilds apart."""
    filesystem = fs.PyFileSystem(handler or FailingHandler(fs.LocalFileSystem()))
    address = TableAddress(f"{target}/{EVENTS}", {})
    return TablesPlace(str(target), ExportPlace(filesystem, str(target), table=address))


class Wanted(NamedTuple):
    """What the tables of a rebuild are to hold: for each bucket one number."""

    numbers: tuple[int, ...]

    def rows(self) -> list[int]:
        return sorted(number for number in self.numbers if number)


class Rebuild:
    """One rebuild by hand, step by step: it writes files, commits tables, names the generation."""

    def __init__(
        self, place: TablesPlace, run: str, wanted: Wanted, base: int | None = None
    ) -> None:
        self.place, self.run, self.base, self.wanted = place, run, base, wanted
        self.made: Generation | None = None

    def steps(
        self,
        kept: Kept = ALL,
        columns: Sequence[TableColumn] = COLUMNS,
        *,
        hides_names: bool = False,
    ) -> Iterator[None]:
        start = None if self.base is None else self.place.generation(self.base)
        drafts = []
        for name in TABLES:
            drafts.append(self._staged(name, start, columns))
            yield
        tables = []
        for draft in drafts:
            tables.append(self.place.commit_table(draft, self.base))
            yield
        self.made = self.place.commit(
            generation_of(tables), self.base, kept, hides_names=hides_names
        )

    def _staged(
        self, name: str, start: Generation | None, columns: Sequence[TableColumn]
    ) -> GenerationTable:
        before = start.table(name).files if start else []
        kept = {each.bucket: each for each in before}
        for bucket, number in enumerate(self.wanted.numbers):
            old = kept.get(bucket)
            if start and (old.rows if old else 0) == number:
                continue  # so many rows are there already
            kept.pop(bucket, None)
            if number:
                self._write(name, bucket, number)
        written = self.place.staged(name, self.run)
        files = [*kept.values(), *written]
        rows = sum(file.rows for file in files)
        return GenerationTable(name, name, 0, rows, content_hash(files), BUCKETS, columns, files)

    def _write(self, name: str, bucket: int, number: int) -> None:
        root = Path(self.place.target)
        path = root / name / self.run / f"bucket={bucket}" / "part.parquet"
        path.parent.mkdir(parents=True)
        rows = {"stream": [bytes([bucket])] * number, "n": [number] * number}
        pq.write_table(pa.table(rows), path)


def generation_of(tables: list[GenerationTable]) -> Generation:
    return Generation(
        generation=0,
        made_at_ms=0,
        mediator="did:example:mediator",
        public_key="",
        position=1,
        positions=[1],
        export_versions=[0],
        complete_until_ms=None,
        at_ms=0,
        window_ms_max=0,
        tables=tables,
    )


def made(place: TablesPlace, run: str, *numbers: int, **options: Any) -> Generation:
    """A generation that one rebuild made, alone."""
    rebuild = Rebuild(place, run, Wanted(numbers), options.pop("base", None))
    for _ in rebuild.steps(**options):
        pass
    assert rebuild.made is not None
    return rebuild.made


def rows(place: TablesPlace, generation: Generation) -> list[list[int]]:
    """What is in each table: checked, and read by another program at the version it names."""
    place.check(generation)
    found = []
    for table in generation.tables:
        place.check_content(table, table.files)
        opened = DeltaTable(f"{place.target}/{table.name}", version=table.version)
        numbers = opened.to_pyarrow_table(columns=["n"])["n"].to_pylist()
        assert len(numbers) == table.rows
        found.append(sorted(set(numbers)))
    return found


@given(
    plan=st.lists(
        st.tuples(st.tuples(*[st.integers(0, 3)] * BUCKETS), st.booleans(), st.integers(0, 9)),
        min_size=2,
        max_size=5,
    ),
    order=st.lists(st.integers(0, 4), max_size=30),
    keeps=st.integers(1, 3),
    hides_names=st.booleans(),
)
@example(  # the second begins and ends between the last two steps of the first
    plan=[((0, 3, 0, 0), False, 9), ((1, 0, 0, 0), False, 9)],
    order=[0, 0, 0, 0, 1, 1, 1, 1, 1, 0],
    keeps=1,
    hides_names=True,
)
@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
)
def test_rebuilds_in_any_order_make_whole_generations_or_are_refused(
    tmp_path_factory: pytest.TempPathFactory,
    plan: list[tuple[tuple[int, ...], bool, int]],
    order: list[int],
    keeps: int,
    *,
    hides_names: bool,
) -> None:
    """Each is one after another, none of them or partly; some are killed, some go on from another.

    What the steps are is in ``Rebuild.steps``; a rebuild that is killed after so many is the third
    part of its plan.
    """
    place = unlocked(tmp_path_factory.mktemp("tables"))
    first = made(place, "first", 1, 1, 1, 1)
    expected = {first.generation: Wanted((1, 1, 1, 1))}
    kept = Kept(newest=keeps, replaced_s=0)
    running: dict[int, tuple[Rebuild, Iterator[None]]] = {}
    steps_of = {number: killed_after for number, (_, _, killed_after) in enumerate(plan)}
    for chosen in [*order, *list(range(len(plan))) * 6]:
        number = chosen % len(plan)
        if number not in running:
            base = place.numbers()[-1] if plan[number][1] else None
            rebuild = Rebuild(place, f"run-{number}", Wanted(plan[number][0]), base)
            running[number] = rebuild, rebuild.steps(kept, hides_names=hides_names)
        rebuild, steps = running[number]
        if not steps_of[number]:
            continue
        steps_of[number] -= 1
        try:
            next(steps, None)
        except (TablesBusy, TablesDamaged):
            assert rebuild.base is not None
            assert rebuild.base not in place.numbers()
            steps_of[number] = 0
        if rebuild.made is None or rebuild.made.generation in expected:
            continue
        expected[rebuild.made.generation] = rebuild.wanted
        for each in place.numbers():
            generation = place.generation(each)
            assert generation is not None
            assert rows(place, generation) == [sorted({n for n in expected[each].numbers if n})] * 2
    assert len(place.numbers()) <= keeps


class _Meanwhile(FailingHandler):
    """Has something happen just before the first file of a folder is written."""

    def __init__(self, folder: str, happen: Callable[[], object]) -> None:
        super().__init__(fs.LocalFileSystem())
        self._folder: str | None = folder
        self._happen = happen

    def open_output_stream(self, path: str, metadata: Any) -> Any:
        if self._folder and f"/{self._folder}/" in path:
            self._folder = None
            self._happen()
        return super().open_output_stream(path, metadata)


def test_of_two_that_end_at_the_same_time_each_is_a_generation(tmp_path: Path) -> None:
    other = unlocked(tmp_path)
    made(other, "zero", 1, 0, 0, 0)
    handler = _Meanwhile(GENERATIONS, lambda: made(other, "second", 0, 2, 0, 0))
    place = unlocked(tmp_path, handler)
    last = made(place, "first", 0, 0, 3, 0)
    assert place.numbers() == [1, 2, 3]
    assert last.generation == 3
    found = {number: place.generation(number) for number in place.numbers()}
    assert [rows(place, each) for each in found.values() if each] == [[[n]] * 2 for n in (1, 2, 3)]
    # Nothing is left of what was written under a number that another rebuild had taken.
    assert len(list((tmp_path / GENERATIONS).glob("*.parquet"))) == 3


def test_two_may_be_the_first_at_the_same_time(tmp_path: Path) -> None:
    other = unlocked(tmp_path)
    place = unlocked(tmp_path, _Meanwhile(GENERATIONS, lambda: made(other, "second", 0, 2, 0, 0)))
    assert made(place, "first", 1, 0, 0, 0).generation == 2
    assert place.numbers() == [1, 2]


def test_what_was_removed_meanwhile_is_not_continued(tmp_path: Path) -> None:
    other = unlocked(tmp_path)
    base = made(other, "zero", 1, 1, 0, 0)
    handler = _Meanwhile("queues", lambda: None)
    place = unlocked(tmp_path, handler)
    rebuild = Rebuild(place, "late", Wanted((1, 2, 0, 0)), base.generation)
    steps = rebuild.steps()
    next(steps)
    after = made(other, "next", 3, 0, 0, 0, kept=NEWEST)
    with pytest.raises(
        TablesBusy, match="generation 1, the base of this rebuild, was meanwhile removed"
    ):
        for _ in steps:
            pass
    assert place.numbers() == [after.generation]
    assert rows(place, after) == [[3], [3]]


@pytest.mark.parametrize("afterwards", [False, True])
def test_a_store_that_goes_away_at_any_change_leaves_whole_generations(
    tmp_path: Path, afterwards: bool
) -> None:
    handler = FailingHandler(fs.LocalFileSystem())
    handler.fails_afterwards = afterwards
    place = unlocked(tmp_path, handler)
    expected = {made(place, "first", 1, 1, 1, 1, kept=NEWEST).generation: 1}
    for fatal in range(1, 12):
        handler.changes_left = fatal
        number = fatal % 3 + 1
        newest = place.numbers()[-1]
        with suppress(ExportUnavailable):
            made(place, f"run-{fatal}", number, 0, 0, 0, kept=NEWEST, base=newest)
        handler.changes_left = -1
        newest = place.numbers()[-1]
        expected.setdefault(newest, number)
        generation = place.generation()
        assert generation is not None
        assert rows(place, generation) == [[expected[newest]]] * 2
    last = made(place, "last", 2, 0, 0, 0, kept=NEWEST)
    assert place.numbers() == [last.generation]


def test_a_generation_stays_as_long_as_it_may_be_read(tmp_path: Path) -> None:
    place = TablesPlace(str(tmp_path))
    for number in range(1, 4):
        made(place, f"run-{number}", number, 0, 0, 0, kept=Kept(newest=2, replaced_s=3_600))
    assert place.numbers() == [1, 2, 3]
    made(place, "run-4", 4, 0, 0, 0, kept=Kept(newest=2, replaced_s=0))
    assert place.numbers() == [3, 4]
    for number in place.numbers():
        generation = place.generation(number)
        assert generation is not None
        assert rows(place, generation) == [[number]] * 2
    with pytest.raises(TablesDamaged, match="generation 1: it does not exist"):
        place.generation(1)
    # Of what was removed, and of what was never named, no file is left.
    assert {path.parent.parent.name for path in tmp_path.glob("queues/*/*/*")} == {"run-3", "run-4"}


def test_a_table_has_one_hash_whatever_the_footers_of_its_files_say(tmp_path: Path) -> None:
    """Java names the encodings of a column in another order in each process."""
    place = TablesPlace(str(tmp_path))
    for run in ("one", "other"):
        path = tmp_path / "queues" / run / "bucket=0" / "part.parquet"
        path.parent.mkdir(parents=True)
        rows = pa.table({"stream": [b"1"], "n": [1]})
        pq.write_table(rows.replace_schema_metadata({"written in": run}), path)
    one, other = place.staged("queues", "one"), place.staged("queues", "other")
    assert one[0].sha256 != other[0].sha256
    assert content_hash(one) == content_hash(other)


def test_a_generation_shares_the_files_that_did_not_change(tmp_path: Path) -> None:
    place = TablesPlace(str(tmp_path))
    first = made(place, "run-1", 1, 2, 3, 4)
    second = made(place, "run-2", 1, 2, 1, 4, base=1, kept=NEWEST)
    shared = {file.path for file in first.table("queues").files}
    assert len(shared & {file.path for file in second.table("queues").files}) == 3
    assert rows(place, second) == [[1, 2, 4]] * 2
    # Nothing changed: no version is made, and the hash is the same.
    third = made(place, "run-3", 1, 2, 1, 4, base=2)
    assert [t.version for t in third.tables] == [t.version for t in second.tables]
    again = made(TablesPlace(str(tmp_path / "elsewhere")), "run-1", 1, 2, 1, 4)
    assert [t.sha256 for t in again.tables] == [t.sha256 for t in third.tables]


@pytest.mark.parametrize("last", [(1, 2, 3, 4), (1, 2, 1, 4)], ids=["same", "changed"])
def test_columns_that_are_described_anew_keep_the_files_that_did_not_change(
    tmp_path: Path, last: tuple[int, ...]
) -> None:
    """Other readers replay a commit in the order of its lines: no path may be in two of them."""
    place = TablesPlace(str(tmp_path))
    made(place, "run-1", 1, 2, 3, 4)
    columns = [COLUMNS[0], msgspec.structs.replace(COLUMNS[1], about="another text")]
    generation = made(place, "run-2", *last, base=1, columns=columns)
    assert rows(place, generation) == [sorted(set(last))] * 2
    for commit in (tmp_path / "queues" / "_delta_log").glob("*.json"):
        actions = [json.loads(line) for line in commit.read_text().splitlines()]
        paths = [a[kind]["path"] for a in actions for kind in ("add", "remove") if kind in a]
        assert len(paths) == len(set(paths))
    opened = DeltaTable(f"{tmp_path}/queues", version=generation.table("queues").version)
    assert opened.schema().fields[1].metadata["comment"] == "another text"


def test_what_does_not_fit_is_refused_by_its_name(tmp_path: Path) -> None:
    place = TablesPlace(str(tmp_path))
    generation = made(place, "run-1", 1, 0, 0, 2)
    (file, *_) = generation.table("queues").files
    path = tmp_path / "queues" / file.path
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(TablesDamaged, match=f"queues/{file.path}: its SHA-256"):
        place.check_content(generation.table("queues"), generation.table("queues").files)
    path.write_bytes(content[:-1])
    with pytest.raises(TablesDamaged, match=f"queues/{file.path}: the file has another size"):
        place.check(generation)
    path.unlink()
    with pytest.raises(TablesDamaged, match=f"queues/{file.path}: the file is missing"):
        place.check(generation)
    path.write_bytes(content)
    place.check(generation)
    queues, seals = generation.tables
    later = made(place, "run-2", 3, 0, 0, 0)
    for wrong, why in (
        (
            replaced(queues, version=later.table("queues").version),
            "queues: version 1 .* other file",
        ),
        (replaced(queues, version=9), "queues: "),
        (replaced(queues, rows=9), "queues: its files do not have 9 rows"),
        (replaced(queues, sha256="0"), "queues: its SHA-256"),
        (replaced(queues, name="nowhere"), "nowhere: the table no longer exists"),
    ):
        with pytest.raises(TablesDamaged, match=why):
            place.check(msgspec.structs.replace(generation, tables=[wrong, seals]))


@pytest.mark.parametrize("format_", [FORMAT - 1, FORMAT + 1])
def test_a_generation_of_another_release_is_refused(tmp_path: Path, format_: int) -> None:
    place = TablesPlace(str(tmp_path))
    generation = made(place, "run-1", 1, 0, 0, 2)
    place.commit(msgspec.structs.replace(generation, format=format_), None, Kept())
    with pytest.raises(TablesDamaged, match="made by another release"):
        place.generation()
    assert place.generation(1) == generation


def replaced(table: GenerationTable, **members: Any) -> GenerationTable:
    return msgspec.structs.replace(table, **members)


def test_no_byte_of_the_description_of_a_generation_can_be_changed(tmp_path: Path) -> None:
    place = TablesPlace(str(tmp_path))
    made(place, "run-1", 1, 0, 0, 2)
    (path,) = (tmp_path / GENERATIONS).glob("*.parquet")
    content = path.read_bytes()
    for at in range(0, len(content), 41):
        path.write_bytes(content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :])
        with pytest.raises(TablesDamaged, match=path.name):
            place.generation()
    path.unlink()
    with pytest.raises(TablesDamaged, match=path.name):
        place.generation()


def test_a_log_of_a_table_without_its_beginning_is_damaged(tmp_path: Path) -> None:
    place = TablesPlace(str(tmp_path))
    generation = made(place, "run-1", 1, 0, 0, 2)
    made(place, "run-2", 2, 0, 0, 2)
    commits = sorted((tmp_path / "seals" / "_delta_log").glob("*.json"))
    commits[0].unlink()
    with pytest.raises(TablesDamaged, match="seals"):
        place.check(generation)
    commits[1].write_text("{")
    with pytest.raises(TablesDamaged, match="seals"):
        made(place, "run-3", 1, 0, 0, 2)


def test_of_the_logs_only_what_is_still_needed_stays(tmp_path: Path) -> None:
    """A checkpoint every 20 versions; what was before the one that is needed goes."""
    place = TablesPlace(str(tmp_path))
    kept = Kept(newest=2, replaced_s=0)
    for number in range(1, 26):
        made(place, f"run-{number}", number % 3 + 1, 0, 0, 0, kept=kept)
    for number in place.numbers():
        generation = place.generation(number)
        assert generation is not None
        assert rows(place, generation) == [[number % 3 + 1]] * 2
    for name in (*TABLES, GENERATIONS):
        commits = sorted(path.name for path in (tmp_path / name / "_delta_log").glob("*0.json"))
        assert commits[0] == f"{20:020d}.json"


@contextmanager
def _locked(target: Path) -> Iterator[None]:
    with only_rebuild(TablesPlace(str(target)).place):
        yield


def test_one_rebuild_at_a_time_writes_to_a_folder(tmp_path: Path) -> None:
    tables, why = tmp_path / "tables", "another rebuild writes"
    with _locked(tables), pytest.raises(TablesBusy, match=why), _locked(tables):
        pass
    with _locked(tables), _locked(tmp_path / "others"):
        pass


def test_a_folder_that_a_rebuild_makes_is_for_its_owner_alone(tmp_path: Path) -> None:
    tables, shared = tmp_path / "tables", tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o755)
    for target in (tables, shared):
        with _locked(target):
            pass
    modes = [stat.S_IMODE(target.stat().st_mode) for target in (tables, shared)]
    assert modes == [0o700, 0o755]


def test_a_file_in_place_of_the_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "tables").touch()
    why = f"{tmp_path / 'tables'}: not a folder that can be written"
    with pytest.raises(ExportUnavailable, match=why), _locked(tmp_path / "tables"):
        pass


def test_other_programs_read_which_versions_belong_together(tmp_path: Path) -> None:
    place = TablesPlace(str(tmp_path))
    generation = made(place, "run-1", 1, 0, 0, 2)
    made(place, "run-2", 2, 0, 0, 2)
    (row, _) = (
        DeltaTable(f"{tmp_path}/{GENERATIONS}").to_pyarrow_table().sort_by("generation").to_pylist()
    )
    assert (row["generation"], row["position"]) == (1, 1)
    assert row["tables"] == [
        {"name": t.name, "version": t.version, "rows": t.rows, "sha256": t.sha256}
        for t in generation.tables
    ]
    # The columns say what they hold, and the log which files can have what.
    fields = {f.name: f.metadata for f in DeltaTable(f"{tmp_path}/queues").schema().fields}
    assert fields["n"]["comment"] == "n"
    actions = pa.table(DeltaTable(f"{tmp_path}/queues").get_add_actions(flatten=True))
    assert sorted(actions["min.n"].to_pylist()) == [2, 2]
