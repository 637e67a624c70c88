"""One Spark session for a whole test run: starting one takes longer than most tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Of programs that tests start, too: ``spark-defaults.conf`` stands beside this file.
os.environ["SPARK_CONF_DIR"] = str(Path(__file__).parent)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session of one thread."""
    # Imported here, so that tests that need no Spark run where it is not installed.
    from projections.spark.session import open_session  # noqa: PLC0415

    with open_session("local[1]", memory_mib=1_024) as session:
        yield session
