"""The events that an audit of an identity shows, and their details; for every engine."""

from __future__ import annotations

from typing import Final

from eventstore.log.events import TOPIC_BY_TYPE, type_name
from eventstore.parquet.schema import FILLING, SCHEMA, SIZE

LIFE: Final = ("message-queued", "messages-delivered", "messages-removed")
"""The events of a message; the last word of each says what happened."""
TRAFFIC: Final = (*LIFE, "event-saved", "public-event-published")
"""Events that are counted by day; the last word of each says what was done."""
_ELSEWHERE: Final = {
    *("messages-delivered", "messages-removed", "event-tags-updated", "public-events-deleted"),
    *("key-claimed", "key-released", "invitation-used", "refusals-counted", "batch-sealed"),
}
"""Events that are counted by day, or are in the stream of a key, an invitation or an edge."""
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
"""The columns with details of events; an audit shows those that an event has."""
