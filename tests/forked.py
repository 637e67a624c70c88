"""Processes that a server forks which has imported what they need: that takes longest of all.

There is one server in a process of tests, and it imports when it starts, so all is named here.
"""

from __future__ import annotations

from multiprocessing import get_context
from multiprocessing.context import ForkServerProcess
from typing import Any, Final

_PRELOADED: Final = [
    "tests.crash.killed_expiry",
    "tests.crash.owner",
    "tests.export.killed_archiving",
    "tests.export.killed_exporter",
]


def started(target: Any, *arguments: Any) -> ForkServerProcess:
    """A forked process that has begun to call this function of a module that is named above."""
    server = get_context("forkserver")
    server.set_forkserver_preload(_PRELOADED)
    process = server.Process(target=target, args=arguments)
    process.start()
    return process
