"""Schema 1 of the exported files: one row for each row of the log, in the order of the log.

Every row has the columns of the log itself. ``state`` is the whole event, so that nothing is lost,
preceded by the content that the row had when it was exported (``eventstore.log.content``). The
other columns are the fields of the events as Parquet types that a query can filter, declared in
``eventstore.log.events``; they are null if the event has no such field. Typed columns make two
compromises: a time in seconds is a double, and an integer beyond 64 bits becomes the largest
(smallest) one. ``state`` has the exact value.

Large content (a payload, a contract, a public event) is in ``state`` alone; ``size_bytes`` says
how large it is. A released schema never changes: a new schema gets a new number, and readers refuse
numbers that they do not know.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, NamedTuple, get_args, get_origin, get_type_hints

import msgspec
import pyarrow as pa

from eventstore.log.event_declaration import ExportColumn, NoColumn
from eventstore.log.events import TOPIC_BY_TYPE, Event, Seconds
from eventstore.log.streams import STREAM_BYTES

FORMAT: Final = 1
"""Version of the layout: names, manifests, ``export.json``."""
TABLE_FORMAT: Final = 2
"""Version of ``export.json`` in an export whose table says which files count
(``eventstore.parquet.table``); in earlier exports, manifests alone did."""
SCHEMA_VERSION: Final = 1
"""Version of the columns."""
ROW_GROUP_ROWS: Final = 65_536
SIZE: Final = "size_bytes"
"""The column with the size of content that only ``state`` has."""

TIME: Final = pa.timestamp("us", tz="UTC")
_OF_EVERY_ROW: Final = (
    pa.field("position", pa.int64(), nullable=False),  # of the row in the log
    pa.field("shard", pa.string(), nullable=False),  # the partition whose seal covers the row
    pa.field("stream", pa.binary(STREAM_BYTES), nullable=False),
    pa.field("identity", pa.string()),  # DID, key:…, invitation:…, edge:…; null if unknown
    pa.field("version", pa.int64(), nullable=False),  # in the stream, from 1
    pa.field("type", pa.string(), nullable=False),  # the topic without its version
    pa.field("type_version", pa.int16(), nullable=False),
    pa.field("recorded_at", TIME, nullable=False),
    pa.field("command", pa.binary(), nullable=False),  # 16 bytes; none for seals
    pa.field("state", pa.binary(), nullable=False),  # msgpack: content, if any, and event
)
_ORDER: Final = (
    *("message_id", "message_ids", "protocol", "sender_did", "recipient_key", SIZE, "reason"),
    *("channel", "expires_at_s", "contract_id", "requestor_did", "recipient_did", "digest"),
    *("request_id", "request_ids", "event_id", "event_ids", "timestamp_s", "tags", "processed"),
    *("channel_id", "did", "peer_did", "label", "endpoint", "routing_keys", "handshake"),
    *("invitation_id", "key", "keys_added", "keys_removed", "claims", "owner_did", "by_did"),
    *("will_queue", "age_s_max", "messages_max", "message_bytes_max", "bytes_max", "edge", "since"),
    *("until", "refusals", "partition", "epoch", "window_ms", "nonces", "sealed_rows", "previous"),
)
"""The columns of schema 1 that events fill, in the order in which they were released."""
_ADDED: Final = ("edge", "since", "until", "refusals")
"""Columns that files of the first builds lack; they have no events that would fill them."""
_ARROW: Final[Mapping[Any, pa.DataType]] = {
    str: pa.string(),
    bytes: pa.binary(),
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    Seconds: pa.float64(),
}


class Filled(NamedTuple):
    """A column that an event type fills: the event's field, and the column's type."""

    field: str
    type: pa.DataType


class Filling(NamedTuple):
    """What an event type fills: its columns by name, and the field of its content, if any."""

    columns: Mapping[str, Filled]
    content: str | None


def arrow_type(hint: Any) -> pa.DataType:
    """The Arrow type of a field: a text, bytes, a number, or a list or struct of these.

    Raises:
        TypeError: no Arrow type fits.
    """
    plain = _plain(hint)
    if plain in _ARROW:
        return _ARROW[plain]
    if get_origin(plain) is list:
        return pa.list_(arrow_type(get_args(plain)[0]))
    if isinstance(plain, type) and issubclass(plain, msgspec.Struct):
        fields = fields_of(plain)
        return pa.struct([(name, filled.type) for name, filled in fields.columns.items()])
    raise TypeError(f"no column can hold {hint!r}")


def fields_of(kind: type[msgspec.Struct]) -> Filling:
    """The columns that the fields of a struct fill, by its annotations."""
    columns: dict[str, Filled] = {}
    content = None
    hints = get_type_hints(kind, include_extras=True)
    for name in kind.__struct_fields__:
        hint = hints[name]
        marks: Sequence[object] = getattr(hint, "__metadata__", ())
        if NoColumn.SIZE_ALONE in marks:
            content = name
        if any(isinstance(mark, NoColumn) for mark in marks):
            continue
        column = next(
            (mark for mark in marks if isinstance(mark, ExportColumn)), ExportColumn(name)
        )
        columns[column.name] = Filled(name, TIME if column.is_time else arrow_type(hint))
    return Filling(columns, content)


def _plain(hint: Any) -> Any:
    """Strip annotations, and None from ``str | None``: a column may be null anyway."""
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    members = [member for member in get_args(hint) if member is not type(None)]
    return members[0] if type(None) in get_args(hint) and len(members) == 1 else hint


def _of_events() -> Iterator[tuple[type[Event], Filling]]:
    shared = set(Event.__struct_fields__)
    for kind in TOPIC_BY_TYPE:
        columns, content = fields_of(kind)
        yield kind, Filling({n: c for n, c in columns.items() if c.field not in shared}, content)


FILLING: Final[Mapping[type[Event], Filling]] = dict(_of_events())
"""What each event type fills besides the columns of every row."""


def _schema() -> pa.Schema:
    types = {SIZE: pa.int64()}
    for kind, filling in FILLING.items():
        for name, filled in filling.columns.items():
            if types.setdefault(name, filled.type) != filled.type:
                raise TypeError(f"{kind.__name__}: {name} is another type in another event")
    if strange := types.keys() - set(_ORDER):
        # A field without a column of this schema is declared as STATE_ALONE.
        raise TypeError(f"not in schema {SCHEMA_VERSION}: {', '.join(sorted(strange))}")
    events = [pa.field(name, types[name]) for name in _ORDER]
    return pa.schema([*_OF_EVERY_ROW, *events], metadata={"poste.schema": str(SCHEMA_VERSION)})


SCHEMA: Final = _schema()


def with_added(table: pa.Table, columns: Sequence[str] = SCHEMA.names) -> pa.Table:
    """Return these columns of a file, with nulls for those that files of the first builds lack.

    Raises:
        pyarrow.ArrowInvalid: other columns are missing, too.
    """
    for name in columns:
        if name in _ADDED and name not in table.column_names:
            field = SCHEMA.field(name)
            nulls = pa.nulls(table.num_rows, field.type)
            table = table.add_column(columns.index(name), field, nulls)
    return table


_NOT_EVALUATED: Final = {"type_version", "command", "state", "previous"}
EVALUATED: Final = pa.schema([field for field in SCHEMA if field.name not in _NOT_EVALUATED])
"""The columns for tables, views and reports: without the content that peers sent."""

_WITHOUT_STATISTICS: Final = {"state", "nonces", "command", "previous", "digest"}
_REPEATING: Final = (
    *("shard", "identity", "type", "type_version", "protocol", "sender_did", "recipient_key"),
    *("reason", "channel", "contract_id", "requestor_did", "recipient_did", "channel_id"),
    *("handshake", "partition", "epoch", "window_ms", "tags.list.element"),
)
"""Columns whose values repeat within a row group; for others a dictionary only costs space."""

PARQUET_OPTIONS: Final = {
    "version": "2.6",
    "compression": "zstd",
    "compression_level": 1,
    "row_group_size": ROW_GROUP_ROWS,
    "use_dictionary": list(_REPEATING),
    "write_statistics": [name for name in SCHEMA.names if name not in _WITHOUT_STATISTICS],
}
"""The options of the Parquet writer. Fixed, so that the same rows give the same bytes."""
