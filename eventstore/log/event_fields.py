"""What a field of an event says of its column in the export, and of the stream that it names."""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple


class ExportColumn(NamedTuple):
    """A field that stands in the export under another name.

    ``is_time``: it is in Unix milliseconds, and the column a timestamp.
    """

    name: str
    is_time: bool = False


class NoColumn(Enum):
    """Why a field has no column of its own; its value stands in ``state`` alone."""

    SIZE_ALONE = "large content: the column size_bytes has its size in bytes"
    STATE_ALONE = "no query filters by it"


SIZE_ALONE: Final = NoColumn.SIZE_ALONE
STATE_ALONE: Final = NoColumn.STATE_ALONE


class NamesStream(NamedTuple):
    """A field that names the stream whose first event this is, behind this prefix."""

    prefix: str = ""
