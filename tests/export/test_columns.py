from __future__ import annotations

import tempfile
import typing
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from eventstore.log.codec import decode
from eventstore.log.content import Content, size_of, without_content
from eventstore.log.event_log import EventLog
from eventstore.log.events import (
    TOPIC_BY_TYPE,
    BatchSealed,
    ContractRequested,
    ContractRequested1,
    ContractStored,
    Event,
    EventSaved,
    EventSaved1,
    IdentityRegistered,
    MessageQueued,
    MessageQueued1,
    PublicEventPublished,
    PublicEventPublished1,
    QueuePolicySet,
    RefusalsCounted,
    RefusedCommands,
    SavedEventsErased,
    SavedEventsUnlisted,
)
from eventstore.log.faults import Fault
from eventstore.log.streams import identity_stream
from eventstore.parquet.files import ExportPlace, open_place
from eventstore.parquet.schema import FILLING, SCHEMA, SCHEMA_VERSION
from eventstore.parquet.table import statistics_of
from eventstore.parquet.verify.columns import check_columns
from eventstore.parquet.write.step import Bounds
from eventstore.stores.open_log import open_log
from tests.export.forging import with_value
from tests.export.samples import (
    Growing,
    catalog_of,
    export_all,
    exported_rows,
    tables_of,
    whole_log,
)
from tests.log.samples import AT_MS, COMMAND, SealedWriter, content

CONTENT: dict[type[Event], str] = {
    MessageQueued: "payload",
    IdentityRegistered: "contract",
    ContractStored: "contract",
    ContractRequested: "encrypted_contract_request",
    EventSaved: "payload",
    PublicEventPublished: "event",
    MessageQueued1: "payload",
    ContractRequested1: "encrypted_contract_request",
    EventSaved1: "payload",
    PublicEventPublished1: "event",
}
STATE_ALONE = {
    *CONTENT.values(),
    *("requestor_ephemeral_public_key", "event_signature", "versions", "after", "count"),
    *("device_token", "device_platform"),
}
OTHER_NAMES = {
    "connection-established": {"protocol": "handshake"},
    "keylist-updated": {"added": "keys_added", "removed": "keys_removed"},
    "speaker-named": {"account_did": "owner_did"},
    "account-rotated": {
        "speaker_did": "did",
        "prior_did": "by_did",
        "issued_at_s": "timestamp_s",
    },
    "account-ended": {"prior_did": "by_did", "issued_at_s": "timestamp_s"},
    "event-saved": {"encrypted_tags": "tags"},
    "event-tags-updated": {"encrypted_tags": "tags"},
    "refusals-counted": {"since_ms": "since", "until_ms": "until"},
    "batch-sealed": {"rows": "sealed_rows"},
}
OF_EVERY_ROW = {
    *("position", "shard", "stream", "identity", "version", "type", "type_version"),
    *("recorded_at", "command", "state"),
}
_texts = st.text(max_size=12)
_BY_TYPE: dict[Any, st.SearchStrategy[Any]] = {
    str: _texts,
    str | None: st.none() | _texts,
    bytes: st.binary(max_size=40),
    Content: st.builds(Content.of, st.binary(max_size=40), st.binary(min_size=16, max_size=16)),
    bool: st.booleans(),
    int: st.integers(0, 2**40),
    list[int]: st.lists(st.integers(0, 2**40), max_size=3),
    list[str]: st.lists(_texts, max_size=3),
    int | float: st.integers(0, 2**50) | st.floats(0, 1e12),
    list[RefusedCommands]: st.lists(
        st.builds(
            RefusedCommands,
            *[_texts] * 4,
            st.integers(0, 2**63 - 1),
            st.integers(0, 2**40),
            st.integers(0, 2**40),
        ),
        max_size=3,
    ),
}


def _events_of(kind: type[Event]) -> st.SearchStrategy[Event]:
    hints = typing.get_type_hints(kind)
    fields = {name: _BY_TYPE[hints[name]] for name in kind.__struct_fields__}
    if kind in {SavedEventsErased, SavedEventsUnlisted}:
        fields |= {"count": st.integers(1, 9)}
    return st.builds(kind, **fields)


