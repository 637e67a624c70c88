"""Schema 1 of the exported files: one row per row of the log, in the order of the log.

Every row has the columns of the log itself; ``state`` is the whole event, so that nothing is
lost. The other columns are the fields of the events as Parquet types that a query can filter;
they are null where the event has no such field. Two compromises of typed columns: a time in
seconds is a double, and an integer beyond 64 bits stands as the largest (smallest) one. ``state``
has the exact value.

Large content (a payload, a contract, a public event) is in ``state`` alone; ``size_bytes`` says
how large it is. A released schema never changes: another one gets another number, and readers
refuse numbers that they do not know.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

FORMAT: Final = 1
"""Version of the layout: names, manifests, ``export.json``."""
SCHEMA_VERSION: Final = 1
"""Version of the columns."""
STREAM_BYTES: Final = 16
ROW_GROUP_ROWS: Final = 65_536

_TEXTS: Final = pa.list_(pa.string())
_TIME: Final = pa.timestamp("us", tz="UTC")
_REFUSALS: Final = pa.list_(
    pa.struct(
        [
            ("protocol", pa.string()),
            ("command", pa.string()),
            ("reason", pa.string()),
            ("sender_did", pa.string()),
            ("count", pa.int64()),
            ("first_at", _TIME),
            ("last_at", _TIME),
        ]
    )
)

SCHEMA: Final = pa.schema(
    [
        # The log.
        pa.field("position", pa.int64(), nullable=False),  # of the row in the log
        pa.field("shard", pa.string(), nullable=False),  # the partition whose seal covers the row
        pa.field("stream", pa.binary(STREAM_BYTES), nullable=False),
        ("identity", pa.string()),  # DID, key:…, invitation:…, edge:…; null for seals, if unknown
        pa.field("version", pa.int64(), nullable=False),  # in the stream, from 1
        pa.field("type", pa.string(), nullable=False),  # the topic without its version
        pa.field("type_version", pa.int16(), nullable=False),
        pa.field("recorded_at", _TIME, nullable=False),
        pa.field("command", pa.binary(), nullable=False),  # 16 bytes; none for seals
        pa.field("state", pa.binary(), nullable=False),  # msgpack, as it stands in the log
        # Messages and queues.
        ("message_id", pa.string()),
        ("message_ids", _TEXTS),
        ("protocol", pa.string()),
        ("sender_did", pa.string()),
        ("recipient_key", pa.string()),
        ("size_bytes", pa.int64()),  # of the payload, the contract, the request, the public event
        ("reason", pa.string()),
        ("channel", pa.string()),
        # Contracts and contract requests.
        ("expires_at_s", pa.float64()),
        ("contract_id", pa.string()),
        ("requestor_did", pa.string()),
        ("recipient_did", pa.string()),
        ("digest", pa.binary()),  # of the contract; of the chain in a seal
        ("request_id", pa.string()),
        ("request_ids", _TEXTS),
        # Saved and public events.
        ("event_id", pa.string()),
        ("event_ids", _TEXTS),
        ("timestamp_s", pa.float64()),
        ("tags", _TEXTS),
        ("processed", pa.bool_()),
        ("channel_id", pa.string()),
        # Identities, connections and keys.
        ("did", pa.string()),
        ("peer_did", pa.string()),
        ("label", pa.string()),
        ("endpoint", pa.string()),
        ("routing_keys", _TEXTS),
        ("handshake", pa.string()),  # the protocol that made the connection
        ("invitation_id", pa.string()),
        ("key", pa.string()),
        ("keys_added", _TEXTS),
        ("keys_removed", _TEXTS),
        ("claims", pa.list_(pa.int64())),  # of keys_added: versions in the streams of the keys
        ("owner_did", pa.string()),
        ("by_did", pa.string()),
        # The owner's rules for its queue.
        ("will_queue", pa.bool_()),
        ("age_s_max", pa.int64()),
        ("messages_max", pa.int64()),
        ("message_bytes_max", pa.int64()),
        ("bytes_max", pa.int64()),
        # What an edge refused in a period.
        ("edge", pa.string()),
        ("since", _TIME),
        ("until", _TIME),
        ("refusals", _REFUSALS),
        # Seals.
        ("partition", pa.string()),
        ("epoch", pa.int64()),
        ("window_ms", pa.int64()),
        ("nonces", pa.binary()),
        ("sealed_rows", pa.int64()),
        ("previous", pa.binary()),
    ],
    metadata={"poste.schema": str(SCHEMA_VERSION)},
)

_WITHOUT_STATISTICS: Final = {"state", "nonces", "command", "previous", "digest"}
_REPEATING: Final = (
    *("shard", "identity", "type", "type_version", "protocol", "sender_did", "recipient_key"),
    *("reason", "channel", "contract_id", "requestor_did", "recipient_did", "channel_id"),
    *("handshake", "partition", "epoch", "window_ms", "tags.list.element"),
)
"""Columns whose values repeat within a row group; for the others a dictionary only costs."""

PARQUET_OPTIONS: Final = {
    "version": "2.6",
    "compression": "zstd",
    "compression_level": 1,
    "row_group_size": ROW_GROUP_ROWS,
    "use_dictionary": list(_REPEATING),
    "write_statistics": [name for name in SCHEMA.names if name not in _WITHOUT_STATISTICS],
}
"""How files are written. Fixed, so that the same rows give the same bytes."""
