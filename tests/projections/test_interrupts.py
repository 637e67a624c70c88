"""An interrupt ends a program of Spark with one line at most, whatever it waits for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from eventstore.stores.open_log import open_log
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
