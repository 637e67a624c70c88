"""Identities that a restored log has again, although they were erased behind its end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Final
from uuid import UUID

from eventstore.log.errors import LogError
from eventstore.log.event_log import LogRow
from eventstore.log.events import TOPIC_BY_TYPE, IdentityErased, IdentityErasureBegun
from eventstore.log.streams import is_erased_name
from eventstore.parquet.errors import ExportError
from eventstore.parquet.rows import manifest_rows
from eventstore.parquet.write.step import IdentityNames
from eventstore.stores.open_log import open_log
from eventstore.stores.restore import log_sections
from http_edge.server.restoring import Source

_BEGUN: Final = TOPIC_BY_TYPE[IdentityErasureBegun]
_ERASED: Final = TOPIC_BY_TYPE[IdentityErased]


def later_erasures(source: Source, dsn: str, end: int) -> tuple[Mapping[str, str | None], int]:
    """Who was erased behind ``end``, and is in the log that ends there; up to where that is known.

    Streams are as in receipts, each with its DID, or None if the log has lost the name. Nothing
    behind ``end`` is known if the source and its export end there, or cannot be read.
    """
    try:
        begun = {row.stream for row in _rows_behind(source, end) if row.topic == _BEGUN}
        with closing(open_log(dsn, to_read=True)) as log:
            names = IdentityNames(log)(begun)
            newest = {s: log.read_stream(UUID(bytes=s), newest_first=True, limit=1) for s in begun}
    except (ExportError, LogError):
        return {}, end
    here = [s for s, rows in newest.items() if any(row.topic != _ERASED for row in rows)]
    named = {s: name for s in here if (name := names[s]) and not is_erased_name(name)}
    exported = source.catalog.last if source.catalog else 0
    return {s.hex(): named.get(s) for s in sorted(here)}, max(end, source.last, exported)


def _rows_behind(source: Source, end: int) -> Iterator[LogRow]:
    """Rows behind ``end``, with all that begin an erasure: these never leave a log."""
    if source.log is not None:
        for section in log_sections(source.log, end):
            yield from section.rows
        end = max(end, source.last)
    for statement in source.catalog.statements if source.catalog else ():
        manifest = statement.manifest
        if manifest.last > end and any(_BEGUN in file.types for file in manifest.files):
            assert source.place is not None
            for rows in manifest_rows(source.place, manifest):
                yield from (row for row in rows if row.position > end)
