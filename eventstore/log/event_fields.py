"""What a field of an event says of its column, its bounds and its stream; records in a field."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Final, NamedTuple

import msgspec


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

ERASED_AT_ONCE: Final = msgspec.Meta(ge=0, le=10_000)
"""The most that ``retention.records_per_step_max`` can be set to. A row that was made up says no
more: who reads it would fill the memory with versions."""
UNLISTED_AT_ONCE: Final = msgspec.Meta(ge=1, le=320_000)
"""The most postings of one step of the same (``actors.core.erasure``)."""


class NamesStream(NamedTuple):
    """A field that names the stream whose first event this is, behind this prefix."""

    prefix: str = ""


class Name(NamedTuple):
    """A field with what names a peer, or with text that a peer chose; also each one of a list.

    A seal covers a digest in place of it (``eventstore.log.redaction``).
    """


NAME: Final = Name()


class RefusedCommands(msgspec.Struct, frozen=True, array_like=True):
    """Commands that one edge refused alike: how many, and when the first and the last of them.

    ``protocol`` is ``decentrl`` or ``didcomm``; ``command`` its name for the request, empty
    where it is not known or not distinguished; ``reason`` the code of the refusal. ``sender_did``
    is who signed or packed them, empty where that is not proven or where there were many.
    """

    protocol: str
    command: str
    reason: str
    sender_did: Annotated[str, NAME]
    count: int
    first_ms: Annotated[int, ExportColumn("first_at", is_time=True)]
    last_ms: Annotated[int, ExportColumn("last_at", is_time=True)]
