"""Everything that a log consists of, table by table, the same from both stores."""

from __future__ import annotations

from contextlib import closing
from typing import Any, Final

from eventstore.log.event_log import EventLog, LogRow
from eventstore.log.faults import Fault, Finding
from eventstore.log.verify import verify
from eventstore.read_models.queue_depths import COLUMNS
from eventstore.stores.log_import import LogImport
from eventstore.stores.open_log import open_log, open_store
from eventstore.stores.restore import Restored, log_sections, restore

_COLUMNS: Final = {
    "postings": "list, timestamp_s, version, revision, own",
    "queue_depths": ", ".join(COLUMNS),
    "queue_totals": ", ".join(f"CAST(sum({n}) AS bigint)" for n in ("queues", "messages", "bytes")),
    "dedicated": "stream, did, reason",
    "settings": "name, value",
}


def tables_of(dsn: str) -> dict[str, Any]:
    """The rows of every table; snapshots and the heartbeat are left out, which are caches."""
    found: dict[str, Any] = {}
    with closing(open_store(dsn)) as store, store.reading() as session:
        found["stored_events"] = session.log_rows(0, 10_000_000, 10_000_000_000)
        for table, columns in _COLUMNS.items():
            rows = session.rows(f"SELECT {columns} FROM {table}")
            found[table] = sorted([tuple(map(_plain, row)) for row in rows], key=repr)
    return found


def copy_log(source: str, target: str) -> Restored:
    """Restore a log from another one."""
    with closing(open_log(source)) as log, closing(open_store(target)) as store:
        constants = log.settings()
        importing = LogImport(store, constants["mediator_did"], "token")
        importing.begin()
        return restore(log_sections(log), importing, constants)


def row_at(position: int, row: LogRow) -> LogRow:
    """The row at another position."""
    return LogRow(position, row.stream, row.version, row.topic, row.state, row.content)


def faults(log: EventLog) -> list[Fault]:
    """What is wrong with a log, by its own check."""
    return [found.fault for found in verify(log) if isinstance(found, Finding)]


def _plain(value: Any) -> Any:
    return bytes(value) if isinstance(value, bytes | memoryview) else value
