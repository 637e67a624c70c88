"""Which events an audit of an identity shows, and what it shows of them; for every engine."""

from __future__ import annotations

from typing import Final

from eventstore.log.events import TOPIC_BY_TYPE, type_name
from eventstore.parquet.schema import FILLING, SCHEMA, SIZE

LIFE: Final = ("message-queued", "messages-delivered", "messages-removed")
"""What happens to a message; its last word says what."""
TRAFFIC: Final = (*LIFE, "event-saved", "public-event-published")
"""Events whose last word says what was done."""
_ELSEWHERE: Final = {
    *("messages-delivered", "messages-removed", "event-tags-updated", "public-events-deleted"),
    *("key-claimed", "key-released", "invitation-used", "refusals-counted", "batch-sealed"),
}
"""Events that are counted by day, or stand in the stream of a key, an invitation, an edge."""
OF_ITS_STREAM: Final = tuple(
    name for kind in TOPIC_BY_TYPE if (name := type_name(kind)) not in {*TRAFFIC, *_ELSEWHERE}
)
_WHOSE: Final = {"did", "owner_did", "by_did", "digest", "claims"}
_IN_HISTORY: Final = {*OF_ITS_STREAM, "key-claimed", "key-released", "invitation-used"}
DETAILS: Final = tuple(
    name
    for name in SCHEMA.names
    if name not in _WHOSE
    and any(
        name in (*filling.columns, *([SIZE] if filling.content else []))
        for kind, filling in FILLING.items()
        if type_name(kind) in _IN_HISTORY
    )
)
"""Columns that say more of an event; of each event those that it has."""
