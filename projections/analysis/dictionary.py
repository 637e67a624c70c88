"""The data dictionary: a page of the guide with every table, view and column, as declared.

python -m projections dictionary > deploy/docs/pages/reference/dictionary.md
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import click
import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type

from eventstore.log.events import TOPIC_BY_TYPE, Event, type_name
from eventstore.parquet.schema import EVALUATED, FILLING, SIZE
from projections.tables import PROJECTIONS
from projections.views import VIEWS
from projections.views.view import SOURCES, SPAN, SPAN_COLUMNS, TENANT_COLUMNS, TENANTS

_HEAD: Final = """# Data dictionary

The contents of an export and of its rebuilt tables. [Analysis](../guides/analysis.md) shows how to
open them. `python -m projections dictionary` generates this page from the declarations. Types are
those of Spark; DuckDB and Arrow have the same under their own names. Times are UTC.
"""
_OF_ROWS: Final[Mapping[str, str]] = {
    "position": "place of the row in the log, in its database if there are several",
    "shard": "the partition whose seal covers the row",
    "stream": "16-byte key of the identity's stream",
    "identity": "DID; key:…, invitation:… or edge:… for these; null if unknown",
    "version": "place in the stream, from 1",
    "type": "what happened: one of the types below",
    "recorded_at": "when the event was decided",
}
_OTHERWISE: Final = {
    "nonces.key": "binary",
    "seals.nonces": "bigint",
    "identities.erased": "boolean",
    "refusals": "bigint",
    "refused": "string",
    "refusing": "boolean",
    "command": "string",
}
"""Columns of tables and views whose type is not that of the log's column of the same name."""
_ENDINGS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("_at", "at_time", "_start", "_end", "_bin", "week", "cohort"), "timestamp"),
    **dict.fromkeys(("_did", "stage", "tenant", "what"), "string"),
    **dict.fromkeys(("_s", "share", "share_in_time", "share_refused", "churn"), "double"),
    **dict.fromkeys(("dedicated", "is_complete"), "boolean"),
    "ordinal": "int",
}
"""The types of columns that the log lacks, by the ends of their names; others are numbers."""


def type_of(relation: str, column: str) -> str:
    """The type of a column of a table or view, by Spark's name."""
    if found := _OTHERWISE.get(f"{relation}.{column}") or _OTHERWISE.get(column):
        return found
    if column in EVALUATED.names:
        return _named(EVALUATED.field(column).type)
    return next((kind for end, kind in _ENDINGS.items() if column.endswith(end)), "bigint")


def dictionary() -> str:
    """The page, in Markdown."""
    return "\n".join([_HEAD, *_relations()]).rstrip() + "\n"


def _relations() -> Iterator[str]:
    yield "## The log\n"
    yield f"`events`: {SOURCES['events']}\n"
    yield from _table("events", _OF_ROWS)
    yield "The other columns are null unless the type of the event has them.\n"
    newest = {type_name(kind): kind for kind in TOPIC_BY_TYPE}
    for name, kind in newest.items():
        yield f"### {name}\n"
        yield f"{_first_paragraph(kind)}\n"
        yield from _filled(kind)
    yield "## Tables\n"
    yield "Rebuilt by `poste rebuild`: the state at one position of the log.\n"
    for projection in sorted(PROJECTIONS, key=lambda each: each.name):
        yield f"### {projection.name}\n"
        yield f"{projection.about} Follows from {', '.join(f'`{k}`' for k in projection.reads)}.\n"
        yield from _table(projection.name, projection.columns)
    yield "## Views\n"
    yield "SQL over the log and a time span, the same for Spark and DuckDB.\n"
    for name, columns in ((SPAN, SPAN_COLUMNS), (TENANTS, TENANT_COLUMNS)):
        yield f"### {name}\n"
        yield f"{SOURCES[name]}\n"
        yield from _table(name, columns)
    for view in VIEWS:
        yield f"### {view.name}\n"
        yield f"{view.about}\n"
        yield from _table(view.name, view.columns)


def _table(relation: str, columns: Mapping[str, str]) -> Iterator[str]:
    yield "| column | type | holds |"
    yield "|---|---|---|"
    for column, about in columns.items():
        yield f"| `{column}` | {type_of(relation, column)} | {about} |"
    yield ""


def _filled(kind: type[Event]) -> Iterator[str]:
    filling = FILLING[kind]
    columns = {
        name: filled.type for name, filled in filling.columns.items() if name in EVALUATED.names
    }
    if filling.content is not None:
        columns[SIZE] = EVALUATED.field(SIZE).type
    if columns:
        shown = ", ".join(f"`{name}` {_named(found)}" for name, found in columns.items())
        yield f"Columns: {shown}.\n"


def _first_paragraph(kind: type[Event]) -> str:
    return " ".join((kind.__doc__ or "").replace("``", "`").split("\n\n")[0].split())


def _named(kind: pa.DataType) -> str:
    if pa.types.is_list(kind):
        return f"array&lt;{_named(kind.value_type)}&gt;"
    if pa.types.is_struct(kind):
        members = ", ".join(f"{field.name} {_named(field.type)}" for field in kind.fields)
        return f"struct({members})"
    name: str = from_arrow_type(kind).simpleString()
    return name


@click.command("dictionary")
def dictionary_command() -> None:
    """Print the data dictionary of the guide: every table, view and column."""
    click.echo(dictionary(), nl=False)
