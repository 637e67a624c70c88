"""An export without a table, as earlier releases wrote it: read as it is, and given a table."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from deltalake import DeltaTable

from eventstore.log.event_log import EventLog
from eventstore.parquet.catalog import catalog_of
from eventstore.parquet.errors import Damage, ExportDamaged
from eventstore.parquet.files import EVENTS, HEAD, INDEX, TABLE_LOG, ExportPlace, open_place
from eventstore.parquet.rows import exported_sections
from eventstore.parquet.tree import TREE
from eventstore.parquet.verify.export import verify_export
from eventstore.parquet.verify.findings import ExportSummary
from eventstore.parquet.verify.mark import VerifiedMarks
from eventstore.parquet.write.step import Bounds
from eventstore.stores.open_log import open_log
from tests.archives import extract
from tests.export.samples import (
    SIGNED_BY,
    SIGNER,
    VERIFY,
    Growing,
    contents,
    export_all,
    exported_log,
    exporter,
    findings,
    whole_log,
    without_table,
    written,
)
from tests.tidy.modules import ROOT

GOLDEN = ROOT / "tests" / "golden"
EXPORTS = ("export.1-first.tar.gz", "export.1.tar.gz")
"""Eight transactions each. Files of the first builds lack four columns; of the other export the
first four transactions were put together."""


@pytest.fixture(params=EXPORTS)
def archived(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def old(tmp_path: Path, archived: str) -> ExportPlace:
    return golden(tmp_path / "export", archived)


def golden(folder: Path, archived: str = EXPORTS[-1]) -> ExportPlace:
    with tarfile.open(GOLDEN / archived) as archive:
        extract(archive, folder)
    return open_place(str(folder))


@pytest.fixture
def growing(tmp_path: Path) -> Iterator[tuple[EventLog, Growing]]:
    """The log that was exported then."""
    with closing(open_log(f"sqlite:{tmp_path / 'log.db'}")) as log:
        growing = Growing(log, as_earlier=True)
        growing.grow(8)
        yield log, growing


def test_it_is_read_and_proven_as_it_is(
    old: ExportPlace, growing: tuple[EventLog, Growing]
) -> None:
    before = contents(old)
    assert findings(old) == []
    assert exported_log(old) == list(whole_log(growing[0]))
    sections = exported_sections(old, catalog_of(old, VERIFY, is_whole=True))
    assert sum(len(section.rows) for section in sections) == len(whole_log(growing[0]))
    assert contents(old) == before


def test_it_is_verified_as_often_as_wanted_and_marked_once_it_has_a_tree(
    old: ExportPlace, growing: tuple[EventLog, Growing], tmp_path: Path
) -> None:
    log, more = growing
    marks = VerifiedMarks(open_place(str(tmp_path / "marks")), SIGNER)

    def verified_before_up_to() -> int:
        *found, summary = verify_export(old, SIGNED_BY, marks=marks)
        assert isinstance(summary, ExportSummary)
        assert found == []
        return summary.verified_before_up_to

    assert [verified_before_up_to(), verified_before_up_to()] == [0, 0]
    export_all(log, old)
    assert [verified_before_up_to(), verified_before_up_to()] == [0, 0]
    more.grow(2)
    export_all(log, old)
    assert [verified_before_up_to(), verified_before_up_to()] == [0, 50]
    # Two of its steps are put together, which name no tree.
    with closing(exporter(log, old, Bounds(rows_max=20))) as export:
        assert export.compact(files_min=2)
    assert verified_before_up_to() == 50


def test_the_next_export_gives_it_a_table_and_leaves_its_files(
    old: ExportPlace, growing: tuple[EventLog, Growing]
) -> None:
    log, more = growing
    before = contents(old)
    export_all(log, old)
    changed = {path for path, content in written(old).items() if before.get(path) != content}
    assert {path for path in changed if not path.startswith((TREE, INDEX))} == {HEAD}
    assert findings(old) == []
    more.grow(3)
    export_all(log, old)
    assert findings(old) == []
    assert exported_log(old) == list(whole_log(log))
    assert DeltaTable(f"{old.root}/{EVENTS}").count() == len(whole_log(log))


def test_giving_it_a_table_goes_on_where_it_was_interrupted(
    old: ExportPlace, archived: str, growing: tuple[EventLog, Growing]
) -> None:
    log, more = growing
    head = old.read(HEAD)
    export_all(log, old)
    # Killed before the last step; then an earlier release went on.
    old.write(HEAD, head)
    beside = golden(Path(old.root).parent / "beside", archived)
    more.grow(2)
    export_all(log, beside)
    without_table(beside)
    for path, content in contents(beside).items():
        old.write(path, content)
    assert len(exported_log(old)) == len(whole_log(log))
    export_all(log, old)
    assert catalog_of(old, VERIFY).version is not None
    assert findings(old) == []
    assert DeltaTable(f"{old.root}/{EVENTS}").count() == len(whole_log(log))


def test_a_file_that_is_none_is_named_when_it_is_to_be_in_the_table(
    old: ExportPlace, growing: tuple[EventLog, Growing]
) -> None:
    path = catalog_of(old, VERIFY).files[0].path
    old.write(path, bytes(len(old.read(path))))
    with pytest.raises(ExportDamaged) as refused:
        export_all(growing[0], old)
    assert (refused.value.damage, refused.value.path) == (Damage.CHANGED, path)
    assert not old.sizes(TABLE_LOG)


def test_without_a_table_the_manifests_count(
    old: ExportPlace, growing: tuple[EventLog, Growing]
) -> None:
    before = contents(old)
    export_all(growing[0], old)
    without_table(old)
    assert not old.sizes(TABLE_LOG)
    assert contents(old) == before
