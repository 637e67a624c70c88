"""The logs of rebuilt tables name no one, and keep nothing that no generation needs; no Spark."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from typing_extensions import override

from projections.generations.generation import Generation, TableColumn
from projections.generations.place import Kept, TablesPlace
from tests.projections.test_generations import ALL, NEWEST, TABLES, Rebuild, Wanted, unlocked

NAMES = {1: "did:key:z6MkFirst", 2: "did:key:z6MkSecond", 3: "did:key:z6MkThird"}
COLUMNS = [
    TableColumn(name, kind, name)
    for name, kind in (
        *(("stream", "binary"), ("identity", "string"), ("label", "string"), ("n", "bigint")),
    )
]


class Naming(Rebuild):
    """Writes as many rows as the number of a bucket says, which name an identity and no label."""

    @override
    def _write(self, name: str, bucket: int, number: int) -> None:
        path = Path(self.place.target) / name / self.run / f"bucket={bucket}" / "part.parquet"
        path.parent.mkdir(parents=True)
        rows = {
            "stream": [bytes([bucket])] * number,
            "identity": [NAMES[number]] * number,
            "label": pa.nulls(number, pa.string()),
            "n": [number] * number,
        }
        pq.write_table(pa.table(rows), path)


def made(
    place: TablesPlace, run: str, *numbers: int, base: int | None = None, kept: Kept = NEWEST
) -> Generation:
    rebuild = Naming(place, run, Wanted(numbers), base)
    for _ in rebuild.steps(kept, COLUMNS, hides_names=True):
        pass
    assert rebuild.made is not None
    return rebuild.made


def said_in_log(target: Path, table: str) -> str:
    """What the files of a table's log say, checkpoints included."""
    said = []
    for path in sorted((target / table / "_delta_log").iterdir()):
        is_checkpoint = path.suffix == ".parquet"
        said.append(str(pq.read_table(path).to_pylist()) if is_checkpoint else path.read_text())
    return "\n".join(said)


def statistics(target: Path, table: str) -> list[dict[str, Any]]:
    commits = sorted((target / table / "_delta_log").glob("*.json"))
    actions = [json.loads(line) for path in commits for line in path.read_text().splitlines()]
    return [json.loads(one["add"]["stats"]) for one in actions if "add" in one]


def as_an_earlier_release(target: Path, table: str, number: int) -> None:
    """Give the newest commit the bounds of names, as an earlier release wrote them."""
    newest = max((target / table / "_delta_log").glob("*.json"))
    (said,) = [s for s in statistics(target, table) if s["minValues"]["n"] == number]
    for kind in ("minValues", "maxValues"):
        said[kind]["identity"] = NAMES[number]
    lines = [json.loads(line) for line in newest.read_text().splitlines()]
    for line in lines:
        if "add" in line:
            line["add"]["stats"] = json.dumps(said)
    newest.write_text("\n".join(map(json.dumps, lines)))


def test_the_log_of_a_table_has_no_bounds_of_names_but_all_counts(tmp_path: Path) -> None:
    place = TablesPlace(str(tmp_path))
    made(place, "run-1", 1, 2, kept=ALL)
    for table in TABLES:
        said = said_in_log(tmp_path, table)
        assert [name for name in NAMES.values() if name in said] == []
        assert statistics(tmp_path, table) == [
            {
                "numRecords": number,
                "minValues": {"n": number},
                "maxValues": {"n": number},
                "nullCount": {"stream": 0, "identity": 0, "label": number, "n": 0},
            }
            for number in (1, 2)
        ]


def test_bounds_of_names_that_an_earlier_release_wrote_leave_the_logs_with_their_generation(
    tmp_path: Path,
) -> None:
    place = TablesPlace(str(tmp_path))
    made(place, "run-1", 1)
    for table in TABLES:
        as_an_earlier_release(tmp_path, table, 1)
        assert NAMES[1] in said_in_log(tmp_path, table)
    both = made(place, "run-2", 2, kept=ALL)
    assert place.numbers() == [1, 2]
    place.check(both)
    generation = made(place, "run-3", 3, base=2)
    for table in TABLES:
        said = said_in_log(tmp_path, table)
        assert [name for name in NAMES.values() if name in said] == []
        opened = DeltaTable(f"{tmp_path}/{table}", version=generation.table(table).version)
        assert set(opened.to_pyarrow_table()["identity"].to_pylist()) == {NAMES[3]}


def test_without_a_lock_versions_stay_that_a_rebuild_may_still_name(tmp_path: Path) -> None:
    place = unlocked(tmp_path)
    made(place, "run-1", 1)
    for table in TABLES:
        as_an_earlier_release(tmp_path, table, 1)
        (commit,) = (tmp_path / table / "_delta_log").glob("*.json")
        os.utime(commit, (0, 0))
    late = Naming(place, "late", Wanted((2,)))
    steps = late.steps(NEWEST, COLUMNS, hides_names=True)
    for _ in range(2 * len(TABLES)):
        next(steps)
    made(place, "run-2", 3)
    for table in TABLES:
        said = said_in_log(tmp_path, table)
        assert NAMES[1] not in said, "its commit was made long ago"
    assert next(steps, None) is None
    generation = place.opened()
    assert generation == late.made
    for table in TABLES:
        opened = DeltaTable(f"{tmp_path}/{table}", version=generation.table(table).version)
        assert set(opened.to_pyarrow_table()["identity"].to_pylist()) == {NAMES[2]}


def test_the_logs_of_tables_keep_all_versions_of_the_generations_that_stay(tmp_path: Path) -> None:
    place = TablesPlace(str(tmp_path))
    for number in range(1, 6):
        made(place, f"run-{number}", number % 3 + 1, kept=Kept(newest=2, replaced_s=0))
    for number in place.numbers():
        generation = place.opened(number)
        for table in generation.tables:
            opened = DeltaTable(f"{tmp_path}/{table.name}", version=table.version)
            assert opened.to_pyarrow_table().num_rows == table.rows == number % 3 + 1
    for name in TABLES:
        commits = [path.name for path in (tmp_path / name / "_delta_log").glob("*.json")]
        assert sorted(commits) == [f"{version:020d}.json" for version in (3, 4)]
