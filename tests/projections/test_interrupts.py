"""An interrupt ends a program of Spark with one line at most, whatever it waits for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from eventstore.stores.open_log import open_log
from projections.rebuild.rebuild import rebuild
from projections.report.numbers import Number, compute
from projections.spark.export import open_export
from projections.tables import PROJECTIONS
from projections.tables.projection import Projection
from projections.views.view import View
from tests.cluster.server import ended as has_ended
from tests.cluster.server import processes_of
from tests.cluster.server import send as send_signal
from tests.histories import History, random_script
from tests.projections.exports import export_log
from tests.tidy.modules import ROOT

_WAIT_S = 120
_IN_JAVA = """
import sys
from projections.spark.session import end_with_stdin, open_session

end_with_stdin()
try:
    with open_session("local[1]") as spark:
        print("ready", flush=True)
        spark.range(10**15).selectExpr("sum(id % 7)").collect()
except KeyboardInterrupt:
    sys.exit(130)
"""
"""The main thread waits for a job in Java, as in most of a rebuild."""
_ALONE = [sys.executable, "-m", "projections"]


def test_an_interrupt_of_the_program_by_itself_ends_it_with_one_line(tmp_path: Path) -> None:
    key = tmp_path / "key"
    os.mkfifo(key)
    with (
        subprocess.Popen(
            [*_ALONE, "report", "--from", "x", "--to", "y", "--pseudonymise", str(key)],
            cwd=ROOT,
            stderr=subprocess.PIPE,
        ) as program,
        key.open("wb"),
    ):  # once the program reads it
        program.send_signal(signal.SIGINT)
        _, said = program.communicate(timeout=_WAIT_S)
    assert (program.returncode, said.strip()) == (130, b"projections: interrupted")


@pytest.mark.parametrize("imported", ["pyarrow", "click"])
def test_an_interrupt_while_the_program_imports_ends_it_with_one_line(
    tmp_path: Path, imported: str
) -> None:
    interrupts = "import os, signal; os.kill(os.getpid(), signal.SIGINT)"
    (tmp_path / f"{imported}.py").write_text(interrupts)  # found before the real one
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(_ALONE, cwd=ROOT, env=env, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (130, b"projections: interrupted\n")


@pytest.mark.spark
@pytest.mark.parametrize("by", ["signal", "end of stdin"])
def test_an_interrupt_in_a_call_of_java_prints_no_traceback(by: str) -> None:
    command = [sys.executable, "-c", _IN_JAVA]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as program:
        try:
            assert program.stdin is not None
            assert program.stdout is not None
            assert program.stderr is not None
            assert program.stdout.readline() == b"ready\n"
            if by == "signal":
                program.send_signal(signal.SIGINT)
            else:
                program.stdin.close()
            program.wait(_WAIT_S)
            said = program.stderr.read()
        finally:
            program.kill()
    assert (program.returncode, said.split()) == (130, [])


@pytest.mark.spark
def test_an_interrupt_ends_the_tables_that_are_being_written_and_begins_no_other(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What others do in the same Spark goes on."""
    begun: list[str] = []

    def stage(_run: object, projection: Projection, *_: object) -> SimpleNamespace:
        begun.append(projection.name)
        if projection in PROJECTIONS[1:3]:
            spark.range(10**15).selectExpr("sum(id % 7)").collect()
        return SimpleNamespace(name=projection.name)

    def count() -> int:
        spark.sparkContext.setJobGroup("others", "")
        return int(spark.range(5).count())

    def interrupt(_name: str) -> None:
        counted.append(others.submit(count))
        while not spark.sparkContext.statusTracker().getJobIdsForGroup("others"):
            pass
        raise KeyboardInterrupt

    monkeypatch.setattr("projections.rebuild.rebuild._Run._stage", stage)
    with closing(open_log(f"sqlite:{tmp_path / 'log.db'}")) as log:
        History(log).play(random_script(8, 20))
        export_log(log, tmp_path / "export")
    export, counted = open_export(str(tmp_path / "export")), list[Future[int]]()
    with ThreadPoolExecutor() as others:
        try:
            with pytest.raises(KeyboardInterrupt):
                rebuild(spark, export, str(tmp_path / "tables"), progress=interrupt)
            assert [one.result(_WAIT_S) for one in counted] == [5]
        finally:
            spark.sparkContext.cancelAllJobs()
    assert len(begun) <= 3


@pytest.mark.spark
def test_a_number_of_a_report_that_fails_ends_the_others(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[DataFrame] = []

    def hide(rows: DataFrame) -> DataFrame:
        begun.append(rows)
        return rows if len(begun) < 3 else rows.limit(0)

    spark.range(10**15).selectExpr("sum(id % 7) AS id").createOrReplaceTempView("endless")
    numbers = [
        Number(View(name, "", {"id": ""}, "", ("id",)), "")
        for name in ("missing", *["endless"] * 4)
    ]
    monkeypatch.setattr("projections.report.numbers.NUMBERS", numbers)
    try:
        with pytest.raises(AnalysisException, match="missing"):
            [*compute(spark, hide)]
    finally:
        spark.sparkContext.cancelAllJobs()
        spark.catalog.dropTempView("endless")
    assert len(begun) <= 2


@pytest.mark.spark
@pytest.mark.parametrize(
    ("send", "number", "ended"),
    [
        (os.kill, signal.SIGINT, (130, b"poste: interrupted")),
        (os.killpg, signal.SIGINT, (130, b"poste: interrupted")),
        (os.kill, signal.SIGTERM, (143, b"")),
        (os.kill, signal.SIGKILL, (-9, b"")),
    ],
    ids=["poste", "terminal", "terminated", "killed"],
)
def test_an_interrupt_as_java_starts_is_one_line_and_leaves_no_process_and_no_file(
    send: Callable[[int, int], None],
    number: signal.Signals,
    ended: tuple[int, bytes],
    tmp_path: Path,
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with closing(open_log(f"sqlite:{tmp_path / 'log.db'}")) as log:
        History(log).play(random_script(8, 20))
        export_log(log, tmp_path / "export")
    options = ["--from", str(tmp_path / "export"), "--to", str(tmp_path / "tables")]
    code = "from http_edge.cli.main import main; main()"
    with subprocess.Popen(
        [sys.executable, "-c", code, "rebuild", *options, "--master", "local[1]"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"TMPDIR": str(scratch)},
        start_new_session=True,
    ) as program:
        try:
            while "java" not in [name for _, name in processes_of([program.pid])]:
                assert program.poll() is None
            send(program.pid, number)
            _, said = program.communicate(timeout=_WAIT_S)
            # Java may still be about to end when it has closed its output, which ends the wait.
            left = [pid for pid, _ in processes_of([program.pid]) if not has_ended(pid, _WAIT_S)]
        finally:
            for pid, _ in processes_of([program.pid]):
                send_signal(pid, signal.SIGKILL)
    assert (program.returncode, said.strip()) == ended
    assert left == []
    assert [*scratch.iterdir()] == []
    assert not (tmp_path / "tables" / "generations").exists()
