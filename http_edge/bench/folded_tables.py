"""The folded log as the tables that the rebuild writes: the same rows, columns and types."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from eventstore import events as e
from http_edge.bench.folded_export import Fold, Folded

_TIME: Final = pa.timestamp("us", tz="UTC")
_TEXTS: Final = pa.list_(pa.string())
_PLACE: Final = {
    "stream": pa.binary(),
    "identity": pa.string(),
    "version": pa.int64(),
    "position": pa.int64(),
    "recorded_at": _TIME,
}
_KEYS: Final = ("position", "partition", "key")
"""Columns that no two rows of a table share all of; each table has some of them."""
_ROWS_AT_ONCE: Final = 100_000

Rows = Iterator[tuple[Any, ...]]


def write_tables(fold: Fold, target: Path) -> dict[str, int]:
    """Write each table as ``<target>/<name>.parquet``; the rows of each."""
    target.mkdir(parents=True, exist_ok=True)
    return {name: _write(target / f"{name}.parquet", *table) for name, table in _all(fold)}


def differing(rebuilt: Path, folded: Path) -> list[str]:
    """Tables of a rebuild that are not, row by row, those that were folded.

    Raises:
        OSError: tables cannot be read.
    """
    tables = msgspec.json.decode((rebuilt / "catalog.json").read_bytes())["tables"]
    return [
        table["name"]
        for table in tables
        if not _is_equal(rebuilt / table["path"], folded / f"{table['name']}.parquet")
    ]


def _is_equal(one: Path, other: Path) -> bool:
    expected = pq.read_table(other)
    found = pq.read_table(one).select(expected.column_names).cast(expected.schema)
    order = [(name, "ascending") for name in _KEYS if name in expected.column_names]
    return bool(found.sort_by(order).equals(expected.sort_by(order)))


def _write(path: Path, columns: Mapping[str, pa.DataType], rows: Rows) -> int:
    schema = pa.schema(list(columns.items()))
    written = 0
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        waiting: list[tuple[Any, ...]] = []
        for row in rows:
            waiting.append(row)
            if len(waiting) == _ROWS_AT_ONCE:
                writer.write_table(_table(schema, waiting))
                written, waiting = written + len(waiting), []
        writer.write_table(_table(schema, waiting))
    return written + len(waiting)


def _table(schema: pa.Schema, rows: list[tuple[Any, ...]]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [pa.array(values, kind) for values, kind in zip(columns, schema.types, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def _all(fold: Fold) -> Iterator[tuple[str, tuple[dict[str, pa.DataType], Rows]]]:
    streams = fold.streams.values()
    for name, (columns, rows_of) in _OF_STREAMS.items():
        rows = (row for folded in streams for row in rows_of(folded))
        yield name, (_PLACE | columns, rows)
    yield "seals", (_SEALS, _seals(fold))
    yield "nonces", (_NONCES, _nonces(fold))


def _at(at_ms: int | None) -> int | None:
    """Microseconds; 0 is never."""
    return at_ms * 1_000 if at_ms else None


def _placed(folded: Folded, place: tuple[int, int, int]) -> tuple[Any, ...]:
    version, position, at_ms = place
    return (folded.stream, folded.identity, version, position, at_ms * 1_000)


def _of_kind(folded: Folded, kind: type[e.Event]) -> tuple[Any, ...]:
    return _placed(folded, folded.places[kind])


def _identities(folded: Folded) -> Rows:
    state = folded.state
    times = (state.last_added_ms, state.last_delivered_ms, state.last_removed_ms)
    yield (
        *_placed(folded, folded.place),
        state.saved_events,
        *map(_at, times),
        state.refusing,
        bool(state.dedicated_by),
    )


def _queues(folded: Folded) -> Rows:
    for message_id, message in folded.state.messages.items():
        place, protocol, deliveries, delivered_ms = folded.queued[message_id]
        yield (
            *_placed(folded, place),
            message_id,
            protocol,
            message.sender_did,
            message.recipient_key,
            message.size_bytes,
            deliveries,
            _at(delivered_ms),
        )


def _registrations(folded: Folded) -> Rows:
    if folded.registrations:
        yield (
            *_of_kind(folded, e.IdentityRegistered),
            float(folded.state.registered_until_s),
            len(folded.registrations),
            _at(folded.registrations[0]),
        )


def _contracts(folded: Folded) -> Rows:
    for contract_id, kept in folded.state.contracts.items():
        place, digest, size_bytes = folded.contracts[contract_id]
        parties = (kept.requestor_did, kept.recipient_did)
        end_s = float(kept.expires_at_s)
        yield (*_placed(folded, place), contract_id, *parties, end_s, digest, size_bytes)


def _requests(folded: Folded) -> Rows:
    for request_id, waiting in folded.state.requests.items():
        place, size_bytes = folded.requests[request_id]
        yield (*_placed(folded, place), request_id, waiting.sender_did, size_bytes)


def _policies(folded: Folded) -> Rows:
    if (rules := folded.state.policy) is not None:
        yield (*_of_kind(folded, e.QueuePolicySet), *(getattr(rules, name) for name in _RULES))


def _connections(folded: Folded) -> Rows:
    if (known := folded.state.connection) is not None:
        yield (
            *_of_kind(folded, e.ConnectionEstablished),
            known.peer_did,
            known.label,
            known.endpoint,
            known.routing_keys,
            known.protocol,
            known.invitation_id,
        )


def _mediation(folded: Folded) -> Rows:
    if folded.state.mediated:
        yield _of_kind(folded, e.MediationGranted)


def _keylists(folded: Folded) -> Rows:
    for key, claim in folded.state.keylist.items():
        place, ordinal = folded.keys[key]
        yield (*_placed(folded, place), key, ordinal, claim)


def _owners(folded: Folded) -> Rows:
    if (owner := folded.state.owner_did) and folded.identity:
        yield (*_of_kind(folded, e.KeyClaimed), folded.identity.removeprefix("key:"), owner)


def _invitations(folded: Folded) -> Rows:
    if (by_did := folded.state.used_by) and folded.identity:
        used = folded.identity.removeprefix("invitation:")
        yield (*_of_kind(folded, e.InvitationUsed), used, by_did)


def _saved(folded: Folded) -> Rows:
    for event_id, (place, sender, recipient, contract_id, at_s, *rest) in folded.saved.items():
        named = (event_id, sender, recipient, contract_id)
        yield (*_placed(folded, place), *named, float(at_s), *rest)


def _public(folded: Folded) -> Rows:
    for event_id, channel_id in folded.state.public_events.items():
        place, tags, timestamp_s, size_bytes = folded.published[event_id]
        said = (event_id, channel_id, tags, float(timestamp_s), size_bytes)
        yield (*_placed(folded, place), *said)


def _seals(fold: Fold) -> Rows:
    for name, seals in fold.partitions.items():
        version, position, at_ms, epoch, digest = seals.newest
        counts = (seals.count, seals.nonces, seals.events)
        yield (name, version, position, at_ms * 1_000, epoch, digest, *counts)


def _nonces(fold: Fold) -> Rows:
    for name, seals in fold.partitions.items():
        for key, expires_ms in seals.expiry_ms.items():
            if expires_ms >= fold.at_ms:
                yield (name, key, expires_ms * 1_000)


def _columns(**types: str) -> dict[str, pa.DataType]:
    """Columns of these types, each for several names."""
    kinds = {"text": pa.string(), "number": pa.int64(), "real": pa.float64(), "time": _TIME} | {
        "bytes": pa.binary(), "flag": pa.bool_(), "texts": _TEXTS
    }  # fmt: skip
    return {name: kinds[kind] for name, kind in types.items()}


_RULES: Final = ("will_queue", "age_s_max", "messages_max", "message_bytes_max", "bytes_max")
_SEALS: Final = _columns(
    partition="text", version="number", position="number", recorded_at="time", epoch="number",
    digest="bytes", seals="number", nonces="number", events="number",
)  # fmt: skip
_NONCES: Final = _columns(partition="text", key="bytes", expires_at="time")
_OF_STREAMS: Final[Mapping[str, tuple[dict[str, pa.DataType], Callable[[Folded], Rows]]]] = {
    "identities": (
        _columns(
            saved_events="number", added_at="time", delivered_at="time", removed_at="time",
            refusing="flag", dedicated="flag",
        ),
        _identities,
    ),
    "queues": (
        _columns(
            message_id="text", protocol="text", sender_did="text", recipient_key="text",
            size_bytes="number", deliveries="number", delivered_at="time",
        ),
        _queues,
    ),
    "registrations": (
        _columns(expires_at_s="real", registrations="number", since="time"),
        _registrations,
    ),
    "contracts": (
        _columns(
            contract_id="text", requestor_did="text", recipient_did="text", expires_at_s="real",
            digest="bytes", size_bytes="number",
        ),
        _contracts,
    ),
    "contract_requests": (
        _columns(request_id="text", sender_did="text", size_bytes="number"),
        _requests,
    ),
    "queue_policies": (
        _columns(will_queue="flag") | dict.fromkeys(_RULES[1:], pa.int64()),
        _policies,
    ),
    "connections": (
        _columns(
            peer_did="text", label="text", endpoint="text", routing_keys="texts",
            handshake="text", invitation_id="text",
        ),
        _connections,
    ),
    "mediation": ({}, _mediation),
    "keylists": (_columns(key="text", ordinal="number", claim="number"), _keylists),
    "key_owners": (_columns(key="text", owner_did="text"), _owners),
    "invitations": (_columns(invitation_id="text", by_did="text"), _invitations),
    "saved_events": (
        _columns(
            event_id="text", sender_did="text", recipient_did="text", contract_id="text",
            timestamp_s="real", size_bytes="number", tags="texts", processed="flag",
            revision="number",
        ),
        _saved,
    ),
    "public_events": (
        _columns(
            event_id="text", channel_id="text", tags="texts", timestamp_s="real",
            size_bytes="number",
        ),
        _public,
    ),
}  # fmt: skip
