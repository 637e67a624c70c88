"""Names in memory once: thousands of records of a state hold the same few DIDs, keys and channels.

``shared`` gives the one copy of a name. Names are freed when no state has them any more; strangers
choose names, so a table that only grows would be theirs to fill.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final, TypeVar

from msgspec import Struct
from msgspec.structs import force_setattr

from actors.core.identity import Identity

_NAMES_MAX: Final = 4_096
_V = TypeVar("_V")


def sharing(version: tuple[int, ...]) -> Callable[[str], str]:
    """What gives the copy of a name that is in memory already, or else this one, in a CPython.

    3.12.0 to 3.12.6 keep interned strings for ever (gh-113993). There a cache keeps recent names.
    """
    return lru_cache(_NAMES_MAX)(str) if (3, 12) <= version < (3, 12, 7) else sys.intern


shared: Final = sharing(sys.version_info[:3])


def share_names(state: Identity) -> None:
    """Let each name of a decoded snapshot be in memory once."""
    _share_fields(state.messages, "sender_did", "recipient_key")
    _share_fields(state.requests, "sender_did")
    _share_fields(state.contracts, "requestor_did", "recipient_did")
    _share_fields(state.public_events, "channel_id")
    state.by_sender = _by_shared(state.by_sender)
    state.by_key = _by_shared(state.by_key)
    state.requests_by_sender = _by_shared(state.requests_by_sender)
    state.correspondents = _by_shared(state.correspondents)


def _share_fields(records: Mapping[str, Struct], *fields: str) -> None:
    for record in records.values():
        for field in fields:
            force_setattr(record, field, shared(getattr(record, field)))


def _by_shared(by_name: dict[str, _V]) -> dict[str, _V]:
    return {shared(name): value for name, value in by_name.items()}
