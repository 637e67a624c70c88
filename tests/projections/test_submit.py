"""The way to a cluster: the same program, started by ``spark-submit``."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from eventstore.parquet.audit.answering import Answer, OfReplays, Question
from eventstore.stores.open_log import open_log
from projections.spark.java import chosen_java
from tests.histories import History, random_script
from tests.projections.exports import export_log
from tests.tidy.modules import ROOT


@pytest.mark.spark
def test_spark_submit_runs_the_program_from_its_zip_file_alone(tmp_path: Path) -> None:
    with closing(open_log(f"sqlite:{tmp_path / 'log.db'}")) as log:
        History(log).play(random_script(11, 5))
        export_log(log, tmp_path / "export")
        position = log.position()
    # A copy: it hands over the packages beside it, whatever else Python would find.
    copied = tmp_path / "copied"
    for folder in ("deploy/spark", "eventstore", "projections"):
        shutil.copytree(ROOT / folder, copied / folder)
    mark = copied / "projections" / "audit.py"
    mark.write_text(f"{mark.read_text()}\nclick.echo(__file__, err=True)\n")
    options = ["--master", "local[1]"]
    for setting in ("spark.sql.shuffle.partitions=1", "spark.ui.enabled=false"):
        options += ["--conf", setting]
    question = Question(source=str(tmp_path / "export"), subject=OfReplays(), rows_max=1)
    arguments = ["audit", msgspec.json.encode(question).decode()]
    with chosen_java(tmp_path):
        scripts = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment = os.environ | {"PATH": scripts, "PYSPARK_PYTHON": sys.executable}
        environment.pop("PYTHONPATH", None)
        done = subprocess.run(
            [
                sys.executable,
                copied / "deploy/spark/submit.py",
                *options,
                "--",
                *arguments,
            ],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    # spark-submit hands on what its program writes on stderr, warnings too, as its own output.
    *said, document = done.stdout.splitlines()
    assert "/poste.zip/projections/audit.py" in "\n".join(said)
    assert msgspec.json.decode(document, type=Answer).positions == (position,)


def test_the_zip_file_has_all_that_a_report_is_made_of(tmp_path: Path) -> None:
    packed = tmp_path / "poste.zip"
    runpy.run_path(str(ROOT / "deploy/spark/submit.py"))["pack"](packed)
    program = f"""
import sys
sys.path.insert(0, {str(packed)!r})
from projections.report import page
from projections.report.numbers import NUMBERS
assert page.__file__.startswith({str(packed)!r})
print(page.page(None, {{number.name: [] for number in NUMBERS}}, []))
"""
    command = [sys.executable, "-c", program]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "The export has no events yet." in ran.stdout


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    for arguments, path, said in (
        ([], os.environ["PATH"], "OPTION OF SPARK-SUBMIT"),
        (["--"], str(tmp_path), "There is no spark-submit"),
    ):
        done = subprocess.run(
            [sys.executable, ROOT / "deploy/spark/submit.py", *arguments],
            env={"PATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, said in done.stderr) == (2, True)
