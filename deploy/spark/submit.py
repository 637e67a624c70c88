r"""Runs the projections on a Spark cluster, by its own spark-submit.

    python deploy/spark/submit.py [OPTION OF SPARK-SUBMIT ...] -- rebuild --from URI --to URI

    python deploy/spark/submit.py --master yarn --executor-memory 4g \
        -- rebuild --from s3://bucket/export --to s3://bucket/tables

``spark-submit`` is the one of SPARK_HOME, else the one on the path. This program's modules are
handed to it as a zip file. They run in the driver alone, and so need the packages of
``requirements.txt`` there; executors run DataFrame operations, and no Python at all. With
``--deploy-mode cluster`` add the driver's environment by ``--archives``, as Spark describes it.

For s3:// addresses the driver finds credentials twice: as pyarrow does (AWS_ACCESS_KEY_ID, …), and
as Hadoop's s3a does; the cluster needs the package hadoop-aws.
"""  # noqa: INP001

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("eventstore", "projections")


def main(arguments: list[str]) -> int:
    """Start it and wait for its end; its exit code."""
    if "--" not in arguments:
        sys.stderr.write(f"{__doc__}\n")
        return 2
    end = arguments.index("--")
    options, program_arguments = arguments[:end], arguments[end + 1 :]
    home = os.environ.get("SPARK_HOME")
    submit = str(Path(home) / "bin" / "spark-submit") if home else shutil.which("spark-submit")
    if submit is None:
        sys.stderr.write("There is no spark-submit: set SPARK_HOME, or put it on the path.\n")
        return 2
    with tempfile.TemporaryDirectory(prefix="poste-spark-") as scratch:
        modules = Path(scratch) / "poste.zip"
        pack(modules)
        program = str(Path(__file__).with_name("main.py"))
        return subprocess.run(  # noqa: S603 - the operator's own Spark and arguments
            [submit, *options, "--py-files", str(modules), program, *program_arguments], check=False
        ).returncode


def pack(target: Path) -> None:
    """Write the modules of the packages as a zip file."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in PACKAGES:
            for kind in ("*.py", "*.jinja"):
                for module in sorted((ROOT / package).rglob(kind)):
                    archive.write(module, str(module.relative_to(ROOT)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
