"""Every write and every sync fails once, each in a run of its own: no false answer, nothing lost.

After SQLite's own tests: let the Nth call fail, for N = 1, 2, 3 ... until nothing fails any more.
"""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pytest

from eventstore.stores.open_log import open_log
from tests.crash.commands import UNAVAILABLE, accepted, introduced, introduction, message
from tests.crash.conftest import Report
from tests.crash.disk import STRACE
from tests.crash.owner import Owner
from tests.crash.storage import assert_kept

pytestmark = [
    pytest.mark.crash,
    pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed"),
]
TEXTS = [f"message {number}" for number in range(4)]
CALLS_MAX = 200
AT_ONCE = 2


class Run(NamedTuple):
    """What one run with a failing call came to."""

    failed: bool
    accepted: int
    unknown: int


@pytest.mark.parametrize(
    ("call", "error", "killed"),
    [
        # SQLite looks at the error of a write, and takes any of a sync as one.
        ("fdatasync", "EIO", False),
        ("fdatasync", "EIO", True),
        ("pwrite64", "EIO", True),
        ("pwrite64", "ENOSPC", False),
    ],
)
def test_no_failing_call_makes_a_false_answer(
    tmp_path: Path, report: Report, call: str, error: str, killed: bool
) -> None:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        runs = list(until_nothing_fails(pool, tmp_path, f"{call}:error={error}", killed=killed))
    unknown = sum(run.unknown for run in runs)
    report(
        f"{len(runs)} calls failed in turn, {sum(run.accepted for run in runs)} messages accepted,"
        f" {unknown} unknown, 0 accepted ones lost"
    )
    assert unknown > 0


def until_nothing_fails(
    pool: ThreadPoolExecutor, directory: Path, fault: str, *, killed: bool
) -> Iterator[Run]:
    """The runs in which the first, second, third ... call of a thread failed."""
    for first in count(1, AT_ONCE):
        assert first < CALLS_MAX, "calls fail without end"
        numbers = range(first, first + AT_ONCE)
        folders = [directory / f"{number}" for number in numbers]
        faults = [f"{fault}:when={number}" for number in numbers]
        for run in pool.map(fail, folders, faults, [killed] * AT_ONCE):
            if not run.failed:
                return
            yield run


def fail(directory: Path, fault: str, killed: bool) -> Run:
    """One run of a fresh process on a fresh log, and the check of what it has left.

    A process that is ``killed`` dies with the error; the other one has to go on.
    """
    directory.mkdir()
    dsn, trace = f"sqlite:{directory / 'log.db'}", directory / "trace"
    with closing(open_log(dsn)):
        pass  # the log is made: what may fail is the work on it
    call = fault.partition(":")[0]
    strace = [*STRACE, f"-o{trace}", f"-etrace={call}", f"-einject={fault}"]
    with Owner.traced(dsn, strace) as owner:
        replies = [owner.ask(*introduction())]
        known = introduced(replies[0])
        for text in TEXTS if known else []:
            replies.append(owner.ask(message(text)))
            if killed and replies[-1] == [UNAVAILABLE]:
                break
        if killed:
            owner.signal(signal.SIGKILL)
        elif known:
            # One call failed, so of two further messages one is stored at least.
            replies += [owner.ask(message(text)) for text in ("last but one", "last")]
            assert replies[-2:] != [[UNAVAILABLE]] * 2
            owner.stop()
    request = [*TEXTS, "last but one", "last"] if not killed else TEXTS
    texts = accepted(request[: len(replies) - 1], replies[1:])
    assert_kept(dsn, request, texts)
    return Run("(INJECTED)" in trace.read_text(), len(texts), len(replies) - 1 - len(texts))
