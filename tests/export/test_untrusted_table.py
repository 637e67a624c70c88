"""What an exporter takes over of a table, and what it signs, is what this mediator has written."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from msgspec.structs import replace

from eventstore.log.event_log import EventLog
from eventstore.parquet.errors import Damage, ExportDamaged, ExportUnavailable
from eventstore.parquet.files import HEAD, TABLE_LOG, ExportPlace
from eventstore.parquet.manifest import ExportHead, parse_statement, signed
from eventstore.parquet.schema import FORMAT, SCHEMA_VERSION
from eventstore.parquet.table import LAST_CHECKPOINT, check_checkpoint
from eventstore.parquet.versions import (
    CHECKPOINT_EVERY,
    TableVersion,
    commit_path,
    is_torn,
)
from tests.export.samples import SIGNER, Growing, catalog_of, exporter

_CHECKPOINT = ".checkpoint.parquet"


@pytest.fixture
def growing(sqlite_log: EventLog) -> Growing:
    growing = Growing(sqlite_log)
    growing.grow()
    return growing


def said_at(version: int) -> TableVersion:
    """A version without manifests."""
    return TableVersion(
        format=FORMAT,
        schema=SCHEMA_VERSION,
        version=version,
        position=0,
        files=0,
        manifest="",
        since={},
        summary="",
        summary_sha256="",
        previous="",
        checkpoint={},
        signed_by=SIGNER.signed_by,
    )


def put_head_back(place: ExportPlace) -> None:
    """Let ``export.json`` be the one that was signed before the export had a table."""
    head = parse_statement(HEAD, place.read(HEAD), ExportHead)
    place.write(HEAD, signed(replace(head, format=FORMAT, signature=""), SIGNER.sign)[1])


@pytest.mark.usefixtures("growing")
def test_an_exporter_that_gives_a_table_decodes_no_checkpoint_that_nothing_signed_names(
    sqlite_log: EventLog, place: ExportPlace
) -> None:
    with closing(exporter(sqlite_log, place)) as export:
        assert export.step()
    put_head_back(place)
    DeltaTable(place.table.uri).create_checkpoint()
    before = place.sizes(TABLE_LOG)
    (path,) = (path for path in before if path.endswith(_CHECKPOINT))
    with pytest.raises(ExportDamaged) as refused:
        exporter(sqlite_log, place)
    assert (refused.value.damage, refused.value.path) == (Damage.STRAY, path)
    assert place.sizes(TABLE_LOG) == before


def test_an_exporter_makes_no_table_beside_a_checkpoint_without_commits(
    sqlite_log: EventLog, place: ExportPlace
) -> None:
    path = f"{TABLE_LOG}/{7:020d}{_CHECKPOINT}"
    with closing(exporter(sqlite_log, place)):
        put_head_back(place)
    for each in place.sizes(TABLE_LOG):
        place.remove(each)
    place.write(path, b"any")
    with pytest.raises(ExportDamaged) as refused:
        exporter(sqlite_log, place)
    assert (refused.value.damage, refused.value.path) == (Damage.MISSING, TABLE_LOG)
    assert place.sizes(TABLE_LOG).keys() == {path}


def test_what_a_kill_left_of_the_first_commit_is_no_table(
    sqlite_log: EventLog, place: ExportPlace
) -> None:
    with closing(exporter(sqlite_log, place)):
        put_head_back(place)
    for each in place.sizes(TABLE_LOG):
        place.remove(each)
    place.write(f"{TABLE_LOG}/_commit_1.json.tmp", b"any")
    with closing(exporter(sqlite_log, place)):
        assert catalog_of(place).is_marked


@pytest.mark.usefixtures("growing")
def test_a_commit_whose_answer_was_lost_is_found_to_be_the_exporters_own(
    sqlite_log: EventLog, place: ExportPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = DeltaTable.create_write_transaction

    def twice(*arguments: Any, **more: Any) -> None:
        commit(*arguments, **more)
        raise CommitFailedError("it is there already")

    with closing(exporter(sqlite_log, place)) as export:
        monkeypatch.setattr(DeltaTable, "create_write_transaction", twice)
        assert export.step()
    assert catalog_of(place).is_marked


class Losing(ExportPlace):
    """A place that loses each checkpoint before it is hashed."""

    def sha256(self, path: str) -> str:
        if path.endswith(_CHECKPOINT):
            Path(self.full_path(path)).unlink()
        return super().sha256(path)


@pytest.mark.usefixtures("growing")
def test_an_exporter_signs_no_checkpoint_that_is_gone_before_it_is_hashed(
    sqlite_log: EventLog, place: ExportPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eventstore.parquet.versions.CHECKPOINT_EVERY", 2)
    losing = Losing(place.filesystem, place.root)
    with (
        closing(exporter(sqlite_log, losing)) as export,
        pytest.raises(ExportUnavailable, match="checkpoint"),
    ):
        export.step()
    assert not any(path.endswith(_CHECKPOINT) for path in place.sizes(TABLE_LOG))
    place.remove(f"{TABLE_LOG}/{LAST_CHECKPOINT}")  # it names the one that is gone
    with closing(exporter(sqlite_log, place)) as export:
        assert export.catalog.mark is not None
        assert all(export.catalog.mark.checkpoint.values())
    assert catalog_of(place).is_marked


@pytest.mark.parametrize("reached", [CHECKPOINT_EVERY - 1, CHECKPOINT_EVERY])
def test_a_checkpoint_that_is_due_is_that_of_the_newest_version(
    place: ExportPlace, reached: int
) -> None:
    sizes = {f"{TABLE_LOG}/{reached:020d}{_CHECKPOINT}": 1}
    said = said_at(CHECKPOINT_EVERY)
    if reached == said.version:
        check_checkpoint(place, sizes, said, None)
    else:
        with pytest.raises(ExportDamaged, match="no commit names it"):
            check_checkpoint(place, sizes, said, None)


def test_a_commit_that_is_not_read_to_its_end_is_not_torn_and_stays(
    place: ExportPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, content = commit_path(1), b'{"a":1}\n{"b":22}\n'
    place.write(path, content)
    for bound in (len(content), len(content) - 1, 1):
        for module in ("files", "versions"):
            monkeypatch.setattr(f"eventstore.parquet.{module}.STATEMENT_BYTES_MAX", bound)
        place.remove_if(path, is_torn)
        assert place.read(path, 100) == content


def test_an_index_file_without_entries_is_no_index() -> None:
    file = {"path": "index/a", "first": 1, "last": 2, "low": 0, "entries": 1, "root": "00"}
    said = signed(said_at(1), SIGNER.sign)[0]
    for entries, is_right in ((1, True), (0, False), (-1, False)):
        index = {"last": 2, "files": [file | {"entries": entries}]}
        members = msgspec.to_builtins(said) | {"index": index}
        content = msgspec.json.encode(members)
        if is_right:
            assert parse_statement(HEAD, content, TableVersion).index
        else:
            with pytest.raises(ExportDamaged, match="entries"):
                parse_statement(HEAD, content, TableVersion)
