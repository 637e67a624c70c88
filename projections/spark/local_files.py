"""Lets Spark write local files without starting a process for each.

Hadoop sets the permissions of each file and folder that it makes. Without its native library, which
the wheel of Spark lacks, it starts ``chmod`` for that: 5 ms each, 148 times in the smallest
rebuild, which takes a fifth less without. With this class, files and folders get the permissions of
the process's umask, and no second file with a checksum: every file of a table is compared with the
SHA-256 that its generation names.

Janino, a compiler that Spark includes, compiles the class; no jar is needed.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import SparkSession

_CLASS: Final = "poste.LocalFiles"
_SOURCE: Final = """
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
_IMPLEMENTATION: Final = "fs.file.impl"
_URI: Final = "file:///"


def start_no_process_for_a_file(spark: SparkSession) -> None:
    """Have this Java write local files without starting processes.

    Hadoop makes one object for local files, and gives it to all callers; this replaces that object.
    """
    jvm = spark._jvm  # noqa: SLF001 - Spark has no other way to Java
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()  # noqa: SLF001
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    loader = hadoop.getClassLoader()
    compiler.setParentClassLoader(loader)
    compiler.cook(_SOURCE)
    files, uri = jvm.org.apache.hadoop.fs.FileSystem, jvm.java.net.URI(_URI)
    files.get(uri, hadoop).close()  # the object that was made before
    own = jvm.org.apache.hadoop.conf.Configuration(hadoop)
    own.setClassLoader(compiler.getClassLoader())
    own.set(_IMPLEMENTATION, _CLASS)
    files.get(uri, own)
