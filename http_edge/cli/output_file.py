"""Files and folders that options name for the output of a command."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from http_edge.server.exits import Exit, Stop


def write_file(path: Path, content: bytes, option: str) -> None:
    """Write the file that this option names.

    Raises:
        Stop: the file cannot be written.
    """
    with _explained(path, option):
        path.write_bytes(content)


def require_writable(path: Path, option: str) -> None:
    """Refuse a file that cannot be written, before an irreversible action; leave it as it is.

    Raises:
        Stop: the file cannot be written.
    """
    with _explained(path, option):
        is_new = not path.exists()
        with path.open("ab"):
            pass
        if is_new:
            path.unlink()


def require_folder(path: Path, option: str) -> None:
    """Make a folder if it is missing, and refuse one that cannot be written.

    Raises:
        Stop: the folder cannot be made or written.
    """
    with _explained(path, option):
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass


@contextmanager
def _explained(path: Path, option: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Stop(
            Exit.USAGE,
            f"{path} cannot be written: {error.strerror or error}",
            f"Name a place that this user can write to with {option}.",
        ) from error