_events = st.one_of([_events_of(kind) for kind in TOPIC_BY_TYPE if kind is not BatchSealed])
_parts = st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), _events), max_size=4)
_transactions = st.lists(
    st.dictionaries(st.sampled_from(["shard-0", "shard-1", "did:example:x"]), _parts, min_size=1),
    max_size=6,
)


def _write(log: EventLog, transactions: Sequence[dict[str, list[tuple[str, Event]]]]) -> None:
    writer = SealedWriter(log)
    for transaction in transactions:
        parts: dict[str, Sequence[tuple[UUID, Event]]] = {
            partition: [(identity_stream(name), event) for name, event in part]
            for partition, part in transaction.items()
        }
        writer.commit(parts)


@settings(max_examples=30, deadline=None)
@given(transactions=_transactions, rows_max=st.integers(1, 12))
def test_any_log_comes_back_from_its_export(
    transactions: list[dict[str, list[tuple[str, Event]]]], rows_max: int
) -> None:
    with tempfile.TemporaryDirectory(prefix="poste-export-") as folder:
        place = open_place(f"{folder}/export")
        with closing(open_log(f"sqlite:{folder}/log.db")) as log:
            _write(log, transactions)
            export_all(log, place, Bounds(rows_max, 10**9))
            rows = whole_log(log)
        found = exported_rows(place)
        assert len(found) == len(rows)
        for row, exported in zip(rows, found, strict=True):
            assert exported["position"] == row.position
            assert exported["stream"] == row.stream
            assert exported["version"] == row.version
            assert without_content(exported["state"]) == (row.state, row.content)
            assert f"{exported['type']}.{exported['type_version']}" == row.topic
            _check_typed(exported, decode(row.topic, row.state))
        types: dict[str, int] = {}
        for file in catalog_of(place).files:
            for topic, count in file.types.items():
                types[topic] = types.get(topic, 0) + count
        assert types == {topic: sum(row.topic == topic for row in rows) for topic in types}


def _check_typed(exported: dict[str, Any], event: Event) -> None:
    assert exported["recorded_at"] == _when(event.at_ms)
    assert exported["command"] == event.command
    names = OTHER_NAMES.get(exported["type"], {})
    expected = {
        names.get(field, field): getattr(event, field)
        for field in event.__struct_fields__
        if field not in {"at_ms", "command", *STATE_ALONE}
    }
    if (field := CONTENT.get(type(event))) is not None:
        content = getattr(event, field)
        expected["size_bytes"] = size_of(content)
    if isinstance(event, RefusalsCounted):
        expected |= {"since": _when(event.since_ms), "until": _when(event.until_ms)}
        expected["refusals"] = [_refused(entry) for entry in event.refusals]
    typed = {name: value for name, value in exported.items() if name not in OF_EVERY_ROW}
    assert typed == dict.fromkeys(typed) | expected


