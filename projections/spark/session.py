"""Opens a Spark session, by default on this machine.

On this machine it listens only on the loopback address, keeps its memory within a bound, has no
web interface and logs only fatal errors. Under ``spark-submit`` the cluster's own settings stay as
they are.
"""

from __future__ import annotations

import logging
import os
import signal
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread, current_thread, main_thread
from typing import Final, NoReturn

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from projections.spark.java import chosen_java, options, started_by_spark

MEMORY_MIB: Final = 3_072
"""Heap of the one Java process; about 1 GiB comes on top of it."""
PARTS_MAX: Final = 64
"""The most parts in which rows are grouped in local mode; few rows have fewer parts."""
_EVERYWHERE: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    # Files appear once all tasks are done; files of a task that was killed or ran twice never do.
    "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "1",
    "spark.ui.showConsoleProgress": "false",
    # No message of ours says in which line an expression was made: to note that takes up to seven
    # calls of Java, where one makes the expression.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
}
_ON_THIS_MACHINE: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.sql.catalogImplementation": "in-memory",
    # This process lists the files of a large export faster than a job does.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",
    # Small parts: the hash table of one has to fit into memory.
    "spark.sql.shuffle.partitions": str(PARTS_MAX),
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "16m",
    # Each hash table and sorter grows by at least one page, which is 64 MiB by default here.
    "spark.buffer.pageSize": "2m",
    # Most columns of a batch are empty: setting one up costs more than reading it.
    "spark.sql.parquet.columnarReaderBatchSize": "16384",
    # Rows are kept for one rebuild only: compressing them takes longer than reading them again.
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
}
_NAMED_OFTEN: Final = {
    "org.apache.spark.api.python.PythonUtils": ("toSeq",),
    "org.apache.spark.sql.functions": ("col", "lit", "when"),
}
"""Classes that PySpark looks up in Java 1,000 times in the smallest rebuild, mostly without their
package, and those of their methods that it looks up as often. Java searches all jars of Spark for a
name without a package, up to a millisecond each."""
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

_LOCAL_FILES: Final = """
package poste;

import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;

public class LocalFiles extends LocalFileSystem {
    public LocalFiles() {
        super(new Files());
        setWriteChecksum(false);
    }

    public static class Files extends RawLocalFileSystem {
        public void setPermission(Path path, FsPermission permission) {}
    }
}
"""


@contextmanager
def open_session(
    master: str | None = None, *, memory_mib: int = MEMORY_MIB
) -> Iterator[SparkSession]:
    """Open a Spark session that ends with the block.

    Args:
        master: ``local[2]``, ``spark://…``; None for all cores of this machine, or for the master
            of ``spark-submit``.
        memory_mib: heap of the Java process that is started here.

    Raises:
        JavaMissing: there is no Java to start.
        UserUnnamed: the user of this process has no name.
    """
    is_local = False
    if started_by_spark():
        spark = _started(_conf(_EVERYWHERE, master))
    else:
        master = master or "local[*]"
        is_local = master.startswith("local")
        conf = _conf(_EVERYWHERE | (_ON_THIS_MACHINE if is_local else {}), master)
        spark = _in_own_java(conf, master, memory_mib)
    _look_up_once(spark)
    if is_local:
        _start_no_process_for_a_file(spark)
    try:
        yield spark
    except BaseException:
        _stop_quietly(spark)
        raise
    spark.stop()


def _stop_quietly(spark: SparkSession) -> None:
    """End a session after an error; jobs may still run, and Java may no longer answer.

    Their messages are hidden, because the error itself says more.
    """
    with suppress(Py4JError):
        java = spark._jvm.java  # noqa: SLF001 - Spark has no other way to Java
        java.lang.System.setErr(java.io.PrintStream(java.io.OutputStream.nullOutputStream()))
        spark.stop()


