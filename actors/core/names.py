"""Names in memory once: thousands of records of a state hold the same few DIDs, keys and channels.

``shared`` gives the one copy of a name. Names are freed when no state has them any more; strangers
choose names, so a table that only grows would be theirs to fill.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final, TypeVar

from actors.core.identity import (
    ContractRecord,
    Identity,
    PublicEvent,
    QueuedMessage,
    WaitingRequest,
)

_NAMES_MAX: Final = 4_096
_V = TypeVar("_V")


class RecentNames:
    """One copy of each recent name, for an interpreter whose ``intern`` keeps strings for ever."""

    def __init__(self, names_max: int) -> None:
        """Begin anew after ``names_max`` names."""
        self._names_max = names_max
        self._names: dict[str, str] = {}

    def shared(self, name: str) -> str:
        """The copy of a name that is in memory already, or else this one."""
        if len(self._names) >= self._names_max and name not in self._names:
            self._names = {}
        return self._names.setdefault(name, name)


def frees_interned(version: tuple[int, ...]) -> bool:
    """Whether this CPython frees an interned string: 3.12.0 to 3.12.6 do not (gh-113993)."""
    return not (3, 12) <= version < (3, 12, 7)


shared: Callable[[str], str]
shared = sys.intern if frees_interned(sys.version_info[:3]) else RecentNames(_NAMES_MAX).shared


def share_names(state: Identity) -> None:
    """Let each name of a decoded snapshot be in memory once."""
    for message_id, m in state.messages.items():
        sender, key = shared(m.sender_did), shared(m.recipient_key)
        state.messages[message_id] = QueuedMessage(
            sender, m.version, m.size_bytes, m.at_ms, m.is_envelope, key, m.is_v2
        )
    for request_id, r in state.requests.items():
        sender = shared(r.sender_did)
        state.requests[request_id] = WaitingRequest(sender, r.version, r.stored_bytes, r.at_ms)
    for contract_id, c in state.contracts.items():
        requestor, recipient = shared(c.requestor_did), shared(c.recipient_did)
        state.contracts[contract_id] = ContractRecord(
            requestor, recipient, c.expires_at_s, c.version, c.stored_bytes
        )
    for event_id, e in state.public_events.items():
        channel_id = shared(e.channel_id)
        state.public_events[event_id] = PublicEvent(channel_id, e.version, e.stored_bytes, e.at_ms)
    state.by_sender = _by_shared(state.by_sender)
    state.by_key = _by_shared(state.by_key)
    state.requests_by_sender = _by_shared(state.requests_by_sender)
    state.correspondents = _by_shared(state.correspondents)


def _by_shared(by_name: dict[str, _V]) -> dict[str, _V]:
    return {shared(name): value for name, value in by_name.items()}
