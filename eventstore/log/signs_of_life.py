"""Which events are traffic of an agent's own, and since when it has been silent.

An event counts if a message of the agent itself caused it, or if the agent took what was delivered
to it. What others send to it does not, nor what the mediator does by itself. State
(``actors.core.evolve``) and read model (``eventstore.read_models.queue_depths``) go by the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil
from typing import Any, Final

from eventstore.log.events import (
    AccountRotated,
    AgentSeen,
    ConnectionEstablished,
    Event,
    KeylistUpdated,
    MediationGranted,
    MessagesDelivered,
    MessagesRemoved,
    MessagesRemoved1,
    QueuePolicySet,
    Seconds,
)

_HOUR_MS: Final = 3_600_000
_TAKEN: Final = frozenset({"acknowledged", "delivered"})
"""Reasons of removals that its owner caused: by a message, or by taking what it was sent."""
_NOT_ASKED_FOR: Final = frozenset({"live", "outbound"})
"""Channels of what is handed out as it comes, by the word of who sent it."""


def _always(_event: Event) -> bool:
    return True


def _was_taken(event: MessagesRemoved | MessagesRemoved1) -> bool:
    return event.reason in _TAKEN


_SIGNS: Final[Mapping[type[Event], Callable[[Any], bool]]] = {
    AgentSeen: _always,
    ConnectionEstablished: _always,
    MediationGranted: _always,
    QueuePolicySet: _always,
    AccountRotated: _always,
    # A key alone is taken away by another who proves to hold it.
    KeylistUpdated: lambda event: bool(event.added),
    MessagesDelivered: lambda event: event.channel not in _NOT_ASKED_FOR,
    MessagesRemoved: _was_taken,
    MessagesRemoved1: _was_taken,
}
SIGNS_OF_LIFE: Final = tuple(_SIGNS)
"""The types of events that may be one."""


def is_sign_of_life(event: Event) -> bool:
    """Is it traffic of the agent's own, where the identity is one?"""
    counts = _SIGNS.get(type(event))
    return counts is not None and counts(event)


def idle_since_ms(seen_ms: int, registered_until_s: Seconds) -> int:
    """Since when an agent has been silent, in Unix milliseconds, for the search for idle ones.

    Up to an hour late: an index that followed every message would be written with each. A
    registration that is in force is a sign of life, too.
    """
    return max(-(-seen_ms // _HOUR_MS) * _HOUR_MS, ceil(registered_until_s * 1000))
