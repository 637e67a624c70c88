"""Opens an export and the tables of one rebuild for a notebook: every table and view by its name.

    with projections.open("/srv/poste/export", tables="/srv/poste/tables") as log:
        log.names                                   # what there is, and what it holds
        log.columns("service_level")                # what the columns hold, with their units
        log.pandas("service_level")                 # or arrow: one of them as a whole
        log.sql("SELECT * FROM pairs LIMIT 10")     # SQL of DuckDB on all of them
        log.spark().table("messages")               # the same names in a session of Spark

Later exports and rebuilds do not change what is opened: the files that the export or the generation
named when it was opened. Spark and DuckDB are imported only on first use. Views are about one span
of time (``projections.views.span``).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
import pyarrow.dataset as ds

from eventstore.log.public_key import read_public_key
from eventstore.parquet.opening import OpenedExport, Position, open_exports
from eventstore.parquet.schema import EVALUATED
from projections.errors import USAGE, ProjectionError
from projections.generations.generation import Generation, GenerationTable
from projections.generations.place import TablesPlace
from projections.views import VIEWS
from projections.views.engines import event_rows, recorded_ms, views_in_duckdb, views_in_spark
from projections.views.span import NO_EVENTS, WITHIN_MS, Span
from projections.views.view import EVENTS, SOURCES, SPAN_COLUMNS, TENANT_COLUMNS, TENANTS

if TYPE_CHECKING:
    import duckdb
    import pandas as pd
    from pyspark.sql import SparkSession


class NotOfThisExport(ProjectionError):
    """The tables were rebuilt from another export, or from rows that this export does not have."""

    exit_code = USAGE


def open(  # noqa: A001, PLR0913 - as gzip.open; one for each choice
    export: str,
    tables: str | None = None,
    *,
    generation: int | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    within_s: float = WITHIN_MS / 1000,
    tenants: Mapping[str, str] | None = None,
    public_key: str | None = None,
) -> Opened:
    """Open an export, and the tables that were rebuilt from it, if any.

    Args:
        export: the place of the export, a folder or a URI.
        tables: the place of the rebuilt tables; the log then ends where the tables do.
        generation: the number of the rebuild; None for the newest one.
        since: when the views begin, with its zone; None for the first event.
        until: before which the views end; None for the last event.
        within_s: the wait, in seconds, that the service level is measured against.
        tenants: the tenant of each identity, by DID; others are counted under their agents' labels.
        public_key: the mediator's, in any text form; an export signed by another key is refused.

    Raises:
        NoExport, ExportDamaged, ExportUnavailable, SignedByAnother: as ``open_exports``.
        TablesDamaged: the tables or the generation do not exist, or are not as they were written.
        NotOfThisExport: the tables do not belong to the export.
        NoSuchTime: ``until`` is not after ``since``.
        PublicKeyRefused: ``public_key`` is no public key.
    """
    opened = open_exports(export, None if public_key is None else read_public_key(public_key))
    place = None if tables is None else TablesPlace(tables)
    found = None if place is None else _generation(place, generation, opened)
    at = opened.last if found is None else found.at
    span = Span.of_log(
        *recorded_ms(opened, at),
        opened.complete_until_ms if found is None else found.complete_until_ms,
        _ms(since),
        _ms(until),
        within_ms=round(within_s * 1000),
    )
    return Opened(opened, at, place, found, span or NO_EVENTS, tenants or {})


class Opened:
    """An opened export with its tables and views; a context manager.

    Attributes:
        span: The time that the views are about, its bins, and until when it is complete.
        generation: The description of the tables of one rebuild; None if none were opened.
        names: Every table and view by its name, with what it holds.
    """

    def __init__(
        self,
        export: OpenedExport,
        at: Position,
        place: TablesPlace | None,
        generation: Generation | None,
        span: Span,
        tenants: Mapping[str, str],
    ) -> None:
        self._export, self._at, self._place, self._tenants = export, at, place, tenants
        self._ending = ExitStack()
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._spark: SparkSession | None = None
        self.span = span
        self.generation = generation
        self.names: Mapping[str, str] = {
            **SOURCES,
            **{table.name: table.about for table in self._tables},
            **{view.name: view.about for view in VIEWS},
        }

    def __enter__(self) -> Self:
        """Return the opened export itself."""
        return self

    def __exit__(self, *_error: object) -> None:
        """Close the opened export."""
        self.close()

    def close(self) -> None:
        """End the connection to DuckDB and the Spark session, if this object started them."""
        self._ending.close()
        self._connection = self._spark = None

    def columns(self, name: str) -> Mapping[str, str]:
        """What each column of a table or view holds, with its unit; for ``events`` their types.

        Raises:
            KeyError: there is no table or view of this name.
        """
        known: dict[str, Mapping[str, str]] = {view.name: view.columns for view in VIEWS}
        known |= {t.name: {c.name: c.about for c in t.columns} for t in self._tables}
        known |= {"span": SPAN_COLUMNS, TENANTS: TENANT_COLUMNS}
        known[EVENTS] = {field.name: str(field.type) for field in EVALUATED}
        return known[self._known(name)]

    def arrow(self, name: str) -> pa.Table:
        """A table or view as a whole. Raises as ``columns`` and ``duckdb``."""
        return self.sql(f'SELECT * FROM "{self._known(name)}"').to_arrow_table()  # noqa: S608

    def pandas(self, name: str) -> pd.DataFrame:
        """A table or view as a whole. Raises as ``columns`` and ``duckdb``."""
        return self.arrow(name).to_pandas()

    def sql(self, query: str) -> duckdb.DuckDBPyRelation:
        """Run an SQL query in DuckDB; it computes nothing before the result is read."""
        return self.duckdb().sql(query)

    def duckdb(self) -> duckdb.DuckDBPyConnection:
        """A connection to DuckDB with all tables and views by name; the same one each time.

        Raises:
            ImportError: DuckDB is not installed (the extra ``notebook``).
            TablesDamaged: a file of a table is not the one that was written.
        """
        if self._connection is None:
            # Imported here, so that users of Spark need no DuckDB, and the other way round.
            import duckdb  # noqa: PLC0415

            connection = self._ending.enter_context(duckdb.connect())
            ends = zip(self._export.parts, self._at, strict=True)
            rows = [(event_rows(part, last), last) for part, last in ends]
            views_in_duckdb(connection, rows, self.span, self._tenants)
            for table in self._tables:
                connection.register(table.name, self._dataset(table))
            self._connection = connection
        return self._connection

    def spark(self, session: SparkSession | None = None) -> SparkSession:
        """A Spark session with all tables and views by name; the same one each time.

        Args:
            session: any session of the Spark to use; None starts a Spark on this machine.

        Raises:
            ImportError: Spark is not installed (the extra ``spark``).
            JavaMissing: there is no Java to start.
            UserUnnamed: the user of this process has no name.
            TablesDamaged: a file of a table is not the one that was written.
        """
        if self._spark is None:
            from projections.generations.reading import read_files  # noqa: PLC0415
            from projections.spark.export import ExportedLog  # noqa: PLC0415
            from projections.spark.session import open_session  # noqa: PLC0415

            log = ExportedLog(self._export.parts)
            using = session or self._ending.enter_context(open_session())
            named = views_in_spark(
                using, lambda spark: log.events(spark, until=self._at), self.span, self._tenants
            )
            for table in self._tables:
                place = self._checked(table)
                rows = read_files(named, place, table, table.files)
                rows.createOrReplaceTempView(table.name)
            self._spark = named
        return self._spark

    @property
    def _tables(self) -> list[GenerationTable]:
        return [] if self.generation is None else list(self.generation.tables)

    def _known(self, name: str) -> str:
        if name not in self.names:
            raise KeyError(f"there is no {name}, only {', '.join(self.names)}")
        return name

    def _checked(self, table: GenerationTable) -> TablesPlace:
        assert self._place is not None  # where the table was found
        self._place.check_content(table, table.files)
        return self._place

    def _dataset(self, table: GenerationTable) -> Any:
        place = self._checked(table).place
        paths = [place.full_path(f"{table.name}/{file.path}") for file in table.files]
        if not paths:
            return table.arrow_schema.empty_table()
        return ds.dataset(paths, schema=table.arrow_schema, filesystem=place.filesystem)


def _generation(place: TablesPlace, number: int | None, export: OpenedExport) -> Generation:
    found = place.opened(number)
    head = export.head
    if (found.mediator, found.public_key) != (head.mediator_did, head.public_key):
        raise NotOfThisExport(f"{place.target}: the tables belong to {found.mediator}")
    if len(found.at) != len(export.last) or any(
        at > last for at, last in zip(found.at, export.last, strict=True)
    ):
        raise NotOfThisExport(f"{place.target}: the tables are newer than the export")
    if not place.is_of(found, export):
        raise NotOfThisExport(f"{place.target}: the tables are of another history of this log")
    return found


def _ms(at: datetime | None) -> int | None:
    return None if at is None else int(at.timestamp() * 1000)
