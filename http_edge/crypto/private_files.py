"""Files that only their owner can read: keys, tokens, identities.

Each appears whole or not at all, and survives a power cut.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


class KeyFileRefused(ValueError):
    """The key file cannot be used as it is; the message says what to do about it."""


def read_private(path: Path) -> bytes:
    """The content of a file to which only its owner has access.

    Raises:
        KeyFileRefused: others may read, write or execute the file.
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        if mode & _OTHERS:
            raise KeyFileRefused(f"{path} is open to others (mode {mode:04o}): chmod 600 {path}")
        return file.read()


def create_private(path: Path, content: bytes) -> None:
    """Write a file for its owner only, atomically and durably, unless it exists."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # A link cannot replace the file of a faster process, whose keys may be in use already.
    with suppress(FileExistsError):
        _put_private(path, content, os.link)


def replace_private(path: Path, content: bytes) -> None:
    """Write a file for its owner only, atomically and durably, in place of one that exists.

    Raises:
        OSError: the file cannot be written; one that existed is unchanged.
    """
    _put_private(path, content, os.replace)


def _put_private(path: Path, content: bytes, put: Callable[[str, Path], None]) -> None:
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)  # mode 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        put(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
