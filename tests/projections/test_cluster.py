"""The way to a real cluster: a master and two workers of Spark's own, processes of this machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import msgspec
import pyspark
import pytest

import projections
from projections.generations.generation import Generation
from projections.generations.place import TablesPlace
from projections.spark.java import chosen_java
from projections.tables import PROJECTIONS
from tests.tidy.modules import ROOT

HOME: Final = Path(pyspark.__file__).parent
END_S: Final = 240
WORKERS: Final = 2
_MASTER: Final = re.compile(r"Starting Spark master at (spark://\S+)")
_REGISTERED: Final = re.compile(r"Successfully registered with master")
_DAEMON_JAVA: Final = (
    # As tests/spark-defaults.conf has it, which a master and a worker do not read.
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    " -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
OPTIONS: Final = {
    "spark.cores.max": str(WORKERS),
    "spark.executor.memory": "512m",
    # Both work from the beginning.
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
}


@contextmanager
def daemon(name: str, said: re.Pattern[str], *arguments: str) -> Iterator[re.Match[str]]:
    """One process of the cluster, once it says that it is ready."""
    process = subprocess.Popen(
        [HOME / "bin" / "spark-class", f"org.apache.spark.deploy.{name}", *arguments],
        env=os.environ
        | {
            "SPARK_HOME": str(HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_JAVA_OPTS": _DAEMON_JAVA,
        },
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    lines: list[str] = []
    reading: threading.Thread | None = None
    try:
        for line in process.stderr:
            lines.append(line)
            if found := said.search(line):
                break
        else:
            raise AssertionError("".join(lines))
        # What it says later is read as well, or it would stop when the pipe is full.
        reading = threading.Thread(target=process.stderr.read)
        reading.start()
        yield found
    finally:
        process.terminate()
        process.wait()
        if reading is not None:
            reading.join()
        process.stderr.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def cluster(folder: Path) -> Iterator[str]:
    """The address of the master; it ends with the module."""
    quiet = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    with ExitStack() as running:
        running.enter_context(chosen_java(folder))
        master = running.enter_context(daemon("master.Master", _MASTER, *quiet))[1]
        for number in range(WORKERS):
            own = ("--cores", "1", "--memory", "1g", "--work-dir", str(folder / f"worker-{number}"))
            running.enter_context(daemon("worker.Worker", _REGISTERED, *quiet, *own, master))
        yield master


def submit(master: str, *arguments: str) -> str:
    settings = [each for name, value in OPTIONS.items() for each in ("--conf", f"{name}={value}")]
    program = [sys.executable, str(ROOT / "deploy/spark/submit.py"), "--master", master, *settings]
    ran: subprocess.CompletedProcess[str] = subprocess.run(
        [*program, "--", *arguments],
        env=os.environ | {"SPARK_HOME": str(HOME), "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
        timeout=END_S,
    )
    assert ran.returncode == 0, ran.stderr + ran.stdout
    return ran.stdout


def rows_in(export: Path, tables: Path) -> dict[str, list[str]]:
    """The rows of all tables; how Spark shares them out among files is not the same everywhere."""
    with projections.open(str(export), tables=str(tables)) as log:
        names = [projection.name for projection in PROJECTIONS]
        return {name: sorted(map(repr, log.arrow(name).to_pylist())) for name in names}


@pytest.mark.spark
@pytest.mark.timeout(2 * END_S)
def test_two_workers_rebuild_the_tables_that_one_process_does(
    cluster: str, folder: Path, filled: Path
) -> None:
    export, target = filled / "export", folder / "by-cluster"
    said = submit(cluster, "rebuild", "--from", str(export), "--to", str(target), "--json")
    made = msgspec.json.decode(said[said.index('{"format"') :], type=Generation)
    here = TablesPlace(str(filled / "tables")).opened()
    assert here is not None
    assert {t.name: t.rows for t in made.tables} == {t.name: t.rows for t in here.tables}
    assert rows_in(export, target) == rows_in(export, filled / "tables")
    for number in range(WORKERS):
        assert list((folder / f"worker-{number}").glob("app-*/*")), "it had no part in it"
