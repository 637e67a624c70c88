"""Fixtures for all tests, and which of them run in one process when several share the run."""

import os
import shutil
import signal
import tempfile

import hypothesis
import pytest

pytest_plugins = ("tests.postgres", "tests.spark")

# A shell without job control starts what runs in the background deaf to it, with all its children.
signal.signal(signal.SIGINT, signal.default_int_handler)

_MEMORY = "/dev/shm"
_MEMORY_BYTES_MIN = 6 * 1024**3


def _use_memory_for_files() -> None:
    """Have temporary files in memory where there is room: half of a run waited for its disk.

    Every commit is synced there too, and what is killed leaves its files as it would on a disk.
    What a power cut may leave is played from system calls (tests/crash/disk.py). TMPDIR decides
    where it is set.
    """
    if "TMPDIR" in os.environ or not os.path.ismount(_MEMORY):
        return
    if shutil.disk_usage(_MEMORY).free >= _MEMORY_BYTES_MIN:
        # Of this process alone: what Ray leaves behind when it is killed stays out of memory.
        tempfile.tempdir = _MEMORY


_use_memory_for_files()

# How long an example takes says what else the machine does, and nothing of a promise.
hypothesis.settings.register_profile("any-machine", hypothesis.settings(), deadline=None)
hypothesis.settings.register_profile("quick", hypothesis.settings(), deadline=None, max_examples=20)
hypothesis.settings.load_profile("any-machine")

_STARTED_ONCE = ("server", "spark")
"""Fixtures of a whole run that take long to start."""


_LONG = ("tests/model/", "tests/export/")


def _turn(item: pytest.Item) -> int:
    """When a test is due, so that no process is left with a long group at the end.

    All that needs Spark is one group, minutes long, and so comes first; the files of clusters and
    crashes take up to a minute each, most others some seconds.
    """
    markers = {marker.name for marker in item.iter_markers()}
    if "spark" in markers or "spark" in getattr(item, "fixturenames", ()):
        return 0
    if {"cluster", "crash"} & markers:
        return 1
    return 2 if item.nodeid.startswith(_LONG) else 3


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Who shares such a fixture, or a file, shares a process; what takes long begins first."""
    items.sort(key=_turn)
    for item in items:
        wanted = getattr(item, "fixturenames", ())
        shared = [name for name in _STARTED_ONCE if name in wanted]
        group = shared[0] if shared else item.nodeid.partition("::")[0]
        item.add_marker(pytest.mark.xdist_group(group))
