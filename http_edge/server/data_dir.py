"""The data directory of a mediator, in which one process at a time may work."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

from http_edge.crypto.private_files import replace_private
from http_edge.server.exits import Exit, Stop
from http_edge.settings.settings import OPERATORS_ADDRESS

_OPTION: Final = "--data-dir"
_PROBE_BYTES: Final = 64 * 1024
LOCK: Final = "lock"
"""The file by which a mediator, or a restore, claims the directory."""
_OWNER_ALONE: Final = 0o600
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


@contextlib.contextmanager
def named_disk_faults(data_dir: Path, option: str = _OPTION) -> Iterator[None]:
    """Turn an ``OSError`` of the data directory within the block into a reason and a remedy.

    ``option`` is the option that names the directory.

    Raises:
        Stop: the disk is full, or the directory cannot be made or written.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise Stop(
                Exit.UNREACHABLE,
                f"The disk of the data directory {data_dir} is full.",
                "Free some space and start again, see deploy/runbooks/disk-full.md."
                " Accepted messages are kept.",
            ) from error
        raise Stop(
            Exit.USAGE,
            f"The data directory {data_dir} cannot be used: {error.strerror or error}.",
            f"It must be a directory that this user can write to. Name another one with {option}.",
        ) from error


def note(path: Path, text: str) -> None:
    """Replace a small file of a data directory, as a whole and for its owner alone.

    Raises:
        Stop: the disk is full, or the directory cannot be written; the earlier file is unchanged.
    """
    with named_disk_faults(path.parent):
        replace_private(path, text.encode())


def make_data_dir(data_dir: Path, option: str = _OPTION) -> None:
    """Make the directory if it is missing, for its owner alone, and test that it can be written.

    Raises:
        Stop: the directory cannot be made or written, or its disk is full.
    """
    with named_disk_faults(data_dir, option):
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=data_dir, buffering=0) as probe:
            probe.write(bytes(_PROBE_BYTES))
            os.fsync(probe.fileno())


def owner_hindered_by_root(keys: Path) -> int | None:
    """The owner of this key file, if that user could not use files that this process makes.

    None if there is no such user: this process is not root, or the file is root's own.
    """
    owner = keys.stat().st_uid
    return owner if os.geteuid() == 0 and owner != 0 else None


@contextlib.contextmanager
def locked(data_dir: Path, option: str = _OPTION) -> Iterator[bool]:
    """Lock the directory: two mediators on it would fence each other off all the time.

    Yields whether the last mediator here ended without cleaning up: killed, or with the machine.
    For one that ended before ``mark_begun`` there is nothing to clean up. The address at which it
    answered operators is gone: another program may listen there, and must not see their token.

    Raises:
        Stop: another mediator, or a restore, works there, or the directory cannot be locked.
    """
    with named_disk_faults(data_dir, option):
        lock = opened_lock(data_dir / LOCK)
    with lock:
        _take(fcntl.LOCK_EX, lock, data_dir, option)
        lock.seek(0)
        was_killed = bool(lock.read())
        with named_disk_faults(data_dir, option):
            # Whatever ends this process next, it may leave no mark that the address is out of date.
            (data_dir / OPERATORS_ADDRESS).unlink(missing_ok=True)
        try:
            yield was_killed
        finally:
            # The disk may be read-only by now. Then the next start takes this end for a kill.
            with contextlib.suppress(OSError):
                lock.truncate(0)


def mark_begun(data_dir: Path) -> None:
    """Let an end of this process, which has locked the directory, count as a kill from now on.

    Only its own end, in order, takes the mark away. A signal to stop, too, ends a process that does
    not handle it yet: until then there must be no mark.

    Raises:
        Stop: the disk is full, or the directory cannot be written.
    """
    with named_disk_faults(data_dir), (data_dir / LOCK).open("w") as lock:
        lock.write(str(os.getpid()))
        lock.flush()
        os.fsync(lock.fileno())  # the operators' address, which comes later, must not outlive it


def opened_lock(path: Path) -> IO[str]:
    """Open a file to lock, also to read and append; make it if it is missing.

    It is for its owner alone, because who can open it, if only to read, can lock it and stay.

    Raises:
        OSError: it cannot be opened.
    """
    opened = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, _OWNER_ALONE)
    with contextlib.suppress(OSError):  # it may be another owner's, and shared on purpose
        os.fchmod(opened, _OWNER_ALONE)
    return os.fdopen(opened, "a+")


@contextlib.contextmanager
def left_alone(data_dir: Path, option: str) -> Iterator[None]:
    """Keep mediators out of a directory in which one has worked, without writing there.

    Raises:
        Stop: a mediator, or a restore, works there, or the directory cannot be locked.
    """
    with (data_dir / LOCK).open() as lock:
        _take(fcntl.LOCK_SH, lock, data_dir, option)
        yield


def _take(kind: int, lock: IO[str], data_dir: Path, option: str) -> None:
    with named_disk_faults(data_dir, option):
        try:
            fcntl.flock(lock, kind | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Stop(
                Exit.BUSY,
                f"Another mediator is running on {data_dir}.",
                f"Stop it, or name another place with {option}.",
            ) from error


def is_in_use(data_dir: Path) -> bool:
    """Does a mediator, or a restore, work there now? False also if the lock cannot be opened."""
    try:
        with (data_dir / LOCK).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)
    return False


def was_left(data_dir: Path) -> bool:
    """Did the last mediator here end without cleaning up, and does none work here now?

    It was killed, or ended with its machine. False also if the lock file cannot be read.
    """
    try:
        with (data_dir / LOCK).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return bool(lock.read())
    except OSError:
        return False