def _when(at_ms: int) -> datetime:
    whole = datetime.fromtimestamp(at_ms // 1000, UTC)
    return whole.replace(microsecond=at_ms % 1000 * 1000)


def _refused(entry: RefusedCommands) -> dict[str, Any]:
    return {
        "protocol": entry.protocol,
        "command": entry.command,
        "reason": entry.reason,
        "sender_did": entry.sender_did,
        "count": entry.count,
        "first_at": _when(entry.first_ms),
        "last_at": _when(entry.last_ms),
    }


def test_every_field_has_a_column_or_stands_in_state_alone() -> None:
    for kind in TOPIC_BY_TYPE:
        columns = FILLING[kind].columns
        fields = {filled.field for filled in columns.values()}
        assert set(columns) <= set(SCHEMA.names) - OF_EVERY_ROW
        assert {"at_ms", "command", *fields, *STATE_ALONE} >= set(kind.__struct_fields__)
    filled = {name for kind in TOPIC_BY_TYPE for name in FILLING[kind].columns}
    assert filled | {"size_bytes"} | OF_EVERY_ROW == set(SCHEMA.names)


def test_the_released_schema_is_the_one_of_its_first_day() -> None:
    golden = Path(__file__).parents[1] / "golden" / f"export-schema.{SCHEMA_VERSION}.txt"
    assert f"{SCHEMA.to_string(truncate_metadata=False)}\n" == golden.read_text("utf-8")


def test_a_number_beyond_64_bits_stands_as_the_largest(
    sqlite_log: EventLog, place: ExportPlace
) -> None:
    policy = QueuePolicySet(
        at_ms=AT_MS,
        command=COMMAND,
        will_queue=True,
        age_s_max=2**63,
        messages_max=2**63 - 1,
        message_bytes_max=2**64 - 1,
        bytes_max=-(2**63),
    )
    stream = identity_stream("a")
    SealedWriter(sqlite_log).commit({"shard-0": [(stream, policy)]})
    export_all(sqlite_log, place)
    row = exported_rows(place)[0]
    assert (row["age_s_max"], row["messages_max"]) == (2**63 - 1, 2**63 - 1)
    assert (row["message_bytes_max"], row["bytes_max"]) == (2**63 - 1, -(2**63))
    assert decode("queue-policy-set.1", row["state"]) == policy


def test_files_have_the_published_schema_compression_and_statistics(
    sqlite_log: EventLog, place: ExportPlace, tmp_path: Path
) -> None:
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    stream = identity_stream("a")
    event = MessageQueued(
        at_ms=AT_MS,
        command=COMMAND,
        message_id="m",
        protocol="decentrl",
        sender_did="",
        recipient_key="",
        payload=content(b"x"),
    )
    SealedWriter(sqlite_log).commit({"shard-0": [(stream, event)]})
    export_all(sqlite_log, place)
    (table,) = tables_of(place)
    assert table.schema.equals(SCHEMA)
    assert table.schema.metadata == {b"poste.schema": str(SCHEMA_VERSION).encode()}
    (file,) = catalog_of(place).files
    group = pq.ParquetFile(pa.BufferReader(place.read(file.path))).metadata.row_group(0)
    columns = [group.column(index) for index in range(group.num_columns)]
    assert {column.compression for column in columns} == {"ZSTD"}
    with_statistics = {column.path_in_schema for column in columns if column.is_stats_set}
    assert {"position", "recorded_at", "type", "identity", "message_id"} <= with_statistics
    assert "state" not in with_statistics


def test_a_wrong_column_is_named_beside_a_row_that_cannot_be_understood(
    log: EventLog, place: ExportPlace
) -> None:
    Growing(log).grow()
    export_all(log, place)
    rows = list(whole_log(log))
    page = next(tables_of(place))
    events = [None, *(decode(row.topic, row.state) for row in rows[1:])]
    rows[0] = replace(rows[0], state=b"")
    assert len(rows) == page.num_rows > 2
    changed = with_value(page, 1, "size_bytes", 1)
    found = [(one.fault, one.first_position) for one in check_columns(changed, rows, events)]
    assert found == [(Fault.UNDECODABLE_STATE, 1), (Fault.WRONG_COLUMN, 2)]


@pytest.mark.parametrize("has_statistics", [False, True])
def test_a_column_has_both_bounds_or_none(*, has_statistics: bool) -> None:
    longest = "x" * 256
    rows = pa.table(
        {"short": ["a", longest], "long": ["a", longest + "x"], "none": pa.nulls(2, pa.string())}
    )
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, write_statistics=has_statistics)
    footer = pq.read_metadata(pa.BufferReader(sink.getvalue()))
    found = statistics_of(footer, rows.column_names)
    assert found == {
        "minValues": {"short": "a"} if has_statistics else {},
        "maxValues": {"short": longest} if has_statistics else {},
        "nullCount": {"short": 0, "long": 0, "none": 2} if has_statistics else {},
    }
