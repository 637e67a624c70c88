"""One Spark session for a whole test run: starting one takes longer than most tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The tables of tests are small: what makes large ones fast would only take longer."""
    # Imported here, so that tests that need no Spark run where it is not installed.
    from projections.spark.session import open_session  # noqa: PLC0415

    settings = tmp_path_factory.mktemp("spark") / "spark-defaults.conf"
    java = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=128m"
    settings.write_text(f"spark.driver.defaultJavaOptions {java}\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_CONF_DIR", str(settings.parent))
        with open_session("local[1]", memory_mib=1_024) as session:
            session.conf.set("spark.sql.shuffle.partitions", "1")
            # Code that runs over few rows takes longer to generate and compile than to interpret.
            session.conf.set("spark.sql.codegen.wholeStage", "false")
            session.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
            yield session
