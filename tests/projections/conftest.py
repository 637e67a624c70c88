"""One log with its export and tables for all tests that only read them."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from eventstore.stores.open_log import open_log
from projections.rebuild.rebuild import rebuild
from projections.spark.export import open_export
from tests.projections.exports import export_log
from tests.projections.logs import fill

EVENTS_OF_BUCKET = 60


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Path:
    """A folder with ``log.db``, its ``export``, and ``tables`` of all that, in several buckets.

    Tests that change something change a copy.
    """
    folder = tmp_path_factory.mktemp("filled")
    with closing(open_log(f"sqlite:{folder / 'log.db'}")) as log:
        fill(log)
        export_log(log, folder / "export", rows_max=300)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("projections.rebuild.writing.EVENTS_OF_BUCKET", EVENTS_OF_BUCKET)
        rebuild(spark, open_export(str(folder / "export")), str(folder / "tables"))
    return folder
