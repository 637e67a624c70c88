"""The declaration of a view, and the relations that views read.

The text of a view is SQL that Spark and DuckDB understand alike. Its rules:

- numbers are cast to BIGINT or DOUBLE where an engine would widen them;
- times are compared and cut as Unix milliseconds (``unix_millis``, ``timestamp_millis``);
- a list becomes rows by ``explode`` and has ``array_size`` elements; a range of numbers is a list
  by ``sequence``;
- hints for Spark's planner are in ``/*+ … */``, which DuckDB skips.

The functions are Spark's; macros define them in DuckDB (``DUCKDB``). A view reads the relations of
``SOURCES`` and views that are declared before it (``projections.views``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from eventstore.log.streams import ERASED

DUCKDB: Final = (
    "SET TimeZone = 'UTC'",
    "CREATE MACRO explode(list) AS unnest(list)",
    "CREATE MACRO array_size(list) AS len(list)",
    "CREATE MACRO sequence(first, last, step) AS generate_series(first, last, step)",
    "CREATE MACRO unix_millis(moment) AS epoch_ms(moment)",
    "CREATE MACRO timestamp_millis(ms) AS make_timestamptz(CAST(ms AS BIGINT) * 1000)",
)
"""The statements that prepare a connection to DuckDB for the views."""

EVENTS: Final = "events"
SPAN: Final = "span"
TENANTS: Final = "tenants"
SOURCES: Final[Mapping[str, str]] = {
    EVENTS: "The rows of the exported log that were recorded before the end of the span.",
    SPAN: "One row: the span of time that the views cover, and how it is divided into bins.",
    TENANTS: "The tenant of each identity, by the operator's own list; empty without one.",
}
SPAN_COLUMNS: Final[Mapping[str, str]] = {
    "since_ms": "where it begins, at the beginning of a bin, Unix milliseconds",
    "until_ms": "before which it ends, Unix milliseconds",
    "complete_ms": "everything recorded before this is in the export, Unix milliseconds",
    "bin_ms": "the length of a bin, milliseconds",
    "within_ms": "the wait that the service level is measured against, milliseconds",
}
TENANT_COLUMNS: Final[Mapping[str, str]] = {
    "identity": "DID of the owner of a queue",
    "tenant": "the operator's name for the tenant",
}


@dataclass(frozen=True)
class View:
    """One view: its name, what it and each column holds, with units, and its SQL.

    ``order`` has the columns that distinguish and sort the rows when they are shown, with ``-``
    before the name for descending; it is empty for a view that is too large to be shown.
    ``is_basis``: many other views read it, so that callers who read several of them keep it.
    """

    name: str
    about: str
    columns: Mapping[str, str]
    sql: str
    order: tuple[str, ...] = ()
    is_basis: bool = False


PROTOCOL: Final = {"protocol": "decentrl, didcomm (version 1) or didcomm/v2"}
BIN: Final = {"bin_start": "when the bin begins"}
COMPLETE: Final = {"is_complete": "the export has everything that this row counts"}
SENDER: Final = f"empty where the protocol hides that, {ERASED}… once the name has left the log"
NAMED_SENDER: Final = f"sender_did <> '' AND sender_did NOT LIKE '{ERASED}%'"
"""Whether a row names its sender. In the stream of an erased identity all names leave, also those
of senders that still have their own elsewhere: as ``erased:…`` they would count once more."""
