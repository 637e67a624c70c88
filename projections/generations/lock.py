"""A lock, so that one rebuild at a time writes to a local folder.

Object stores have no lock: there only commits decide (``projections.generations.place``).
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from eventstore.parquet.errors import ExportUnavailable
from eventstore.parquet.files import ExportPlace
from projections.generations.delta_folder import TablesBusy

LOCK: Final = ".rebuild.lock"


@contextmanager
def only_rebuild(place: ExportPlace) -> Iterator[None]:
    """Hold the lock of a place during the block; the lock ends with the process, too.

    Raises:
        TablesBusy: another process has it.
        ExportUnavailable: the folder cannot be made.
    """
    if not place.is_local:
        yield
        return
    path = Path(place.root) / LOCK
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("ab")
    except OSError as error:
        raise ExportUnavailable(str(path), str(error.strerror)) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            why = "another rebuild writes to this place; nothing was changed"
            raise TablesBusy(f"{place.root}: {why}") from None
        yield
