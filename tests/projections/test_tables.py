"""What is declared of a table in several places agrees."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from pyspark.sql import DataFrame, SparkSession

from actors.core.state_rows import TABLES
from eventstore.log.events import TOPIC_BY_TYPE, type_name
from http_edge.cli.live_dump import SCHEMAS
from projections.spark.export import SCHEMA
from projections.tables import PROJECTIONS
from projections.tables.identities import IDENTITIES
from projections.tables.projection import Step

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


@dataclass(frozen=True)
class StepOfAll(Step):
    """A step in which events of every type may occur; it notes which ones a table asks for."""

    read: set[str] = field(default_factory=set)

    def of(self, *types: str) -> DataFrame:
        self.read.update(types)
        return super().of(*types)


@pytest.mark.spark
def test_a_table_is_rebuilt_after_each_event_that_it_is_made_of(spark: SparkSession) -> None:
    """A rebuild that continues leaves a table as it is if no event happened that it ``reads``."""
    none = spark.createDataFrame([], SCHEMA)
    types = frozenset(type_name(kind) for kind in TOPIC_BY_TYPE)
    for table in PROJECTIONS:
        step = StepOfAll(none, none, frozenset(), types)
        table.rebuild(step)
        # Every stream of an identity is in its table, whatever happened in it.
        read = types - {"batch-sealed"} if table == IDENTITIES else step.read
        assert set(table.reads) == read, table.name


def test_what_is_compared_with_memory_is_what_a_dump_has() -> None:
    assert LIVE.keys() | SUMS == ROWS.keys()
    for name, table in LIVE.items():
        assert table.live is not None
        # Where a nonce is kept in memory, and the order of rows, are made by compare.
        columns = set(ROWS[name]) - {"place", "bucket"}
        assert columns <= set(table.columns), name
        assert set(table.live.keys) <= columns, name
        assert bool(table.live.order) == ("place" in ROWS[name]), name
