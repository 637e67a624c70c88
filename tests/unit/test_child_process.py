"""Child processes: one that cannot be started is tried again, and one that stays is killed.

Nothing that a child says waits for the reader of stderr.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from http_edge.server import child_process, status_files
from http_edge.server.child_process import keep_archiving, keep_exporting
from http_edge.settings.settings import Archive, Export, Settings
from tests.full_pipe import fill

WAIT_S = 10


def files_in(folder: Path) -> list[Path]:
    return [*folder.iterdir()]


@pytest.mark.parametrize("keep", [keep_exporting, keep_archiving])
async def test_a_child_for_which_there_is_no_process_is_started_again_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: Callable[..., Any]
) -> None:
    stopping = asyncio.Event()
    started = 0

    async def full(*_: object, **__: object) -> None:
        nonlocal started
        started += 1
        if started == 3:
            stopping.set()
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(asyncio, "create_subprocess_exec", full)
    monkeypatch.setattr(child_process, "_RESTART_S", 0.001)
    export = Export(to=str(tmp_path / "export"))
    settings = Settings(data_dir=tmp_path, export=export, archive=Archive(every_s=0.01))
    async with asyncio.timeout(WAIT_S):
        await keep(settings, stopping, None)
    assert started == 3
    if keep is keep_exporting:
        shown = status_files.export_figures(tmp_path, None, 0)["fault"]
        assert shown == "the exporting process could not be started"
    else:
        shown = status_files.archive_figures(tmp_path, 0)["fault"]
        assert shown == "the archiving process could not be started"


@pytest.mark.parametrize(
    ("code", "fault"), [(3, "the archiving process ended with code 3"), (0, "")]
)
async def test_a_round_of_archiving_whose_process_dies_is_a_fault_and_no_other_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, fault: str
) -> None:
    stopping = asyncio.Event()
    create, rounds = asyncio.create_subprocess_exec, itertools.count(1)

    async def started(*arguments: Any, **more: Any) -> asyncio.subprocess.Process:
        if next(rounds) == 3:
            stopping.set()
        return await create(*arguments, **more)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", started)
    monkeypatch.setattr(
        child_process, "ARCHIVE", (sys.executable, "-c", f"import sys; sys.exit({code})")
    )
    settings = Settings(data_dir=tmp_path, archive=Archive(every_s=0.01))
    async with asyncio.timeout(2 * WAIT_S):
        await keep_archiving(settings, stopping, 1)
    assert status_files.archive_figures(tmp_path, 0, 1)["fault"] == fault


@pytest.mark.parametrize(
    "often", [("export", "erased_every_s"), ("archive", "prune_every_s")], ids=lambda each: each[1]
)
async def test_a_round_comes_as_soon_as_any_part_of_its_work_is_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, often: tuple[str, str]
) -> None:
    """Names that are to leave within a day do not wait for rows that leave once a week."""
    stopping, rounds = asyncio.Event(), 0

    async def full(*_: object, **__: object) -> None:
        nonlocal rounds
        rounds += 1
        if rounds == 3:
            stopping.set()
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(asyncio, "create_subprocess_exec", full)
    sections: dict[str, Any] = {"archive": {"every_s": 604_800, "keep_s": 1}, "export": {}}
    sections[often[0]][often[1]] = 0.01
    settings = Settings(data_dir=tmp_path, **sections)
    async with asyncio.timeout(WAIT_S):
        await keep_archiving(settings, stopping, None, first_s=0)
    assert rounds == 3


def stop_at_first_child(
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[asyncio.Event, list[asyncio.subprocess.Process]]:
    """The event that ends the parent's work as soon as it has a child, and its children."""
    stopping = asyncio.Event()
    create, children = asyncio.create_subprocess_exec, list[asyncio.subprocess.Process]()

    async def started(*arguments: Any, **more: Any) -> asyncio.subprocess.Process:
        children.append(await create(*arguments, **more))
        stopping.set()
        return children[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", started)
    return stopping, children


@pytest.mark.parametrize("keep", [keep_exporting, keep_archiving])
@pytest.mark.parametrize(
    ("program", "stop_s_max", "code"),
    [
        ("import sys; sys.stdin.read(); sys.exit(int(sys.argv[1]))", WAIT_S, 3),
        ("import signal; signal.pause()", 0.001, -signal.SIGKILL),
    ],
)
async def test_a_child_of_a_database_ends_with_its_stdin_and_one_that_does_not_is_killed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    keep: Callable[..., Any],
    *,
    program: str,
    stop_s_max: float,
    code: int,
) -> None:
    stopping, children = stop_at_first_child(monkeypatch)
    monkeypatch.setattr(child_process, "_STOP_S_MAX", stop_s_max)
    for name in ("EXPORT", "ARCHIVE"):
        monkeypatch.setattr(child_process, name, (sys.executable, "-c", program))
    settings = Settings(data_dir=tmp_path, archive=Archive(every_s=0.01))
    async with asyncio.timeout(2 * WAIT_S):
        await keep(settings, stopping, 3)
    assert [child.returncode for child in children] == [code]
    assert files_in(tmp_path) == [], "the report of a fault"


async def test_a_signal_to_the_group_of_the_parent_reaches_no_child_not_even_one_that_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopping, children = stop_at_first_child(monkeypatch)
    monkeypatch.setattr(child_process, "_STOP_S_MAX", WAIT_S)
    program = "import os, sys; sys.exit(3 if os.getpgrp() == os.getpid() else 4)"
    monkeypatch.setattr(child_process, "EXPORT", (sys.executable, "-c", program))
    async with asyncio.timeout(2 * WAIT_S):
        await keep_exporting(Settings(data_dir=tmp_path), stopping, None)
    assert [child.returncode for child in children] == [3]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("says", "code"),
    [('import logging; logging.getLogger("poste.test").info("done")', 0), ("1 / 0", 1)],
    ids=["line", "failure"],
)
def test_a_child_whose_stderr_is_not_read_goes_on_to_its_end(says: str, code: int) -> None:
    begin = "from http_edge.server.child_process import begin_child; begin_child('x', niceness=0)"
    reading, writing = os.pipe()
    fill(writing)
    ended = subprocess.run(
        [sys.executable, "-c", f"{begin}; {says}"],
        input=Settings().model_dump_json().encode() + b"\n",
        stderr=writing,
        timeout=60,
        check=False,
    )
    os.close(writing)
    os.close(reading)
    assert ended.returncode == code
