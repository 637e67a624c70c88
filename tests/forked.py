"""Processes that a server forks which has imported what they need: that takes longest of all.

There is one server in a process of tests, and it imports when it starts, so all is named here: the
modules of the functions, and what Arrow imports once it is used, two thirds of the time of a child.
"""

from __future__ import annotations

from multiprocessing import get_context
from multiprocessing.context import ForkServerProcess
from typing import Any, Final

_PRELOADED: Final = [
    "pandas",
    "pyarrow.acero",
    "pyarrow.dataset",
    "pyarrow.pandas_compat",
    "tests.crash.killed_expiry",
    "tests.crash.owner",
    "tests.export.killed_archiving",
    "tests.export.killed_exporter",
    "tests.export.killed_restore",
]
_END_S: Final = 120


def started(target: Any, *arguments: Any) -> ForkServerProcess:
    """A forked process that has begun to call this function of a module that is named above."""
    server = get_context("forkserver")
    server.set_forkserver_preload(_PRELOADED)
    process = server.Process(target=target, args=arguments)
    process.start()
    return process


def exit_code_of(target: Any, *arguments: Any) -> int | None:
    """How a process ended that called this function of such a module; None if it goes on."""
    process = started(target, *arguments)
    process.join(_END_S)
    try:
        return process.exitcode
    finally:
        process.kill()
        process.join()
        process.close()
