"""Dumps of a host that a test holds in its hands."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from actors.host.host import Host
from actors.host.inspection import DescribeStates, InspectionQuestion, Inspector
from eventstore.log.event_log import EventLog
from eventstore.parquet.databases import exports_in
from eventstore.parquet.files import open_place
from http_edge.cli.live_comparison import Collector, exported_identities
from http_edge.cli.live_dump import Dumped, DumpWriter
from tests.histories import PLACEMENT, partition_of


def dump_host(
    host: Host, log: EventLog, export: Path, folder: Path, databases: Sequence[EventLog] = ()
) -> Dumped:
    """What the host has in memory, of the identities in the export and its own.

    ``databases`` hold what the log has, if it is exported from there.
    """
    inspector = Inspector(host, log, lambda run: run())

    def ask(question: bytes) -> bytes:
        inspection: InspectionQuestion = msgspec.msgpack.decode(question, type=InspectionQuestion)
        if isinstance(inspection, DescribeStates):
            partitions = [partition_of(target) for target in inspection.targets]
            inspection = DescribeStates(inspection.targets, inspection.bytes_max, partitions)
        return msgspec.msgpack.encode(inspector.answer(inspection))

    ends = databases or [log]
    after = [one.position() for one in ends]
    places = map(open_place, exports_in(str(export)))
    folder.mkdir()
    with DumpWriter(folder) as writer:
        exported = {name for place in places for name in exported_identities(place)}
        Collector(ask, writer).collect(exported, PLACEMENT.shards, lambda _done, _all: None)
    return writer.finish(after=after, before=[one.position() for one in ends])


def rewrite(folder: Path, table: str, change: Any) -> None:
    """Replace the rows of a table of a dump by what ``change`` makes of them."""
    path = folder / f"{table}.parquet"
    found = pq.read_table(path)
    pq.write_table(pa.Table.from_pylist(change(found.to_pylist()), found.schema), path)
