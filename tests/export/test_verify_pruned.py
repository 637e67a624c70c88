"""The check of an export that was pruned: what it says of the rows that are gone, and of the rest.

``test_pruning.py`` has what a forger without the key can do to its files.
"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from eventstore.log.event_log import EventLog
from eventstore.log.faults import Fault
from eventstore.log.verify import Head
from eventstore.parquet.catalog import Catalog
from eventstore.parquet.files import ExportPlace
from eventstore.parquet.manifest import heads_of
from eventstore.parquet.rows import read_table
from eventstore.parquet.schema import SCHEMA
from eventstore.parquet.verify.export import ExportFinding, verify_export
from eventstore.parquet.write.commit import write_data
from eventstore.parquet.write.table import TableWriter
from tests.export.forging import with_value
from tests.export.leaving import LATER_MS, leave, played, prune
from tests.export.samples import SIGNED_BY, SIGNER, catalog_of, findings, sign_again

YOUNG_MS = 400_000


@pytest.fixture
def pruned(sqlite_log: EventLog, place: ExportPlace) -> Catalog:
    history = played(sqlite_log)
    leave(sqlite_log, place)
    assert prune(sqlite_log, place, until_ms=history.now_ms - YOUNG_MS)
    return catalog_of(place)


def _faults_signed(place: ExportPlace, catalog: Catalog, **members: Any) -> set[Any]:
    """The faults if the mediator's key says something else about what was pruned."""
    first, *others = catalog.statements
    forged = sign_again(place, replace(first.manifest, **members, signature=""))
    writer = TableWriter(place, SIGNER, lambda: LATER_MS, versions_kept_s=0)
    writer.mark(writer.commit(catalog, [forged, *others]))
    return {one.fault for one in findings(place)}


def test_other_heads_than_those_of_the_rows_that_stayed_are_found(
    pruned: Catalog, place: ExportPlace
) -> None:
    heads = pruned.statements[0].manifest.heads
    name, head = next(iter(heads.items()))
    heads = heads | {name: replace(head, digest="00" * 32)}
    assert Fault.WRONG_HEAD in _faults_signed(place, pruned, heads=heads)


def test_versions_that_go_back_in_the_rows_that_stayed_are_found(
    pruned: Catalog, place: ExportPlace
) -> None:
    first, *others = pruned.statements[0].manifest.files
    rows = read_table(place, first, SCHEMA.names)
    streams = rows["stream"].to_pylist()
    again = next(n for n, stream in enumerate(streams) if stream in streams[:n])
    forged = write_data(place, first.day, with_value(rows, again, "version", 1), 0)
    assert Fault.VERSION_BREAK in _faults_signed(place, pruned, files=[forged, *others])


def test_a_known_head_is_compared_with_the_newest_seal_that_was_pruned(
    pruned: Catalog, place: ExportPlace
) -> None:
    manifest = pruned.statements[0].manifest
    name, newest = next(iter(heads_of(manifest.path, manifest).items()))
    for head, faults in (
        (newest, []),
        (Head(newest.version, bytes(32)), [Fault.MISSING_HEAD]),
        (Head(newest.version - 1, bytes(32)), []),  # its row may be gone
    ):
        found = verify_export(place, SIGNED_BY, known_heads={name: head}, processes=1)
        assert [one.fault for one in found if isinstance(one, ExportFinding)] == faults