def _conf(settings: Mapping[str, str], master: str | None) -> SparkConf:
    conf = SparkConf().setAppName("poste projections").setAll([*settings.items()])
    return conf if master is None else conf.setMaster(master)


def _started(conf: SparkConf) -> SparkSession:
    """Start a session with these settings, which an interrupt ends silently.

    An interrupt while Java starts waits until it has started: before Java has said where it can be
    reached, nothing could end it.
    """
    noted: list[int] = []
    is_main = current_thread() is main_thread()
    if is_main:
        signal.signal(signal.SIGINT, lambda number, _frame: noted.append(number))
    try:
        SparkContext.getOrCreate(conf)
    finally:
        if is_main:
            signal.signal(signal.SIGINT, interrupted)
    if noted:
        interrupted()
    return SparkSession.builder.config(conf=conf).getOrCreate()


def interrupted(*_: object) -> NoReturn:
    """Handle the first interrupt: raise KeyboardInterrupt, and ignore further ones.

    This replaces PySpark's own handler, which asks Java to cancel jobs in the middle of another
    call. That fails, and its library logs both the failure and the interrupt with tracebacks. Jobs
    end with the session.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.disable()
    raise KeyboardInterrupt


def end_with_stdin() -> None:
    """Interrupt this program once its stdin ends, so that it ends with the parent that holds it."""
    main = main_thread().ident
    assert main is not None

    def wait() -> None:
        while os.read(0, 1):
            pass
        signal.pthread_kill(main, signal.SIGINT)  # in that thread it ends a wait for Java

    Thread(target=wait, daemon=True).start()


def _in_own_java(conf: SparkConf, master: str, memory_mib: int) -> SparkSession:
    """Start a Java and a session in it."""
    with (
        tempfile.TemporaryDirectory(prefix="poste-spark-") as scratch,
        chosen_java(Path(scratch)) as java,
    ):
        quiet = Path(scratch) / "log4j2.properties"
        quiet.write_text(_LOG4J, "utf-8")
        to_stderr = f"-Dlog4j2.configurationFile={quiet.as_uri()}"
        conf.set("spark.driver.extraJavaOptions", f"{options(master, java.release)} {to_stderr}")
        conf.set("spark.driver.memory", f"{memory_mib}m")
        return _started(conf)


def _look_up_once(spark: SparkSession) -> None:
    """Keep what PySpark looks up often; py4j keeps nothing that it has found."""
    jvm = spark._jvm  # noqa: SLF001 - Spark has no other way to Java
    for name, methods in _NAMED_OFTEN.items():
        found = getattr(jvm, name)
        for method in methods:
            setattr(found, method, getattr(found, method))
        for each in (name, name.rpartition(".")[2]):
            setattr(jvm, each, found)


def _start_no_process_for_a_file(spark: SparkSession) -> None:
    """Have this Java write local files without starting processes.

    Hadoop sets the permissions of each file and folder that it makes. Without its native library,
    which the wheel of Spark lacks, it starts ``chmod`` for that: 5 ms each, 148 times in the
    smallest rebuild, which takes a fifth less without. With our class, files and folders get the
    permissions of the process's umask, and no second file with a checksum: every file of a table is
    compared with the SHA-256 that its generation names. Janino, a compiler that Spark includes,
    compiles the class. Hadoop makes one object for local files; this replaces that object.
    """
    jvm = spark._jvm  # noqa: SLF001 - Spark has no other way to Java
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()  # noqa: SLF001
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    loader = hadoop.getClassLoader()
    compiler.setParentClassLoader(loader)
    compiler.cook(_LOCAL_FILES)
    files, uri = jvm.org.apache.hadoop.fs.FileSystem, jvm.java.net.URI("file:///")
    files.get(uri, hadoop).close()  # the object that was made before
    own = jvm.org.apache.hadoop.conf.Configuration(hadoop)
    own.setClassLoader(compiler.getClassLoader())
    own.set("fs.file.impl", "poste.LocalFiles")
    files.get(uri, own)
