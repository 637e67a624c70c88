"""The declaration of a projection, and the step from its table at one position to a later one.

Rules of the projections: they use only DataFrame operations; a table is a function of the log up to
one position, and does not depend on the clock. Each projection rebuilds its table from the rows of
an earlier table (none the first time) and the events since, so that many steps give the same rows
as one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from eventstore.log.events import FREQUENT as FREQUENT_EVENTS
from eventstore.log.events import AccountExpired, IdentityErasureBegun, type_name
from eventstore.parquet.schema import FILLING

FREQUENT: Final = frozenset(map(type_name, FREQUENT_EVENTS))
"""The types that make up most of a log. Other events are few, and many tables read them."""
_AT_HAND_ROWS_MAX: Final = 2_000_000
"""The most rows that every task gets, of a few numbers each: some hundred megabytes per process."""
ERASED: Final = type_name(IdentityErasureBegun)
"""Ends an identity's registration, contracts, connection, keylist, rules, device and
history."""
EXPIRED: Final = type_name(AccountExpired)
"""Ends an idle agent's connection, mediation, keylist, rules and device."""
ACCOUNT_ENDS: Final = ("account-ended", EXPIRED, ERASED)
"""The types that end an account with all that is kept for it."""


def rare_events(events: DataFrame, types: Collection[str]) -> DataFrame:
    """Select the events of these types, with the columns that they fill.

    They are sorted by type: if they are kept, a reader of some types reads no others.
    """
    filled = frozenset[str]().union(
        *[filling.columns for kind, filling in FILLING.items() if type_name(kind) in types]
    )
    of_others = frozenset[str]().union(*[filling.columns for filling in FILLING.values()]) - filled
    rare = events.where(F.col("type").isin(*sorted(types))).drop("shard", *of_others)
    return rare.sortWithinPartitions("type")


@dataclass(frozen=True)
class Step:
    """The step from a table at one position to the table at a later one.

    ``events`` are the events after the earlier table; only ``types`` occur in them. ``rare`` are
    the events of the ``rare_types``, which may be kept in memory. ``at_ms`` is the latest recorded
    time of all events so far, ``window_ms_max`` the longest timestamp window of any seal. ``keep``
    computes rows now, keeps them until the tables are written, and returns their number; None if
    nothing may be computed yet. ``earlier`` are the rows of the earlier table; None in the first
    step.
    """

    events: DataFrame
    rare: DataFrame
    rare_types: frozenset[str]
    types: frozenset[str]
    at_ms: int = 0
    window_ms_max: int = 0
    keep: Callable[[DataFrame], int] | None = None
    earlier: DataFrame | None = None

    def of(self, *types: str) -> DataFrame:
        """The new events of these types; if there are none, no file is read."""
        wanted = self.types.intersection(types)
        is_wanted = F.col("type").isin(*sorted(wanted)) if wanted else F.lit(col=False)
        return (self.rare if self.rare_types.issuperset(types) else self.events).where(is_wanted)

    def since(self, new: DataFrame, *, but: Iterable[str] = ()) -> DataFrame:
        """The rows of the earlier table, without the columns ``but``, and new ones."""
        return new if self.earlier is None else self.earlier.drop(*but).unionByName(new)

    def at_hand(self, rows: DataFrame) -> DataFrame:
        """Prepare rows for a join with many others: few rows are given to every task as a whole."""
        if self.keep is None or self.keep(rows) > _AT_HAND_ROWS_MAX:
            return rows
        return F.broadcast(rows)


@dataclass(frozen=True)
class LiveRows:
    """Declares that a running mediator has the rows of a table in memory, and can dump them.

    ``keys`` are the columns that distinguish the rows of one ``owner``. ``order`` are the columns
    that order these rows, if any: then the dump has the zero-based ``place`` of each.
    ``actors.core.state_rows`` declares the columns of the dump.
    """

    keys: tuple[str, ...] = ()
    order: tuple[str, ...] = ()
    owner: str = "identity"


@dataclass(frozen=True)
class Projection:
    """The declaration of one table: its name, what it holds, and how it is rebuilt.

    ``columns`` says what each column of the table holds; ``reads`` are the types of events that
    change the table; ``live`` is None for a table that no mediator has in memory.
    """

    name: str
    about: str
    columns: Mapping[str, str]
    reads: tuple[str, ...]
    rebuild: Callable[[Step], DataFrame]
    live: LiveRows | None = None


PLACE = {
    "stream": "16-byte key of the identity's stream",
    "identity": "DID of the owner; key:…, invitation:… or edge:… for these",
    "version": "version of the event in the stream",
    "position": "position of the event in the log, in its database if there are several",
    "recorded_at": "when the event was decided",
}
"""The columns that say which event a row comes from, and what they hold."""


def latest_of(step: Step, new: DataFrame, *ends: str) -> DataFrame:
    """The newest row of each stream, unless there is a later event of ``ends``."""
    return latest(without(step.since(new), step.of(*ends), "stream"), "stream")


def latest(rows: DataFrame, *keys: str) -> DataFrame:
    """The row with the highest version of each key."""
    return _one_of_each(rows, keys, F.col("version").desc())


def earliest(rows: DataFrame, *keys: str) -> DataFrame:
    """The row with the lowest version of each key."""
    return _one_of_each(rows, keys, F.col("version").asc())


def without(rows: DataFrame, gone: DataFrame, *keys: str) -> DataFrame:
    """The rows that no later version of ``gone`` names by its keys."""
    named = gone.select(
        *[F.col(key).alias(f"gone_{key}") for key in keys], F.col("version").alias("gone_version")
    )
    condition = F.col("gone_version") > F.col("version")
    for key in keys:
        condition &= F.col(key) == F.col(f"gone_{key}")
    return rows.join(named, condition, "left_anti")


def _one_of_each(rows: DataFrame, keys: tuple[str, ...], order: Column) -> DataFrame:
    number = F.row_number().over(Window.partitionBy(*keys).orderBy(order))
    return rows.withColumn("number", number).where("number = 1").drop("number")
