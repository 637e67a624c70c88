"""Logs to export, exporters of one mediator, and what stands in an export."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec.structs import replace

from actors.host.clock import system_clock
from eventstore.log.codec import decode_seal
from eventstore.log.content import without_content
from eventstore.log.event_log import EventLog, LogRow
from eventstore.log.events import SEAL_TOPIC, Event, IdentityRegistered
from eventstore.log.public_key import PublicKey
from eventstore.log.streams import identity_stream
from eventstore.log.tree_head import seal_leaf
from eventstore.parquet.catalog import Catalog, read_data
from eventstore.parquet.catalog import catalog_of as read_catalog
from eventstore.parquet.files import END, HEAD, INDEX, SUMMARIES, TABLE_LOG, ExportPlace
from eventstore.parquet.manifest import (
    Manifest,
    Signer,
    Statement,
    Verify,
    export_head,
    signed,
)
from eventstore.parquet.schema import FORMAT
from eventstore.parquet.tree import CHECKPOINT, TREE
from eventstore.parquet.verify.export import verify_export
from eventstore.parquet.verify.findings import ExportFinding
from eventstore.parquet.write.exporter import Exporter, ExportOwner, ExportTimes
from eventstore.parquet.write.step import Bounds
from eventstore.parquet.write.table import Clock
from http_edge.crypto import signatures
from tests.log.samples import (
    AT_MS,
    COMMAND,
    SealedWriter,
    message,
    saved,
    with_content_in_row,
)

SEED = bytes(range(32))
KEY = signatures.public_key(SEED)
SIGNER = Signer(KEY.hex(), partial(signatures.sign, SEED))
VERIFY = partial(signatures.verify, KEY)
SIGNED_BY = PublicKey(KEY)
OWNER = ExportOwner("did:web:mediator.test", 16)
DAY_MS = 86_400_000
SMALL = Bounds(rows_max=10, bytes_max=1_000_000)
NOTHING_KEPT = ExportTimes()


def did(number: int) -> str:
    return f"did:example:{number}"


def registered(number: int, at_ms: int = AT_MS) -> tuple[UUID, Event]:
    event = IdentityRegistered(
        at_ms=at_ms, command=COMMAND, did=did(number), expires_at_s=2e9, contract=b"{}"
    )
    return identity_stream(did(number)), event


class Growing:
    """A log that grows by whole transactions, two partitions each.

    ``as_earlier``: as releases wrote it that kept contents in the rows, and sealed them whole.
    """

    def __init__(self, log: EventLog, *, as_earlier: bool = False) -> None:
        self._writer = SealedWriter(log, as_earlier=as_earlier)
        self.commit = self._writer.commit
        self._written = with_content_in_row if as_earlier else lambda event: event
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
                        (
                            stream,
                            self._written(message(b"\x00\xff" * number, f"message-{number}")),
                        ),
                    ],
                    "shard-1": [(identity_stream(did(1)), self._written(saved(f"event-{number}")))],
                }
            )


def exporter(
    log: EventLog,
    place: ExportPlace,
    bounds: Bounds = SMALL,
    times: ExportTimes = NOTHING_KEPT,
    clock: Clock = system_clock,
) -> Exporter:
    return Exporter(log, place, OWNER, SIGNER, bounds, times=times, clock=clock)


def export_all(log: EventLog, place: ExportPlace, bounds: Bounds = SMALL) -> None:
    with closing(exporter(log, place, bounds)) as export:
        while export.step():
            pass


def catalog_of(place: ExportPlace, verify: Verify | None = VERIFY) -> Catalog:
    """What counts in an export whose files are those that were signed, to the byte."""
    found = read_catalog(place, verify)
    for file in found.files:
        read_data(place, file)
    return found


def tables_of(place: ExportPlace, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
    """Some columns, or all, of the files that count, each compared with what was signed."""
    for file in read_catalog(place, VERIFY).files:
        opened = pq.ParquetFile(pa.BufferReader(read_data(place, file)))
        yield opened.read(columns=columns, use_threads=False)


def exported_rows(place: ExportPlace, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
    rows = [row for table in tables_of(place, columns) for row in table.to_pylist()]
    return sorted(rows, key=lambda row: row["position"])


def exported_log(place: ExportPlace) -> list[LogRow]:
    columns = ["position", "stream", "version", "type", "type_version", "state"]
    return [
        LogRow(
            row["position"],
            row["stream"],
            row["version"],
            f"{row['type']}.{row['type_version']}",
            *without_content(row["state"]),
        )
        for row in exported_rows(place, columns)
    ]


def whole_log(log: EventLog) -> Sequence[LogRow]:
    return log.read_rows(after=0, rows_max=1_000_000, bytes_max=1_000_000_000)


def leaves_of(log: EventLog) -> list[bytes]:
    """The leaf hashes of all seals."""
    leaves = []
    for row in whole_log(log):
        if row.topic == SEAL_TOPIC:
            sealed = decode_seal(row.state)
            leaves.append(seal_leaf(row.position, row.version, sealed))
    return leaves


def findings(place: ExportPlace) -> list[ExportFinding]:
    """What is wrong with an export, by its own check."""
    found = verify_export(place, SIGNED_BY)
    return [finding for finding in found if isinstance(finding, ExportFinding)]


def sign_again(place: ExportPlace, manifest: Manifest, signer: Signer = SIGNER) -> Statement:
    """Sign a manifest that says something else now, and keep its name."""
    complete, content = signed(manifest, signer.sign)
    place.write(complete.path, content)
    return Statement(complete, hashlib.sha256(content).hexdigest())


def without_table(place: ExportPlace) -> None:
    """Make an export what an earlier release would have written: manifests alone."""
    for path in place.sizes(""):
        if path.startswith((TABLE_LOG, SUMMARIES, TREE, INDEX)) or path == END:
            place.remove(path)
    head = export_head(place, VERIFY)
    place.write(HEAD, signed(replace(head, format=FORMAT, signature=""), SIGNER.sign)[1])


def written(place: ExportPlace) -> dict[str, bytes]:
    """Every file but those that are replaced or say when they were written."""
    return {
        path: content
        for path, content in contents(place).items()
        if path not in {END, CHECKPOINT} and not path.startswith(TABLE_LOG)
    }


def contents(place: ExportPlace) -> dict[str, bytes]:
    """Every file of the place with its content."""
    return {path: place.read(path) for path in place.sizes("")}
