"""Signs of life: which events an agent itself caused, and since when it has been silent.

An event counts if the agent's own message caused it, or if the agent accepted delivered messages.
Messages from others do not count, nor what the mediator does by itself. The state
(``actors.core.evolve``) and the read model (``eventstore.read_models.queue_depths``) both use this;
the views of activity (``projections.views.identities``) say the same in SQL.
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
    PushDeviceSet,
    QueuePolicySet,
    Seconds,
)

_HOUR_MS: Final = 3_600_000
TAKEN: Final = frozenset({"acknowledged", "delivered"})
"""Reasons of removals that the agent caused: by a message, or by accepting a delivery."""
NOT_ASKED_FOR: Final = frozenset({"live", "outbound"})
"""Channels that push messages as they arrive; the pushing side alone says that it did."""


def _always(_event: Event) -> bool:
    return True


def _was_taken(event: MessagesRemoved | MessagesRemoved1) -> bool:
    return event.reason in TAKEN


_SIGNS: Final[Mapping[type[Event], Callable[[Any], bool]]] = {
    AgentSeen: _always,
    ConnectionEstablished: _always,
    MediationGranted: _always,
    QueuePolicySet: _always,
    AccountRotated: _always,
    # The mediator removes a device that its push service no longer knows.
    PushDeviceSet: lambda event: bool(event.channel),
    # An update that only removes keys may come from another agent that proved to hold one.
    KeylistUpdated: lambda event: bool(event.added),
    MessagesDelivered: lambda event: event.channel not in NOT_ASKED_FOR,
    MessagesRemoved: _was_taken,
    MessagesRemoved1: _was_taken,
}
SIGNS_OF_LIFE: Final = tuple(_SIGNS)
"""The event types that may be a sign of life."""


def is_sign_of_life(event: Event) -> bool:
    """Whether the agent itself caused this event, if the identity is an agent."""
    counts = _SIGNS.get(type(event))
    return counts is not None and counts(event)


def idle_since_ms(seen_ms: int, registered_until_s: Seconds) -> int:
    """Since when an agent has been silent, in Unix milliseconds, for the search for idle agents.

    Rounded up to the hour: an exact index would be written with every message. A registration
    that is in force is a sign of life, too.
    """
    return max(-(-seen_ms // _HOUR_MS) * _HOUR_MS, ceil(registered_until_s * 1000))
