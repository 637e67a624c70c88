"""Small files of the data directory that tell other processes of the machine what one has done.

One process writes a file and any number read it. Readers need neither the log nor pyarrow.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from actors.host.clock import Clock

_Content = TypeVar("_Content")


class Status(msgspec.Struct, kw_only=True):
    """The status of some work, whose ``fault`` is empty while nothing is wrong; times are Unix ms.

    ``fault_since_ms`` is when the first of its faults was noted that came without a success since.
    """

    fault: str = ""
    fault_since_ms: int | None = None


_Status = TypeVar("_Status", bound=Status)


class Unreadable(msgspec.Struct, frozen=True):
    """A file is there and cannot be read, or a part of it was written; ``why`` names it.

    ``since_ms`` is when the file was last changed, in Unix milliseconds; 0 if that is unknown.
    """

    why: str
    since_ms: int


def status_path(data_dir: Path, name: str, database: int | None) -> Path:
    """The path of a file of this name; of one database of the log if it has several."""
    path = data_dir / name
    return path if database is None else path.with_stem(f"{path.stem}-{database}")


def database_numbers(count: int) -> Sequence[int | None]:
    """The numbers that distinguish the databases of a log; a single one has none."""
    return [None] if count == 1 else range(count)


def of_databases(records: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Join the records of each database of a log into one; a single record is returned itself."""
    return records[0] if len(records) == 1 else {"databases": records}


def age_s(at_ms: int | None, now_ms: int) -> float | None:
    """The seconds since a time; None if that is unknown."""
    return None if at_ms is None else max(0.0, (now_ms - at_ms) / 1000)


def publish(path: Path, content: bytes) -> None:
    """Replace the content of a file; ignore a failure.

    Where no new file can be written, as on a full disk, the old one is overwritten, which has its
    room already. A reader may find a part of it then.
    """
    draft = path.with_suffix(".part")
    try:
        draft.write_bytes(content)
        draft.replace(path)
    except OSError:
        with contextlib.suppress(OSError), path.open("r+b") as file:
            file.write(content)
            file.truncate()


class StatusFile(Generic[_Status]):
    """Keeps the file of a status up to date. If it cannot be written, the work goes on."""

    def __init__(self, path: Path | None, clock: Clock, kind: type[_Status]) -> None:
        """Go on from the status of an earlier process; without ``path`` there is no file."""
        self._path, self._clock = path, clock
        earlier = None if path is None else read_file(path, kind)
        self._status = earlier if isinstance(earlier, kind) else kind()

    def on_fault(self, error: Exception) -> None:
        """Note a fault that lasts until the work succeeds."""
        if not self._status.fault:
            self._status.fault_since_ms = self._clock()
        self._status.fault = str(error)
        self._write()

    def _write(self) -> None:
        if self._path is not None:
            publish(self._path, msgspec.json.encode(self._status))


def read_status(path: Path, kind: type[_Status]) -> _Status | None:
    """The status in a file; a fault if it cannot be read, None if there is no such file."""
    status = read_file(path, kind)
    if isinstance(status, Unreadable):
        return kind(fault=status.why, fault_since_ms=status.since_ms)
    return status


def read_file(path: Path, kind: type[_Content]) -> _Content | Unreadable | None:
    """The content of a file of JSON, None if there is no such file."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:  # ValueError: no JSON, not of this kind, no UTF-8
        return Unreadable(f"{path} cannot be read: {error}", _changed_ms(path))


def _changed_ms(path: Path) -> int:
    with contextlib.suppress(OSError):
        return int(path.stat().st_mtime * 1000)
    return 0
