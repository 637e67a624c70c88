"""How an event type is declared: what every event carries, the registry of types, and annotations.

The types themselves are declared in ``eventstore.log.events`` and the modules beside it. An
annotation of a field says its column, its bounds, its stream, or that it names a peer.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Annotated, Final, NamedTuple, TypeAlias, TypeVar

import msgspec

Seconds: TypeAlias = int | float


class Event(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What every event carries: when it was decided and which command caused it."""

    at_ms: int
    command: bytes


TOPIC_BY_TYPE: Final[dict[type[Event], str]] = {}
"""The registry: every released type with its topic, in the order of registration."""
FREQUENT: Final[set[type[Event]]] = set()
"""The types that make up most of a log; events of other types are few."""
_Kind = TypeVar("_Kind", bound=type[Event])


def released(topic: str, *, is_frequent: bool = False) -> Callable[[_Kind], _Kind]:
    """Register an event type under its topic: a short stable name with a version."""

    def register(kind: _Kind) -> _Kind:
        TOPIC_BY_TYPE[kind] = topic
        if is_frequent:
            FREQUENT.add(kind)
        return kind

    return register


def type_name(kind: type[Event]) -> str:
    """The topic of an event type without its version, as in the column ``type``."""
    return TOPIC_BY_TYPE[kind].rpartition(".")[0]


def topics_of(*kinds: type[Event]) -> frozenset[str]:
    """The topics of the released types among these, and of those derived from one of them."""
    return frozenset(topic for kind, topic in TOPIC_BY_TYPE.items() if issubclass(kind, kinds))


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
