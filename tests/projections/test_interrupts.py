"""An interrupt ends a program of Spark without words, whatever it waits for."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.tidy.modules import ROOT

_WAIT_S = 120
_IN_JAVA = """
import sys
from projections.spark.session import open_session

try:
    with open_session("local[1]") as spark:
        print("ready", flush=True)
        spark.range(10**15).selectExpr("sum(id % 7)").collect()
except KeyboardInterrupt:
    sys.exit(130)
"""
"""The main thread waits for a job in Java, as in most of a rebuild."""


@pytest.mark.spark
def test_an_interrupt_in_a_call_of_java_prints_no_traceback() -> None:
    command = [sys.executable, "-c", _IN_JAVA]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as program:
        try:
            assert program.stdout is not None
            assert program.stdout.readline() == b"ready\n"
            program.send_signal(signal.SIGINT)
            _, said = program.communicate(timeout=_WAIT_S)
        finally:
            program.kill()
    assert (program.returncode, said.split()) == (130, [])
