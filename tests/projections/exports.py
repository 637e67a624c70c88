"""Exports of a log, and the rows of tables in a form that can be compared."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import pyarrow.dataset as ds
from eventsourcing.persistence import StoredEvent

from actors.core.partitioning import Placement, is_shard
from actors.host.clock import system_clock
from eventstore.log.codec import decode_whole
from eventstore.log.event_log import EventLog, LogRow
from eventstore.log.events import BatchSealed, Event
from eventstore.log.public_key import PublicKey
from eventstore.parquet.files import open_place
from eventstore.parquet.manifest import Signer
from eventstore.parquet.write.compaction import TakenOut
from eventstore.parquet.write.exporter import Exporter, ExportOwner
from eventstore.parquet.write.step import Bounds
from eventstore.stores.open_log import open_log
from http_edge.crypto import signatures
from projections.generations.generation import Generation, GenerationTable
from projections.generations.place import TablesPlace
from projections.spark.export import ExportedLog
from tests.histories import MEDIATOR

_SEED: Final = bytes(range(32))
_KEY: Final = signatures.public_key(_SEED)
SIGNER: Final = PublicKey(_KEY)
SIGN: Final = partial(signatures.sign, _SEED)


def read_tables(target: Path, made: Generation) -> dict[str, set[Any]]:
    """The rows of the tables of a generation, as the place describes it.

    Without Spark, which takes longer to plan this than to read it; ``test_opening.py`` shows that
    it reads the same.
    """
    place = TablesPlace(str(target))
    opened = place.opened(made.generation)
    assert opened == made
    return {table.name: _rows_of_files(place, table) for table in opened.tables}


def _rows_of_files(place: TablesPlace, table: GenerationTable) -> set[tuple[Any, ...]]:
    paths = [place.place.full_path(f"{table.name}/{file.path}") for file in table.files]
    if not paths:
        return set()
    read = ds.dataset(
        paths, schema=table.arrow_schema, filesystem=place.place.filesystem
    ).to_table()
    rows = {tuple(map(_plain, row.values())) for row in read.to_pylist()}
    assert len(rows) == read.num_rows, table.name
    return rows


def complete_until(export: ExportedLog) -> datetime:
    """The latest time for which the export says that it has all of the log."""
    times_ms = [part.catalog.complete_until_ms for part in export.parts]
    assert None not in times_ms
    return datetime.fromtimestamp(min(ms for ms in times_ms if ms is not None) / 1000, UTC)


def export_log(log: EventLog, target: Path, rows_max: int = 100_000) -> None:
    """Export all of a log, in steps of about this many rows."""
    exporter = _exporter(log, target, rows_max)
    while exporter.step() is not None:
        pass


def take_out_erased(log: EventLog, target: Path) -> TakenOut:
    """Take out of an export what the log has erased, names too."""
    exporter = _exporter(log, target, 100_000)
    taken = exporter.take_out_erased()
    exporter.sweep()
    return taken


def _exporter(log: EventLog, target: Path, rows_max: int) -> Exporter:
    return Exporter(
        log,
        open_place(str(target)),
        ExportOwner(MEDIATOR, 3),
        Signer(SIGNER.text, SIGN),
        Bounds(rows_max=rows_max),
        clock=system_clock,
    )


def prefix_of(log: EventLog, position: int, path: Path) -> EventLog:
    """A log of its own with the rows up to a position."""
    rows = [row for row in _rows(log) if row.position <= position]
    prefix = open_log(f"sqlite:{path}")
    prefix.append(list(map(_stored, rows)), list(map(_event, rows)))
    return prefix


def share_out(
    log: EventLog, databases: Sequence[EventLog], placement: Placement, *, after: int = 0
) -> None:
    """Append what follows a position to the databases, each what its own partitions sealed."""
    section: list[LogRow] = []
    for row in _rows(log, after):
        section.append(row)
        sealed = _event(row)
        if isinstance(sealed, BatchSealed):
            name = sealed.partition
            shard = name if is_shard(name) else placement.partition_of(name)
            number = placement.database_of_shard(shard)
            databases[number].append(list(map(_stored, section)), list(map(_event, section)))
            section = []


def _rows(log: EventLog, after: int = 0) -> Sequence[LogRow]:
    return log.read_rows(after=after, rows_max=1_000_000, bytes_max=1_000_000_000)


def _stored(row: LogRow) -> StoredEvent:
    return StoredEvent(UUID(bytes=row.stream), row.version, row.topic, row.state)


def _event(row: LogRow) -> Event:
    return decode_whole(row.topic, row.state, row.content)


def _plain(value: Any) -> Any:
    match value:
        case bytearray():
            return bytes(value)
        case datetime():
            return value.astimezone(UTC)
        case list():
            return tuple(value)
        case _:
            return value
