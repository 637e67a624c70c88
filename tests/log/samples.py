"""Events and appends for tests of the log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec
from eventsourcing.persistence import StoredEvent

from eventstore.log.codec import decode_seal, encode
from eventstore.log.content import Content
from eventstore.log.event_log import DueSnapshot, EventLog, PageBounds, SealPlace, Snapshot
from eventstore.log.events import (
    SEAL_TOPIC,
    BatchSealed,
    Event,
    EventSaved,
    EventSaved1,
    EventTagsUpdated,
    IdentityDedicated,
    IdentityReleased,
    MessageQueued,
    MessageQueued1,
    MessagesRemoved,
    PublicEventPublished,
    PublicEventsDeleted,
    Seconds,
)
from eventstore.log.seal import GENESIS, chain_digest, pack_nonces, seal
from eventstore.log.streams import identity_stream, partition_stream

AT_MS = 1_700_000_000_000
COMMAND = bytes(range(16))
SALT = bytes(range(16, 32))
OWNER_DID = "did:example:owner"
OWNER = identity_stream(OWNER_DID)
OTHER_DID = "did:example:other"
OTHER = identity_stream(OTHER_DID)
FIRST_PAGE = PageBounds(0, 9)


def dedicated(did: str, reason: str) -> IdentityDedicated:
    return IdentityDedicated(at_ms=AT_MS, command=COMMAND, did=did, reason=reason)


def released(did: str) -> IdentityReleased:
    return IdentityReleased(at_ms=AT_MS, command=COMMAND, did=did, reason="operator")


def content(data: bytes, salt: bytes = SALT) -> Content:
    return Content.of(data, salt)


def message(
    payload: bytes = b"opaque", message_id: str = "message", salt: bytes = SALT
) -> MessageQueued:
    return MessageQueued(
        at_ms=AT_MS,
        command=COMMAND,
        message_id=message_id,
        protocol="decentrl",
        sender_did=OTHER_DID,
        recipient_key="",
        payload=content(payload, salt),
    )


def saved(
    event_id: str,
    timestamp_s: Seconds = 0,
    *,
    tags: Sequence[str] = (),
    sender: str = OTHER_DID,
    recipient: str = OWNER_DID,
    processed: bool = False,
) -> EventSaved:
    return EventSaved(
        at_ms=AT_MS,
        command=COMMAND,
        event_id=event_id,
        sender_did=sender,
        recipient_did=recipient,
        contract_id=None,
        timestamp_s=timestamp_s,
        payload=content(f"payload of {event_id}".encode()),
        encrypted_tags=list(tags),
        processed=processed,
    )


def tagged(event_id: str, *tags: str) -> EventTagsUpdated:
    return EventTagsUpdated(
        at_ms=AT_MS, command=COMMAND, event_id=event_id, encrypted_tags=list(tags)
    )


def published(
    event_id: str, timestamp_s: Seconds = 0, *, channel: str = "news", tags: Sequence[str] = ()
) -> PublicEventPublished:
    return PublicEventPublished(
        at_ms=AT_MS,
        command=COMMAND,
        event_id=event_id,
        channel_id=channel,
        event=content(f"event {event_id}".encode()),
        tags=list(tags),
        timestamp_s=timestamp_s,
        event_signature=f"signature of {event_id}",
    )


def with_content_in_row(event: Event) -> Event:
    """A message or a saved event as its first type has it."""
    fields = {name: getattr(event, name) for name in event.__struct_fields__}
    match event:
        case MessageQueued(payload=payload):
            return MessageQueued1(**fields | {"payload": payload.data})
        case EventSaved(payload=payload):
            return EventSaved1(**fields | {"payload": payload.data.decode()})
        case _:
            return event


def withdrawn(
    *event_ids: str, channel: str | None = None, versions: Sequence[int] = ()
) -> PublicEventsDeleted:
    return PublicEventsDeleted(
        at_ms=AT_MS,
        command=COMMAND,
        event_ids=list(event_ids),
        channel_id=channel,
        versions=list(versions),
    )


def removed(versions: Sequence[int], *message_ids: str) -> MessagesRemoved:
    return MessagesRemoved(
        at_ms=AT_MS,
        command=COMMAND,
        message_ids=list(message_ids),
        reason="acknowledged",
        versions=list(versions),
    )


def append(log: EventLog, stream: UUID, *events: Event) -> None:
    """Append events to the end of a stream, in one transaction."""
    newest = log.read_stream(stream, newest_first=True, limit=1)
    first = newest[0].originator_version + 1 if newest else 1
    rows = [encode(stream, first + index, event) for index, event in enumerate(events)]
    log.append(rows, events)


def save(log: EventLog, *snapshots: tuple[UUID, Snapshot]) -> None:
    """Save snapshots behind the newest seal of the log, which gets one if it has none."""
    seal_at = newest_seal(log)
    if seal_at is None:
        SealedWriter(log).commit({"shard-0": []})
        seal_at = newest_seal(log)
        assert seal_at is not None
    log.save_snapshots([DueSnapshot(*snapshot, seal_at) for snapshot in snapshots])


def newest_seal(log: EventLog) -> SealPlace | None:
    """The newest seal among the last hundred rows of a log."""
    for row in reversed(log.read_log(after=max(0, log.position() - 100), limit=100)):
        if row.topic == SEAL_TOPIC:
            digest = decode_seal(row.state).digest
            return SealPlace(UUID(str(row.originator_id)), row.originator_version, digest)
    return None


def earlier_seal(rows: Sequence[StoredEvent], events: Sequence[Event], **of: Any) -> BatchSealed:
    """A seal as releases made it that covered states as they stand."""
    whole = [
        (UUID(str(row.originator_id)).bytes, row.originator_version, row.topic, row.state)
        for row in rows
    ]
    sealed = seal(rows, events, **of)
    digest = chain_digest(sealed, whole, are_redacted=False)
    return msgspec.structs.replace(sealed, digest=digest)


class SealedWriter:
    """Writes transactions as a host does: the rows of each partition, then its seal.

    ``as_earlier``: as releases did that sealed states as they stand.
    """

    def __init__(self, log: EventLog, *, as_earlier: bool = False) -> None:
        self._log = log
        self._seal = earlier_seal if as_earlier else seal
        self._versions: dict[UUID, int] = {}
        self._digests: dict[str, bytes] = {}

    def commit(self, parts: dict[str, Sequence[tuple[UUID, Event]]]) -> None:
        """Append one transaction: events with their streams, by partition."""
        rows, events = [], []
        for partition, part in parts.items():
            covered = [encode(stream, self._next(stream), event) for stream, event in part]
            sealed = self._seal(
                covered,
                [event for _, event in part],
                partition=partition,
                epoch=1,
                at_ms=AT_MS,
                window_ms=300_000,
                nonces=pack_nonces([(COMMAND, AT_MS + 300_000)]),
                previous=self._digests.get(partition, GENESIS),
            )
            self._digests[partition] = sealed.digest
            stream = partition_stream(partition)
            rows += [*covered, encode(stream, self._next(stream), sealed)]
            events += [*(event for _, event in part), sealed]
        self._log.append(rows, events)

    def _next(self, stream: UUID) -> int:
        self._versions[stream] = version = self._versions.get(stream, 0) + 1
        return version
