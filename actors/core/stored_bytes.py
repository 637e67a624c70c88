"""How many bytes of disk a record counts for in the quotas of its identity.

Rules of this file: pure, and computed from the event's own fields alone, so that a log of any age
folds to the same counters. A record counts for what the log and the read models keep: its texts, a
fixed part for its row and its entries in lists, and a fixed part for each tag, which takes up to
four index rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias, assert_never

from eventstore.log.content import size_of
from eventstore.log.events import (
    AnyContractRequested,
    AnyEventSaved,
    AnyPublicEventPublished,
    ContractStored,
    EventTagsUpdated,
)

_RECORD_BYTES: Final = 256
_TAG_BYTES: Final = 256

Stored: TypeAlias = (
    AnyContractRequested
    | ContractStored
    | AnyEventSaved
    | EventTagsUpdated
    | AnyPublicEventPublished
)
"""The events that add to a quota in bytes; a waiting message counts for its payload alone."""


def stored_bytes(event: Stored) -> int:
    """The bytes that the record of this event counts for."""
    match event:
        case AnyEventSaved():
            texts = [event.sender_did, event.recipient_did, event.contract_id or ""]
            return _of(texts, event.encrypted_tags) + size_of(event.payload)
        case EventTagsUpdated():
            return updated_tags_bytes(event.encrypted_tags)
        case AnyPublicEventPublished():
            texts = [event.channel_id, event.event_signature]
            return _of(texts, event.tags) + size_of(event.event)
        case AnyContractRequested():
            texts = [event.sender_did, event.requestor_ephemeral_public_key]
            return _of(texts) + size_of(event.encrypted_contract_request)
        case ContractStored():
            return _of([event.requestor_did, event.recipient_did]) + len(event.contract)
        case _:
            assert_never(event)


def updated_tags_bytes(tags: Sequence[str]) -> int:
    """The bytes that new tags of a saved event count for."""
    return _of([], tags)


def _of(texts: Sequence[str], tags: Sequence[str] = ()) -> int:
    return _RECORD_BYTES + _TAG_BYTES * len(tags) + utf8_bytes(texts) + utf8_bytes(tags)


def utf8_bytes(texts: Iterable[str]) -> int:
    """The bytes of texts in UTF-8."""
    # Nearly all texts are ASCII, for which a string knows its length in bytes.
    return sum(len(text) if text.isascii() else len(text.encode()) for text in texts)
