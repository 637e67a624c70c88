"""One Spark session for a whole test run: starting one takes longer than most tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Of programs that tests start, too: ``spark-defaults.conf`` stands beside this file.
os.environ["SPARK_CONF_DIR"] = str(Path(__file__).parent)
_COMMANDS = ("audit", "compare", "rebuild.program")
_ASKING = ("audit", "live_comparison")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session of one thread."""
    # Imported here, so that tests that need no Spark run where it is not installed.
    from projections.spark.session import open_session  # noqa: PLC0415

    with open_session("local[1]", memory_mib=1_024) as session:
        yield session


@pytest.fixture
def spark_here(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    """The same for commands, of which each would start one of its own, in a process of its own."""
    from projections.program import projections  # noqa: PLC0415

    def answered(arguments: Sequence[str]) -> tuple[int, bytes]:
        done = CliRunner().invoke(projections, arguments)
        sys.stderr.write(done.stderr)
        return done.exit_code, done.stdout.encode()

    for name in _COMMANDS:
        monkeypatch.setattr(f"projections.{name}.open_session", lambda *_, **__: nullcontext(spark))
    for name in _ASKING:
        monkeypatch.setattr(f"http_edge.cli.{name}.answer_of_program", answered)
    return spark
