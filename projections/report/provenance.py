"""What a report says about the export that it is of: whose, what of it, and how sure that is."""

from __future__ import annotations

from typing import NamedTuple

from projections.exported import Position, position_text
from projections.report import units
from projections.spark.export import ExportedLog


class Note(NamedTuple):
    """One line: its name, and what is said."""

    name: str
    text: str


def notes(export: ExportedLog, *, is_pseudonymised: bool) -> list[Note]:
    """What is to be known of an export that ``open_signed_export`` opened."""
    catalogs = [part.catalog for part in export.parts]
    manifests = sum(len(catalog.statements) for catalog in catalogs)
    named = (
        "every DID is replaced by its keyed hash; the same key gives the same ones elsewhere"
        if is_pseudonymised
        else "as they stand in the log"
    )
    return [
        Note("Mediator", export.head.mediator_did),
        Note("Log", _rows(export.last, sum(catalog.rows for catalog in catalogs))),
        Note(
            "Signatures",
            f"verified: {units.count(manifests)} manifest{'' if manifests == 1 else 's'}, signed"
            f" by the key {export.head.public_key}, which has to be the mediator's",
        ),
        Note("Files", "sizes compared; hashes and the chain of the log are not: poste verify does"),
        Note("Names", named),
    ]


def _rows(last: Position, rows: int) -> str:
    if not rows:
        return "no rows are exported yet"
    return f"exported up to position {position_text(last)}, {units.count(rows)} rows"
