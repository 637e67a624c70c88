"""Annotations of event fields (column, bounds, stream, names), and a record within a field."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Final, NamedTuple

import msgspec


class ExportColumn(NamedTuple):
    """Marks a field that is exported as a column of another name.

    ``is_time``: the field is in Unix milliseconds, the column a timestamp.
    """

    name: str
    is_time: bool = False


class NoColumn(Enum):
    """Why a field has no column of its own; only ``state`` has its value."""

    SIZE_ALONE = "large content: the column size_bytes has its size in bytes"
    STATE_ALONE = "no query filters by it"


SIZE_ALONE: Final = NoColumn.SIZE_ALONE
STATE_ALONE: Final = NoColumn.STATE_ALONE

ERASED_AT_ONCE: Final = msgspec.Meta(ge=0, le=10_000)
"""The largest value of ``retention.records_per_step_max``. A forged row cannot say more, which
would fill the memory of its reader with versions."""
UNLISTED_AT_ONCE: Final = msgspec.Meta(ge=1, le=320_000)
"""The most postings that one step of an erasure removes (``actors.core.erasure``)."""


class NamesStream(NamedTuple):
    """Marks the field of a stream's first event that names the stream, behind ``prefix``."""

    prefix: str = ""


class Name(NamedTuple):
    """Marks a field, or list, of names of peers or of text that a peer chose.

    A seal covers digests in place of these values (``eventstore.log.redaction``).
    """


NAME: Final = Name()


class RefusedCommands(msgspec.Struct, frozen=True, array_like=True):
    """Commands that one edge refused alike: their number, and the times of the first and last.

    ``protocol`` is ``decentrl`` or ``didcomm``; ``command`` its name for the request, empty
    if it is not known or not distinguished; ``reason`` the code of the refusal. ``sender_did``
    is the proven sender, empty if none is proven or if there were many.
    """

    protocol: str
    command: str
    reason: str
    sender_did: Annotated[str, NAME]
    count: int
    first_ms: Annotated[int, ExportColumn("first_at", is_time=True)]
    last_ms: Annotated[int, ExportColumn("last_at", is_time=True)]
