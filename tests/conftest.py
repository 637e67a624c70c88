"""Fixtures for all tests, and which of them run in one process when several share the run."""

import signal

import hypothesis
import pytest

pytest_plugins = ("tests.postgres", "tests.spark")

# A shell without job control starts what runs in the background deaf to it, with all its children.
signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says what else the machine does, and nothing of a promise.
hypothesis.settings.register_profile("any-machine", hypothesis.settings(), deadline=None)
hypothesis.settings.load_profile("any-machine")

_STARTED_ONCE = ("server", "spark")
"""Fixtures of a whole run that take long to start."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Who shares such a fixture, or a file, shares a process; what takes long begins first."""
    items.sort(key=lambda item: not {"cluster", "crash"} & {m.name for m in item.iter_markers()})
    for item in items:
        wanted = getattr(item, "fixturenames", ())
        shared = [name for name in _STARTED_ONCE if name in wanted]
        group = shared[0] if shared else item.nodeid.partition("::")[0]
        item.add_marker(pytest.mark.xdist_group(group))
