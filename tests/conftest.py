"""Fixtures for all tests, and which of them run in one process when several share the run."""

import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator

import hypothesis
import pytest
from _pytest.nodeid import NodeId

pytest_plugins = ("tests.postgres", "tests.spark")

# A shell without job control starts what runs in the background deaf to it, with all its children;
# so does nohup with the other.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

_GARBAGE_OBJECTS = 20_000
_MEMORY = "/dev/shm"
_MEMORY_BYTES_MIN = 6 * 1024**3
_PLACE_BYTES_MAX = 60
"""Sockets of PostgreSQL and of forked processes are in it; the path of one has at most 107."""


def _choose_place_for_files() -> None:
    """Have temporary files in memory where there is room: half of a run waited for its disk.

    Every commit is synced there too, and what is killed leaves its files as it would on a disk.
    What a power cut may leave is played from system calls (tests/crash/disk.py). TMPDIR decides
    where it is set, unless its path is too long for sockets.
    """
    # Of this process alone: what Ray leaves behind when it is killed stays out of memory.
    if "TMPDIR" in os.environ:
        if len(os.fsencode(tempfile.gettempdir())) > _PLACE_BYTES_MAX:
            tempfile.tempdir = "/tmp"
    elif os.path.ismount(_MEMORY) and shutil.disk_usage(_MEMORY).free >= _MEMORY_BYTES_MIN:
        tempfile.tempdir = _MEMORY


_choose_place_for_files()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Look for no garbage among thousands of tests and the modules that they are in.

    All of them stay: to look through them takes half of the time of finding them, and time again
    whenever a test has made some garbage of its own. And there is memory enough to let that wait:
    a twentieth of the time of `make quick`.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
        gc.set_threshold(_GARBAGE_OBJECTS)


# How long an example takes says what else the machine does, and nothing of a promise. A run has the
# examples of the one before: who changed nothing breaks nothing. Others: --hypothesis-profile=new
_SAME = hypothesis.settings(
    deadline=None, derandomize=True, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.register_profile("any-machine", _SAME)
hypothesis.settings.register_profile("quick", _SAME, max_examples=20)
hypothesis.settings.register_profile("new", _SAME, derandomize=False)
hypothesis.settings.load_profile("any-machine")

_STARTED_ONCE = {"server": "server", "two_by_two": "server", "spark": "spark"}
"""Fixtures of a whole run that take long to start, and the group of those who use them."""
_LONG = {"cluster", "crash", "spark", "thorough"}
"""Markers of tests that take seconds each."""
_SHARED_SCOPES = {"module", "package", "session"}
_IN_EACH_PROCESS = {"postgres_server"}


def _group(item: pytest.Item) -> str | None:
    """Tests of one group run one after the other in one process, where they share what is started.

    Short ones go by the file. A long one that shares nothing has no group (None), so that the
    processes end at about the same time.
    """
    found = item._fixtureinfo.name2fixturedefs if isinstance(item, pytest.Function) else {}
    shared = {
        name: used[-1].scope
        for name, used in found.items()
        if used[-1].scope in _SHARED_SCOPES and used[-1].func.__module__.startswith("tests.")
    }
    for name, group in _STARTED_ONCE.items():
        if shared.get(name) in {"package", "session"}:
            return group
    is_long = _LONG & {marker.name for marker in item.iter_markers()}
    is_alone = is_long and shared.keys() <= _IN_EACH_PROCESS
    return None if is_alone else item.nodeid.partition("::")[0]


def _turn(item: pytest.Item) -> int:
    """When a test is due, so that no process is left with a long group at the end.

    All that needs Spark is one group, minutes long, and so comes first; clusters and crashes take
    up to a minute each, most others some seconds.
    """
    markers = {marker.name for marker in item.iter_markers()}
    if "spark" in markers or "spark" in getattr(item, "fixturenames", ()):
        return 0
    if {"cluster", "crash"} & markers:
        return 1
    return 2 if item.nodeid.startswith(("tests/model/", "tests/export/")) else 3


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Who shares such a fixture, or a file, shares a process; what takes long begins first."""
    items.sort(key=_turn)
    is_grouped = getattr(config.option, "loadgroup", False)
    for item in items:
        marker = item.get_closest_marker("xdist_group")
        group = marker.args[0] if marker else _group(item)
        if is_grouped and group:
            # The scheduler reads it there. pytest-xdist 3.8 has no way to write it with pytest 9.2.
            item._id = NodeId.parse(f"{item.nodeid}@{group}")
