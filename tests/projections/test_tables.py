"""What is declared of a table in several places agrees, without Spark."""

from __future__ import annotations

from actors.core.state_rows import TABLES
from eventstore.log.events import TOPIC_BY_TYPE, type_name
from http_edge.cli.live_dump import SCHEMAS
from projections.tables.registry import PROJECTIONS

LIVE = {table.name: table for table in PROJECTIONS if table.live is not None}
SUMS = {"correspondents", "queue_totals", "queue_keys"}
"""Tables of a dump that compare makes of other ones."""
ROWS = {name: SCHEMAS[name].names for name in (*TABLES, "seals", "nonces")}


def test_each_table_is_declared_once_and_reads_events_that_are_declared() -> None:
    names = [table.name for table in PROJECTIONS]
    assert len(set(names)) == len(names) > 10
    types = {type_name(kind) for kind in TOPIC_BY_TYPE}
    for table in PROJECTIONS:
        assert set(table.reads) <= types, table.name
        assert table.about
        assert all(table.columns.values())


def test_what_is_compared_with_memory_is_what_a_dump_has() -> None:
    assert LIVE.keys() | SUMS == ROWS.keys()
    for name, table in LIVE.items():
        assert table.live is not None
        # Where a nonce is kept in memory, and the order of rows, are made by compare.
        columns = set(ROWS[name]) - {"place", "bucket"}
        assert columns <= set(table.columns), name
        assert set(table.live.keys) <= columns, name
        assert bool(table.live.order) == ("place" in ROWS[name]), name
