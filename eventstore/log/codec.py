"""Codec of events and rows: topic names and msgpack.

The registry is closed on purpose. The library's own ``resolve_topic`` would import whatever a
row names; here an unknown topic is an error instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from uuid import UUID

import msgspec
from eventsourcing.persistence import StoredEvent

from eventstore.log.errors import CorruptRow, UnknownTopic
from eventstore.log.event_contents import content_of
from eventstore.log.event_log import LogRow
from eventstore.log.events import SEAL_TOPIC, TOPIC_BY_TYPE, TYPE_BY_TOPIC, BatchSealed, Event
from eventstore.log.redaction import shown_state

_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODERS: Final = {topic: msgspec.msgpack.Decoder(kind) for kind, topic in TOPIC_BY_TYPE.items()}


def encode(stream: UUID, version: int, event: Event) -> StoredEvent:
    """Encode an event as the row to store at ``version`` of ``stream``."""
    return StoredEvent(stream, version, TOPIC_BY_TYPE[type(event)], state_of(event))


def state_of(event: Event) -> bytes:
    """The state of the row that holds an event."""
    return _ENCODER.encode(event)


def decode(topic: str, state: bytes) -> Event:
    """Decode the event in a row; an erased name reads ``erased:`` and a digest.

    Raises:
        UnknownTopic: the topic is not in the registry (a newer release wrote it, or tampering).
        CorruptRow: the state does not decode as that topic's type.
    """
    decoder = _DECODERS.get(topic)
    if decoder is None:
        raise UnknownTopic(topic)
    try:
        event: Event = decoder.decode(state)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        shown = shown_state(TYPE_BY_TOPIC[topic], state)
        if shown is None:
            raise CorruptRow(topic, str(error)) from error
        event = decoder.decode(shown)
    return event


def decode_or_none(topic: str, state: bytes) -> Event | None:
    """As ``decode``; None for a row that this release does not understand."""
    try:
        return decode(topic, state)
    except (UnknownTopic, CorruptRow):
        return None


def decode_rows(rows: Sequence[LogRow]) -> list[Event]:
    """Decode the events in rows, in bulk. Raises as ``decode``."""
    try:
        return [_DECODERS[row.topic].decode(row.state) for row in rows]
    except (KeyError, TypeError, msgspec.DecodeError, UnicodeDecodeError):
        return [decode(row.topic, row.state) for row in rows]


def decode_seal(state: bytes) -> BatchSealed:
    """Decode the seal in a row whose topic is ``SEAL_TOPIC``.

    Raises:
        CorruptRow: the state does not decode as a seal.
    """
    sealed = decode(SEAL_TOPIC, state)
    assert isinstance(sealed, BatchSealed)
    return sealed


def content_fault(row: LogRow, event: Event | None) -> str | None:
    """What is wrong with the content of a row; None if the content fits, or is not there.

    ``event`` is the event in the row, if it is already decoded.
    """
    if row.content is None:
        return None
    try:
        _take_content(row.topic, event or decode(row.topic, row.state), row.content)
    except (UnknownTopic, CorruptRow) as error:
        return str(error)
    return None


def decode_whole(topic: str, state: bytes, content: bytes | None) -> Event:
    """Decode the event in a row, together with its stored content.

    Raises:
        UnknownTopic, CorruptRow: as ``decode``, or the content is not the event's.
    """
    event = decode(topic, state)
    if content is not None:
        _take_content(topic, event, content)
    return event


def _take_content(topic: str, event: Event, content: bytes) -> None:
    fact = content_of(event)
    try:
        if fact is None:
            raise ValueError("it has no content")
        fact.take(content)
    except ValueError as error:
        raise CorruptRow(topic, str(error)) from error
