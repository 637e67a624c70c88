"""Ending processes that a benchmark has started, and no others."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterable
from typing import Final

GONE_S_MAX: Final = 30.0


def signalled(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to processes, some of which may have ended meanwhile."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def kill_all(pids: Iterable[int]) -> None:
    """``kill -9``; return when all have ended.

    Raises:
        RuntimeError: one has not ended after 30 s.
    """
    wanted = list(dict.fromkeys(pids))
    signalled(wanted, signal.SIGKILL)
    for pid in wanted:
        if not has_ended(pid):
            raise RuntimeError(f"process {pid} does not end")


def has_ended(pid: int) -> bool:
    """Wait for the end of a process, of ours or not: did it come within 30 s?"""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], GONE_S_MAX)[0])
    finally:
        os.close(descriptor)
