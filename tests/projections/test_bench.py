"""The benchmark's log is one that the mediator could have written, and its comparison is fair."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from eventstore.open_log import open_log
from eventstore.verify import Summary, verify
from http_edge.bench.folded_export import fold_export
from http_edge.bench.folded_tables import differing, write_tables
from http_edge.bench.folding import Job, command
from http_edge.bench.made_log import transactions, write_log
from http_edge.bench.programs import run_programs
from http_edge.bench.projections import plan, run
from http_edge.cli.bench import bench
from projections.read import open_export
from projections.rebuild import PROJECTIONS, rebuild
from tests.projections.exports import export_log

EVENTS = 6_000


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A folder with a made-up log and its export."""
    assert write_log(tmp_path / "log.db", EVENTS, payload_bytes=50) >= EVENTS
    with closing(open_log(f"sqlite:{tmp_path / 'log.db'}")) as log:
        export_log(log, tmp_path / "export", rows_max=2_000)
    return tmp_path


def test_a_made_up_log_is_sealed_and_the_same_for_a_seed(tmp_path: Path) -> None:
    written = write_log(tmp_path / "log.db", EVENTS, payload_bytes=50, seed=7)
    with closing(open_log(f"sqlite:{tmp_path / 'log.db'}")) as log:
        *findings, summary = verify(log)
        rows = log.read_log(limit=10 * EVENTS)
    assert findings == []
    assert isinstance(summary, Summary)
    assert (summary.position, len(rows)) == (written, written)
    made = transactions(7, 50)
    again = [next(made) for _ in range(summary.seals)]
    flat = [row for transaction in again for row in transaction][:written]
    assert [row.state for row in flat] == [row.state for row in rows]


@pytest.mark.spark
def test_rebuilt_tables_are_those_that_one_plain_program_folds(
    spark: SparkSession, made: Path
) -> None:
    export = open_export(str(made / "export"))
    until = EVENTS - 100
    tables = rebuild(spark, export, str(made / "tables"), as_of=until)
    fold = fold_export(made / "export", until)
    rows = write_tables(fold, made / "folded")
    assert rows == {table.name: table.rows for table in tables.tables}
    assert all(rows[projection.name] for projection in PROJECTIONS)
    assert differing(made / "tables", made / "folded") == []
    write_tables(fold_export(made / "export", until - 50), made / "folded")
    assert "identities" in differing(made / "tables", made / "folded")


def test_parts_of_a_fold_are_the_whole(made: Path, tmp_path: Path) -> None:
    whole = write_tables(fold_export(made / "export", EVENTS), tmp_path / "whole")
    export = str(made / "export")
    jobs = [Job(export, EVENTS, str(tmp_path / f"part-{n}"), n, 2) for n in (0, 1)]
    ran = run_programs(*map(command, jobs), scratch=tmp_path)
    parts = [msgspec.json.decode(output) for output in ran.outputs]
    del whole["nonces"]  # each part forgets those that expired by its own last event
    assert {name: sum(part[name] for part in parts) for name in whole} == whole
    assert ran.memory_peak_bytes > 0


def test_a_program_that_fails_is_told_with_its_last_words(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="it went wrong"):
        run_programs([sys.executable, "-c", "raise SystemExit('it went wrong')"], scratch=tmp_path)


def test_a_disk_that_is_too_small_is_said_before_anything_is_made(tmp_path: Path) -> None:
    wanted = msgspec.structs.replace(plan(10_000, serving=False), events=10**15)
    with pytest.raises(RuntimeError, match="MiB of disk are needed"):
        run(wanted, tmp_path, lambda _title, _total: lambda _done: None, lambda _line: None)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("kept")
    done = CliRunner().invoke(bench, ["projections", "--keep", str(tmp_path)])
    assert (done.exit_code, "is not empty" in done.output) == (2, True)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
