"""The registry of event types: what every event carries, and how a type is registered.

The types themselves are declared in ``eventstore.log.events``, in one file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias, TypeVar

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
