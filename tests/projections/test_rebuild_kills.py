"""A rebuild that runs, as other rebuilds see it, and what is there after it was killed."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from eventstore.stores.open_log import open_log
from projections.errors import BUSY
from projections.generations.place import TablesPlace
from projections.program import projections
from projections.rebuild.rebuild import rebuild
from projections.spark.export import open_export
from tests.cluster.server import ended, processes_of
from tests.histories import History, random_script
from tests.projections.exports import export_log, read_tables
from tests.projections.test_rebuild import folded
from tests.tidy.modules import ROOT

_WAIT_S = 120
_LOOK_S = 0.05


@contextmanager
def running(source: Path, target: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A rebuild in a process of its own, which is killed at the end of the block."""
    options = ["--from", str(source), "--to", str(target), "--master", "local[1]"]
    command = [sys.executable, "-m", "projections", "rebuild", *options]
    with subprocess.Popen(
        command, cwd=ROOT, stderr=subprocess.DEVNULL, start_new_session=True
    ) as program:
        try:
            yield program
        finally:
            program.kill()


def wait_for_files(program: subprocess.Popen[bytes], target: Path) -> None:
    """Until the first table is written; the program must not end before."""
    while not _has_files(target):
        assert program.poll() is None
        threading.Event().wait(_LOOK_S)


def _has_files(target: Path) -> bool:
    with suppress(FileNotFoundError):  # a folder of a job that has just ended
        return any(target.glob("*/*/*/*.parquet"))
    return False


@pytest.mark.spark
def test_a_running_rebuild_lets_no_other_in_and_may_be_killed(
    spark: SparkSession, tmp_path: Path
) -> None:
    source, target = tmp_path / "export", tmp_path / "tables"
    with closing(open_log(f"sqlite:{tmp_path / 'log.db'}")) as log:
        History(log).play(random_script(8, 60))
        export_log(log, source)
        with running(source, target) as program:
            wait_for_files(program, target)
            other = ["rebuild", "--from", str(source), "--to", str(target)]
            refused = CliRunner().invoke(projections, other)
            assert refused.exit_code == BUSY
            assert "another rebuild writes to this place" in refused.stderr
            program.kill()
            program.wait()
            # Java ends when it finds its parent gone, and writes until then.
            assert all(ended(pid, _WAIT_S) for pid, _ in processes_of([program.pid]))
        assert TablesPlace(str(target)).generation() is None
        made = rebuild(spark, open_export(str(source)), str(target), incremental=True)
        assert read_tables(target, made) == folded(log)
        named = {f"{t.name}/{f.path}" for t in made.tables for f in t.files}
        found = {str(path.relative_to(target)) for path in target.glob("*/*/*/*.parquet")}
        assert found == named  # nothing is left of the one that was killed
