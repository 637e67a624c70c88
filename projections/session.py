"""One Spark session: on this machine by default, unchanged on a cluster.

On this machine it listens on the loopback address alone, keeps its memory within a bound, shows no
web page and writes no log but errors. Under ``spark-submit`` the cluster's own settings stay as
they are.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from projections.java import chosen_java, started_by_spark

MEMORY_MIB: Final = 3_072
"""Heap of the one Java process; about 1 GiB comes on top of it."""
_EVERYWHERE: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "spark.ui.showConsoleProgress": "false",
}
_ON_THIS_MACHINE: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.sql.catalogImplementation": "in-memory",
    # The files of a large export are listed here faster than by a job.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",
    # Small parts: a hash table of one has to fit into memory.
    "spark.sql.shuffle.partitions": "64",
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "16m",
    # Most columns of a batch are empty: each costs less than its beginning.
    "spark.sql.parquet.columnarReaderBatchSize": "16384",
    # Rows that are kept for one rebuild: compressing them takes longer than reading them again.
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
}
_JAVA: Final = "-XX:+UseParallelGC -XX:TieredStopAtLevel=1"
"""Most code runs for seconds only: to compile it thoroughly takes more than it gives. A rebuild of
1,000,000 events takes 49 seconds of CPU instead of 74, and less memory; one of 10,000,000 still
gains."""
_LOG4J: Final = """rootLogger.level = fatal
rootLogger.appenderRef.stderr.ref = stderr
logger.python.name = org.apache.spark.api.python.PythonGatewayServer
logger.python.level = fatal
appender.console.type = Console
appender.console.name = stderr
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %p %c{1}: %m%n
"""


@contextmanager
def open_session(
    master: str | None = None, *, memory_mib: int = MEMORY_MIB
) -> Iterator[SparkSession]:
    """A Spark session that ends with the block.

    Args:
        master: ``local[2]``, ``spark://…``; None for all cores of this machine, or for what
            ``spark-submit`` was told.
        memory_mib: heap of the Java process that is started here.

    Raises:
        JavaMissing: there is no Java to start.
    """
    if started_by_spark():
        settings = _EVERYWHERE
    else:
        master = master or "local[*]"
        is_local = master.startswith("local")
        settings = _EVERYWHERE | (_ON_THIS_MACHINE if is_local else {})
    if master is not None:
        settings = settings | {"spark.master": master}
    spark = _started(settings, memory_mib)
    try:
        yield spark
    finally:
        spark.stop()


def _started(settings: dict[str, str], memory_mib: int) -> SparkSession:
    builder = SparkSession.builder.appName("poste projections")
    for name, value in settings.items():
        builder = builder.config(name, value)
    if started_by_spark():
        return builder.getOrCreate()
    with tempfile.TemporaryDirectory(prefix="poste-spark-") as scratch:
        quiet = Path(scratch) / "log4j2.properties"
        quiet.write_text(_LOG4J, "utf-8")
        logging = f"-Dlog4j2.configurationFile={quiet.as_uri()}"
        builder = builder.config("spark.driver.extraJavaOptions", f"{_JAVA} {logging}")
        builder = builder.config("spark.driver.memory", f"{memory_mib}m")
        with chosen_java(Path(scratch)):
            return builder.getOrCreate()
