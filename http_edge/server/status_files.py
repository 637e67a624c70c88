"""Small files of the data directory that tell other processes of the machine what one has done.

One process writes a file and any number read it. Readers need neither the log nor pyarrow.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

_Status = TypeVar("_Status")


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


def read_status(path: Path, kind: type[_Status]) -> _Status | Unreadable | None:
    """The status in a file of JSON, None if there is no such file."""
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
