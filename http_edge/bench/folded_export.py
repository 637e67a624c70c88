"""The tables of an export as one plain program makes them: the core's fold, event by event.

What Spark's rebuild is compared with, in time and row by row: this reads the same files in their
order, decodes every event and hands it to ``actors.evolution``. Of what the core does not keep
(positions, sizes, deliveries, saved events) it remembers what the tables need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq

from actors.evolution import evolve
from actors.identity import Identity
from eventstore import events as e
from eventstore.codec import decode
from eventstore.events import Event
from eventstore.parquet.catalog import read_catalog
from eventstore.parquet.columns import identity_of
from eventstore.parquet.files import open_place

_COLUMNS: Final = ["position", "stream", "type", "type_version", "state"]
_ROWS_AT_ONCE: Final = 65_536


class Folded:
    """One stream: the core's state, and what the tables say beyond it.

    A place is (version, position, Unix ms); it stands first in each of the remembered rows.
    """

    __slots__ = (
        *("stream", "identity", "state", "place", "queued", "contracts", "requests", "saved"),
        *("published", "keys", "places", "registrations"),
    )

    def __init__(self, stream: bytes, identity: str | None) -> None:
        self.stream = stream
        self.identity = identity
        self.state = Identity()
        self.place = (0, 0, 0)
        self.queued: dict[str, list[Any]] = {}
        self.contracts: dict[str, tuple[Any, ...]] = {}
        self.requests: dict[str, tuple[Any, ...]] = {}
        self.saved: dict[str, list[Any]] = {}
        self.published: dict[str, tuple[Any, ...]] = {}
        self.keys: dict[str, tuple[Any, ...]] = {}
        self.places: dict[type[Event], tuple[int, int, int]] = {}
        self.registrations: list[int] = []


class Seals:
    """The seals of one partition."""

    def __init__(self) -> None:
        self.newest: tuple[Any, ...] = ()
        self.count = self.events = self.nonces = 0
        self.expiry_ms: dict[bytes, int] = {}


class Fold:
    """All streams and partitions up to one position.

    Attributes:
        at_ms: The latest recorded time, Unix milliseconds.
    """

    def __init__(self) -> None:
        """Nothing, before the first event."""
        self.streams: dict[bytes, Folded] = {}
        self.partitions: dict[str, Seals] = {}
        self.at_ms = 0

    def take(self, position: int, stream: bytes, event: Event) -> None:
        """The next event of the log."""
        at_ms = event.at_ms
        self.at_ms = max(self.at_ms, at_ms)
        if isinstance(event, e.BatchSealed):
            _seal(self.partitions.setdefault(event.partition, Seals()), position, event)
            return
        folded = self.streams.get(stream)
        if folded is None:
            folded = self.streams[stream] = Folded(stream, identity_of(event))
        state = folded.state
        evolve(state, event)
        folded.place = (state.version, position, at_ms)
        remember = _REMEMBER.get(type(event))
        if remember is not None:
            remember(folded, event)


def fold_export(
    target: Path,
    until: int,
    *,
    share: tuple[int, int] = (0, 1),
    progress: Callable[[int], None] = lambda _: None,
) -> Fold:
    """Fold the files of an export up to a position.

    Args:
        target: the export.
        until: the last position.
        share: number and count: one of several parts of the streams, for one of several processes.
        progress: called with the position after each file.

    Raises:
        ExportError: the export cannot be read.
    """
    fold, (number, count) = Fold(), share
    for position, stream, topic, state in _rows(target, until, progress):
        if stream[0] % count == number:
            fold.take(position, stream, decode(topic, state))
    return fold


def _rows(
    target: Path, until: int, progress: Callable[[int], None]
) -> Iterator[tuple[int, bytes, str, bytes]]:
    place = open_place(str(target))
    for file in read_catalog(place.filesystem, place.root).files:
        if file.first > until:
            return
        with pq.ParquetFile(target / file.path) as opened:
            for batch in opened.iter_batches(_ROWS_AT_ONCE, columns=_COLUMNS):
                columns = [batch.column(name).to_pylist() for name in _COLUMNS]
                for position, stream, name, version, state in zip(*columns, strict=True):
                    if position > until:
                        return
                    yield position, stream, f"{name}.{version}", state
        progress(file.last)


def _seal(seals: Seals, position: int, event: e.BatchSealed) -> None:
    seals.count += 1
    seals.events += event.rows
    seals.newest = (seals.count, position, event.at_ms, event.epoch, event.digest)
    for start in range(0, len(event.nonces), 24):
        seals.nonces += 1
        seals.expiry_ms[event.nonces[start : start + 16]] = int.from_bytes(
            event.nonces[start + 16 : start + 24], "big"
        )


def _queued(folded: Folded, event: e.MessageQueued) -> None:
    folded.queued[event.message_id] = [folded.place, event.protocol, 0, None]


def _delivered(folded: Folded, event: e.MessagesDelivered) -> None:
    for message_id in event.message_ids:
        message = folded.queued.get(message_id)
        if message is not None:
            message[2] += 1
            message[3] = event.at_ms


def _removed(folded: Folded, event: e.MessagesRemoved) -> None:
    for message_id in event.message_ids:
        folded.queued.pop(message_id, None)


def _registered(folded: Folded, event: e.IdentityRegistered) -> None:
    folded.registrations.append(event.at_ms)
    _placed(folded, event)


def _contract(folded: Folded, event: e.ContractStored) -> None:
    folded.contracts[event.contract_id] = (folded.place, event.digest, len(event.contract))


def _request(folded: Folded, event: e.ContractRequested) -> None:
    size_bytes = len(event.encrypted_contract_request.encode())
    folded.requests[event.request_id] = (folded.place, size_bytes)


def _saved(folded: Folded, event: e.EventSaved) -> None:
    folded.saved[event.event_id] = [
        folded.place,
        event.sender_did,
        event.recipient_did,
        event.contract_id,
        event.timestamp_s,
        len(event.payload.encode()),
        event.encrypted_tags,
        event.processed,
        0,
    ]


def _tagged(folded: Folded, event: e.EventTagsUpdated) -> None:
    saved = folded.saved.get(event.event_id)
    if saved is not None:
        saved[6:] = (event.encrypted_tags, True, folded.place[0])


def _published(folded: Folded, event: e.PublicEventPublished) -> None:
    size_bytes = len(event.event.encode())
    folded.published[event.event_id] = (folded.place, event.tags, event.timestamp_s, size_bytes)


def _withdrawn(folded: Folded, event: e.PublicEventsDeleted) -> None:
    for event_id in event.event_ids:
        if event_id not in folded.state.public_events:
            folded.published.pop(event_id, None)


def _keylist(folded: Folded, event: e.KeylistUpdated) -> None:
    for key in event.removed:
        folded.keys.pop(key, None)
    for ordinal, key in enumerate(event.added):
        folded.keys.setdefault(key, (folded.place, ordinal))


def _placed(folded: Folded, event: Event) -> None:
    """Only the newest one counts."""
    folded.places[type(event)] = folded.place


def _first(folded: Folded, event: Event) -> None:
    """Only the oldest one counts."""
    folded.places.setdefault(type(event), folded.place)


_REMEMBER: Final[dict[type[Event], Callable[[Folded, Any], None]]] = {
    e.MessageQueued: _queued,
    e.MessagesDelivered: _delivered,
    e.MessagesRemoved: _removed,
    e.IdentityRegistered: _registered,
    e.ContractStored: _contract,
    e.ContractRequested: _request,
    e.EventSaved: _saved,
    e.EventTagsUpdated: _tagged,
    e.PublicEventPublished: _published,
    e.PublicEventsDeleted: _withdrawn,
    e.KeylistUpdated: _keylist,
    e.ConnectionEstablished: _placed,
    e.MediationGranted: _first,
    e.QueuePolicySet: _placed,
    e.KeyClaimed: _placed,
    e.InvitationUsed: _placed,
}
