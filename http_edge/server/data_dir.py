"""The data directory of a mediator, which one process at a time may work in."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from http_edge.server.exits import Exit, Stop


def make_data_dir(data_dir: Path) -> None:
    """Make the directory, for its owner alone, if it is not there.

    Raises:
        Stop: it cannot be made.
    """
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise Stop(
            Exit.USAGE,
            f"The data directory {data_dir} cannot be made: {error.strerror}.",
            "Name another one with --data-dir.",
        ) from error


@contextlib.contextmanager
def locked(data_dir: Path) -> Iterator[bool]:
    """Two mediators on one data directory would fence each other off all the time.

    Yields whether the last one here ended without cleaning up: killed, or with the machine.

    Raises:
        Stop: another mediator, or a restore, works there.
    """
    with (data_dir / "lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise Stop(
                Exit.USAGE,
                f"Another mediator is running on {data_dir}.",
                "Stop it, or name another directory with --data-dir.",
            ) from error
        lock.seek(0)
        was_killed = bool(lock.read())
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        try:
            yield was_killed
        finally:
            lock.truncate(0)
