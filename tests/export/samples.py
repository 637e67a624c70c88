"""Logs to export, exporters of one mediator, and what stands in an export."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq

from eventstore.log.codec import identity_stream
from eventstore.log.event_log import EventLog, LogRow
from eventstore.log.events import Event, IdentityRegistered
from eventstore.parquet.catalog import Catalog, read_catalog
from eventstore.parquet.files import ExportPlace
from eventstore.parquet.manifest import Signer
from eventstore.parquet.write.exporter import Exporter, ExportOwner
from eventstore.parquet.write.step import Bounds
from http_edge.crypto import signatures
from tests.log.samples import AT_MS, COMMAND, SealedWriter, message, saved

SEED = bytes(range(32))
KEY = signatures.public_key(SEED)
SIGNER = Signer(KEY.hex(), partial(signatures.sign, SEED))
VERIFY = partial(signatures.verify, KEY)
OWNER = ExportOwner("did:web:mediator.test", 16)
DAY_MS = 86_400_000
SMALL = Bounds(rows_max=10, bytes_max=1_000_000)


def did(number: int) -> str:
    return f"did:example:{number}"


def registered(number: int, at_ms: int = AT_MS) -> tuple[UUID, Event]:
    event = IdentityRegistered(
        at_ms=at_ms, command=COMMAND, did=did(number), expires_at_s=2e9, contract=b"{}"
    )
    return identity_stream(did(number)), event


class Growing:
    """A log that grows by whole transactions, two partitions each."""

    def __init__(self, log: EventLog) -> None:
        self._writer = SealedWriter(log)
        self._identities = 0

    def grow(self, transactions: int = 1) -> None:
        for _ in range(transactions):
            self._identities += 1
            number = self._identities
            stream = identity_stream(did(number))
            self._writer.commit(
                {
                    "shard-0": [
                        registered(number),
                        (stream, message(b"\x00\xff" * number, f"message-{number}")),
                    ],
                    "shard-1": [(identity_stream(did(1)), saved(f"event-{number}"))],
                }
            )


def exporter(log: EventLog, place: ExportPlace, bounds: Bounds = SMALL) -> Exporter:
    return Exporter(log, place, OWNER, SIGNER, VERIFY, bounds)


def export_all(log: EventLog, place: ExportPlace, bounds: Bounds = SMALL) -> None:
    with closing(exporter(log, place, bounds)) as export:
        while export.step():
            pass


def catalog_of(place: ExportPlace) -> Catalog:
    return read_catalog(place.filesystem, place.root, VERIFY, check_hashes=True)


def tables_of(place: ExportPlace) -> Iterator[pa.Table]:
    for file in catalog_of(place).files:
        yield pq.ParquetFile(pa.BufferReader(place.read(file.path))).read()


def exported_rows(place: ExportPlace) -> list[dict[str, Any]]:
    rows = [row for table in tables_of(place) for row in table.to_pylist()]
    return sorted(rows, key=lambda row: row["position"])


def exported_log(place: ExportPlace) -> list[LogRow]:
    return [
        LogRow(
            row["position"],
            row["stream"],
            row["version"],
            f"{row['type']}.{row['type_version']}",
            row["state"],
        )
        for row in exported_rows(place)
    ]


def whole_log(log: EventLog) -> Sequence[LogRow]:
    return log.read_rows(after=0, rows_max=1_000_000, bytes_max=1_000_000_000)


def contents(place: ExportPlace) -> dict[str, bytes]:
    """Every file of the place with its content."""
    return {path: place.read(path) for path in place.sizes("")}
