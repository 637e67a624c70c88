"""A data directory that cannot be used is named, with what to do about it."""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from http_edge.server.data_dir import LOCK, left_alone, locked, make_data_dir, mark_begun, was_left
from http_edge.server.exits import Exit, Stop


def start_refused(data_dir: Path) -> Stop:
    with pytest.raises(Stop) as stopped:
        make_data_dir(data_dir)
    return stopped.value


def failing(number: int) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_named_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(os, "fsync", failing(number))
    stop = start_refused(tmp_path)
    assert stop.exit_code == Exit.UNREACHABLE
    assert stop.message == f"The disk of the data directory {tmp_path} is full."
    assert "disk-full" in stop.remedy


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_a_directory_that_cannot_be_written_is_named_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(os, "fsync", failing(number))
    stop = start_refused(tmp_path)
    assert stop.exit_code == Exit.USAGE
    assert str(tmp_path) in stop.message
    assert os.strerror(number) in stop.message
    assert "--data-dir" in stop.remedy


def test_a_file_in_place_of_the_directory_is_named_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "data").touch()
    assert str(tmp_path / "data") in start_refused(tmp_path / "data").message


@pytest.mark.parametrize("option", ["--data-dir", "--from", "--to"])
def test_a_directory_that_another_mediator_works_in_is_busy_and_its_option_is_named(
    tmp_path: Path, option: str
) -> None:
    with locked(tmp_path), pytest.raises(Stop) as stopped, locked(tmp_path, option):
        pass
    assert stopped.value.exit_code == Exit.BUSY
    assert option in stopped.value.remedy


def test_a_directory_that_cannot_be_locked_is_named_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / LOCK).touch()
    monkeypatch.setattr(fcntl, "flock", failing(errno.ENOLCK))
    for kept_out in (locked(tmp_path), left_alone(tmp_path, "--data-dir")):
        with pytest.raises(Stop) as stopped, kept_out:
            pass
        assert stopped.value.exit_code == Exit.USAGE
        why = f"The data directory {tmp_path} cannot be used: {os.strerror(errno.ENOLCK)}."
        assert stopped.value.message == why


def test_a_directory_is_made_and_tried_for_its_owner_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "elsewhere"))
    make_data_dir(tmp_path / "new" / "data")
    assert (tmp_path / "new" / "data").stat().st_mode & 0o077 == 0
    assert list((tmp_path / "new" / "data").iterdir()) == []


def test_a_lock_that_cannot_be_emptied_fails_no_clean_end(tmp_path: Path) -> None:
    for _ in range(2):
        with locked(tmp_path) as was_killed:
            assert not was_killed, "after a clean end"
            mark_begun(tmp_path)
    with locked(tmp_path):
        mark_begun(tmp_path)
        (lock,) = (
            int(link.name)
            for link in Path("/proc/self/fd").iterdir()
            if os.path.realpath(link) == str(tmp_path.resolve() / LOCK)
        )
        with Path(os.devnull).open() as never_empty:
            os.dup2(never_empty.fileno(), lock)
    with locked(tmp_path) as was_killed:
        assert was_killed


@pytest.mark.parametrize("has_begun", [False, True])
def test_only_an_end_after_the_work_has_begun_counts_as_a_kill(
    tmp_path: Path, has_begun: bool
) -> None:
    with locked(tmp_path):
        if has_begun:
            mark_begun(tmp_path)
        as_a_signal_leaves_it = (tmp_path / LOCK).read_bytes()
    assert not was_left(tmp_path), "after an end in order"
    (tmp_path / LOCK).write_bytes(as_a_signal_leaves_it)
    assert was_left(tmp_path) == has_begun
    with locked(tmp_path) as was_killed:
        assert was_killed == has_begun


def test_the_mark_outlives_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the operators' address does, which it declares out of date."""
    synced: list[tuple[str, bytes]] = []

    def fsync(number: int) -> None:
        path = Path(f"/proc/self/fd/{number}").resolve()
        synced.append((path.name, path.read_bytes()))

    monkeypatch.setattr(os, "fsync", fsync)
    with locked(tmp_path):
        mark_begun(tmp_path)
    assert synced == [(LOCK, str(os.getpid()).encode())]


@pytest.mark.parametrize("left", [None, 0o644])
def test_no_other_user_of_the_machine_can_hold_a_lock_that_a_mediator_needs(
    tmp_path: Path, left: int | None
) -> None:
    tmp_path.chmod(0o755)
    if left is not None:  # by an earlier build
        (tmp_path / LOCK).touch()
        (tmp_path / LOCK).chmod(left)
    before = os.umask(0)
    try:
        with locked(tmp_path):
            assert (tmp_path / LOCK).stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(before)
