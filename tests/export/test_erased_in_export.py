"""Contents that were erased leave the files of an export: for good, and nothing else does."""

from __future__ import annotations

import contextlib
import json
import signal
from contextlib import closing
from pathlib import Path
from uuid import UUID

import pytest
from deltalake import DeltaTable
from msgspec.structs import replace

from actors.host.clock import system_clock
from eventstore.log.event_log import EventLog
from eventstore.log.events import (
    ContractRequested,
    Event,
    EventSaved,
    MessagesRemoved,
    PublicEventPublished,
    topics_of,
)
from eventstore.log.seam import seam_position
from eventstore.log.streams import identity_stream
from eventstore.parquet.errors import ExportDamaged, ExportUnavailable
from eventstore.parquet.files import EVENTS, ExportPlace, open_place
from eventstore.parquet.rows import read_table
from eventstore.parquet.versions import commit_path
from eventstore.parquet.write import erasing
from eventstore.parquet.write.compaction import TakenOut
from eventstore.parquet.write.erasing import contents_in
from eventstore.parquet.write.exporter import Exporter, ExportTimes
from eventstore.parquet.write.step import Bounds
from eventstore.stores.open_log import open_log
from http_edge.crypto.mediator_keys import create
from http_edge.server.archive_round import archive_once
from http_edge.server.exits import Exit
from http_edge.settings.settings import Settings
from tests.export.erased import STEPS, dsn, erased, log, prepared, with_erased
from tests.export.killed_exporter import exit_code
from tests.export.leaving import (
    KEYS,
    LATER_MS,
    leave,
    played,
    read_ids,
    states_of,
    streams_of,
)
from tests.export.samples import (
    DAY_MS,
    OWNER,
    catalog_of,
    contents,
    did,
    export_all,
    exported_log,
    exporter,
    findings,
    registered,
    whole_log,
    without_table,
)
from tests.histories import random_script
from tests.log.raw_sql import run_sql
from tests.log.samples import AT_MS, COMMAND, SealedWriter, message
from tests.unit.cli.conftest import Run, run

__all__ = ["dsn", "erased", "log", "prepared", "run"]


def _take_out(log: EventLog, place: ExportPlace) -> int:
    with closing(exporter(log, place)) as export:
        erased = export.take_out_erased().contents
        export.sweep()
    return erased


def _alive(log: EventLog) -> dict[int, bytes]:
    return {row.position: row.content for row in whole_log(log) if row.content is not None}


def _exported_contents(place: ExportPlace) -> dict[int, bytes]:
    return {row.position: row.content for row in exported_log(place) if row.content is not None}


def _erased(log: EventLog, place: ExportPlace) -> dict[int, bytes]:
    alive = _alive(log)
    found = _exported_contents(place)
    return {position: data for position, data in found.items() if position not in alive}


def _bytes_of(place: ExportPlace) -> bytes:
    """All that can be read of an export: rows as they are when unpacked, and every other file."""
    files = contents(place)
    rows = b"".join(row.state + (row.content or b"") for row in exported_log(place))
    return rows + b"".join(data for path, data in files.items() if not path.endswith(".parquet"))


@pytest.mark.usefixtures("erased")
def test_erased_contents_leave_and_every_row_and_proof_stays(
    log: EventLog, place: ExportPlace
) -> None:
    gone, facts = _erased(log, place), [r.state for r in exported_log(place)]
    assert len(gone) > 10
    alive = {p: c for p, c in _exported_contents(place).items() if p not in gone}
    assert len(alive) > 3
    note = catalog_of(place).statements[-1].manifest.tree
    assert _take_out(log, place) == len(gone)
    for manifest in (statement.manifest for statement in catalog_of(place).statements):
        assert manifest.contents == sum(contents_in(read_table(place, f)) for f in manifest.files)
    assert _exported_contents(place) == alive
    assert [row.state for row in exported_log(place)] == facts
    assert catalog_of(place).statements[-1].manifest.tree == note
    assert findings(place) == []
    assert catalog_of(place).strays == []
    left = _bytes_of(place)
    assert not [position for position, content in gone.items() if content in left]
    assert _take_out(log, place) == 0


@pytest.mark.usefixtures("erased")
def test_contents_that_were_erased_long_afterwards_leave_too(
    log: EventLog, place: ExportPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(erasing, "_PAGE_ROWS", 1)  # no page has more than a row or goes beyond one
    gone = _erased(log, place)
    assert _take_out(log, place) == len(gone) > 10
    assert _erased(log, place) == {}
    assert findings(place) == []


@pytest.mark.usefixtures("erased")
@pytest.mark.parametrize("is_restarted", [False, True])
def test_erased_contents_leave_the_place_of_an_export_in_which_nothing_happens(
    log: EventLog, place: ExportPlace, is_restarted: bool
) -> None:
    """Replaced files stay for readers as long as they are to, and no longer."""
    export_all(log, place, STEPS)
    kept, late_ms = ExportTimes(replaced_kept_s=60.0), 0

    def exporting() -> closing[Exporter]:
        return closing(exporter(log, place, STEPS, kept, clock=lambda: system_clock() + late_ms))

    with contextlib.ExitStack() as stack:
        export = stack.enter_context(exporting())
        assert export.take_out_erased().contents
        if is_restarted:
            export = stack.enter_context(exporting())
        late_ms = 30_000
        assert export.step() is None
        assert catalog_of(place).strays
        late_ms = 90_000
        assert export.step() is None
        assert catalog_of(place).strays == []
        assert {*place.data_sizes()} == {file.path for file in catalog_of(place).files}


def _received(number: int, days: int = 0) -> tuple[UUID, Event]:
    """The event of a message that an identity received, so many days after the seals."""
    event = message(b"content", f"message-{number}")
    return identity_stream(did(1)), replace(event, at_ms=AT_MS + days * DAY_MS)


def _acknowledged(number: int, version: int) -> tuple[UUID, Event]:
    event = MessagesRemoved(
        at_ms=AT_MS, command=COMMAND, message_ids=[f"message-{number}"], reason="acknowledged",
        versions=[version],
    )  # fmt: skip
    return identity_stream(did(1)), event


def test_a_version_says_that_rows_change_if_contents_leave_and_not_if_files_are_merged(
    log: EventLog, place: ExportPlace
) -> None:
    """Programs that follow the table read again what they are to forget, and nothing else."""

    def is_change() -> set[bool]:
        content = place.read(commit_path(catalog_of(place).next_version - 1))
        actions = [action for line in content.splitlines() for action in json.loads(line).values()]
        return {action["dataChange"] for action in actions if "dataChange" in action}

    writer = SealedWriter(log)
    for rows in ([registered(1), _received(1)], [registered(2), registered(3)]):
        writer.commit({"shard-0": rows})
        export_all(log, place)
    with closing(exporter(log, place, Bounds())) as export:
        assert export.compact(files_min=2) == 1
        assert is_change() == {False}
        writer.commit({"shard-0": [_acknowledged(1, 2)]})
        assert export.take_out_erased().contents == 1
        assert is_change() == {True}


def test_a_content_that_a_rewritten_step_still_has_leaves_once_it_is_erased_too(
    log: EventLog, place: ExportPlace
) -> None:
    """The content is of an earlier day than the last file of its step."""
    writer = SealedWriter(log)
    later = registered(2, AT_MS + DAY_MS)
    writer.commit({"shard-0": [registered(1), _received(1), _received(2), later]})
    export_all(log, place)
    for number in (1, 2):
        writer.commit({"shard-0": [_acknowledged(number, number + 1)]})
        assert _take_out(log, place) == 1
    assert not _erased(log, place)


def test_a_content_in_a_file_that_compaction_leaves_alone_leaves_once_it_is_erased(
    log: EventLog, place: ExportPlace
) -> None:
    """The only file of its day, beside merged files without contents."""
    writer = SealedWriter(log)
    for rows in ([registered(1), _received(1, days=1)], [registered(2), registered(3)]):
        writer.commit({"shard-0": rows})
        export_all(log, place)
    with closing(exporter(log, place, Bounds())) as export:
        assert export.compact(files_min=2) == 1
    writer.commit({"shard-0": [_acknowledged(1, 2)]})
    assert _take_out(log, place) == 1
    assert not _erased(log, place)


def test_a_merged_step_without_contents_is_not_read_again_for_them(
    log: EventLog, place: ExportPlace
) -> None:
    """Whatever of its files was merged: one of a day of its own stays as it is."""
    writer = SealedWriter(log)
    for rows in ([registered(1), registered(2, AT_MS + DAY_MS)], [registered(3), registered(4)]):
        writer.commit({"shard-0": rows})
        export_all(log, place)
    read: list[str] = []

    class Watched(ExportPlace):
        def read(self, path: str, bytes_max: int | None = None) -> bytes:
            read.append(path)
            return super().read(path, bytes_max)

    with closing(exporter(log, Watched(place.filesystem, place.root), Bounds())) as export:
        assert export.compact(files_min=2) == 1
        files = {file.path for file in catalog_of(place).files}
        assert len(files) == 2
        read.clear()
        assert export.take_out_erased() == TakenOut()
        assert files.isdisjoint(read)
    assert findings(place) == []


@pytest.mark.usefixtures("erased")
def test_without_a_table_rewritten_steps_count_in_place_of_those_they_replaced(
    log: EventLog, place: ExportPlace
) -> None:
    with closing(exporter(log, place, STEPS, ExportTimes(replaced_kept_s=60.0))) as export:
        assert export.take_out_erased().contents
    counting = [one.manifest.path for one in catalog_of(place).statements]
    without_table(place)
    assert [one.manifest.path for one in catalog_of(place).statements] == counting


def test_an_export_goes_on_is_put_together_and_rewritten_again(
    log: EventLog, place: ExportPlace
) -> None:
    history = with_erased(log, place)
    for seed in range(20, 23):
        assert _take_out(log, place) >= 0
        history.play(random_script(seed, 80))
        read_ids(history)
        with closing(exporter(log, place, STEPS)) as export:
            while export.step():
                pass
            export.compact(files_min=2)
        assert findings(place) == []
    assert _take_out(log, place) > 0
    assert not _erased(log, place)
    assert [r.state for r in exported_log(place)] == [r.state for r in whole_log(log)]
    assert [r.position for r in exported_log(place)] == [r.position for r in whole_log(log)]


def test_what_is_put_together_or_written_later_has_no_erased_content(
    log: EventLog, place: ExportPlace
) -> None:
    history = with_erased(log, place)
    gone = len(_erased(log, place))
    with closing(exporter(log, place, Bounds())) as export:
        assert export.compact(files_min=2) > 3
        export.sweep()
    assert len(_erased(log, place)) < gone / 4
    read_ids(history)
    before = set(_exported_contents(place))
    alive = set(_alive(log))
    export_all(log, place)
    assert set(_exported_contents(place)) - before <= alive
    assert _alive(log).keys() >= alive


@pytest.mark.usefixtures("erased")
def test_who_opened_an_earlier_version_reads_it_until_it_is_swept(
    log: EventLog, place: ExportPlace
) -> None:
    before = exported_log(place)
    opened = DeltaTable(f"{place.root}/{EVENTS}")
    with closing(exporter(log, place)) as export:
        assert export.take_out_erased().contents > 0
        assert opened.to_pyarrow_table(columns=["position"]).num_rows == len(before)
        export.sweep()
    with pytest.raises(Exception, match=r"(?i)not found|no such file"):
        opened.to_pyarrow_table(columns=["position"])


@pytest.mark.usefixtures("erased")
def test_a_content_that_the_log_lost_stays_in_its_export(
    log: EventLog, dsn: str, place: ExportPlace
) -> None:
    export_all(log, place)
    alive = _alive(log)
    lost = max(alive)
    run_sql(dsn, f"DELETE FROM contents WHERE position = {lost}")
    _take_out(log, place)
    assert _exported_contents(place)[lost] == alive[lost]


@pytest.mark.usefixtures("erased")
def test_a_damaged_file_is_not_written_again(log: EventLog, place: ExportPlace) -> None:
    path = next(
        s.manifest.files[0].path for s in catalog_of(place).statements if s.manifest.contents
    )
    content = place.read(path)
    place.write(path, content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ExportDamaged), closing(exporter(log, place)) as export:
        export.take_out_erased()


@pytest.mark.crash
@pytest.mark.parametrize("apart", [11])
def test_a_kill_at_any_step_leaves_an_export_that_is_whole(
    tmp_path: Path, log: EventLog, place: ExportPlace, apart: int
) -> None:
    history = with_erased(log, place)
    rows = [row.state for row in whole_log(log)][: catalog_of(place).last]
    fatal, ended = 0, -signal.SIGKILL
    while ended == -signal.SIGKILL:
        fatal += apart
        code = exit_code(str(tmp_path), fatal, "erasing")
        assert code is not None
        ended = code
        assert [row.state for row in exported_log(place)] == rows
        alive = _alive(log)
        last = catalog_of(place).last
        assert {p: c for p, c in alive.items() if p <= last}.items() <= (
            _exported_contents(place).items()
        )
    assert ended == 0
    assert fatal > apart * 3
    assert not _erased(log, place)
    history.play(random_script(9, 30))
    export_all(log, place)
    export_all(log, place)
    assert findings(place) == []
    assert catalog_of(place).strays == []


@pytest.mark.usefixtures("erased")
def test_contents_of_rows_that_have_left_the_log_leave_too(
    log: EventLog, place: ExportPlace
) -> None:
    assert leave(log, place).left > 0
    rows = {row.position for row in whole_log(log)}
    assert _erased(log, place).keys() - rows
    assert _take_out(log, place)
    assert not _erased(log, place)


@pytest.mark.parametrize("left_before", [False, True])
def test_the_archive_gives_up_what_was_erased_after_it_was_archived(
    tmp_path: Path, *, left_before: bool
) -> None:
    create(tmp_path / "mediator-keys.json", KEYS)
    settings = Settings(data_dir=tmp_path, did=OWNER.mediator_did, shards=OWNER.shards)
    place = open_place(settings.archive_place)
    with closing(open_log(settings.log_dsn)) as log:
        log.setting("mediator_did", settings.mediator_did)
        log.setting("shards", str(settings.shards))
        history = played(log)

        def one_round(*, takes_out: bool = True) -> None:
            archive_once(
                settings, is_checked=False, takes_out_erased=takes_out, clock=lambda: LATER_MS
            )

        one_round()
        read_ids(history)
        history.play(random_script(3, 60))
        assert _erased(log, place)
        streams = streams_of(log)
        states = states_of(log, streams)
        if left_before:
            one_round(takes_out=False)
            assert _erased(log, place)
        one_round()
        assert not _erased(log, place)
        assert states_of(log, streams) == states


def test_the_command_takes_erased_contents_out(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    create(tmp_path / "mediator-keys.json", KEYS)
    named = ("--data-dir", str(tmp_path), "--to", str(tmp_path / "out"), "--json")
    place = open_place(str(tmp_path / "out"))
    with closing(open_log(f"sqlite:{tmp_path / 'log.db'}")) as log:
        history = played(log, 200)
        assert run("export", *named).code == Exit.OK
        read_ids(history)
        gone = _erased(log, place)
        assert gone
        ran = run("export", "compact", *named)
        assert (ran.code, json.loads(ran.out)["contents_taken_out"]) == (Exit.OK, len(gone))
        assert not _erased(log, place)
    assert run("verify", "--from", str(tmp_path / "out"), "--json").code == Exit.OK
    assert run("export", "compact", "--data-dir", str(tmp_path)).code == Exit.USAGE


@pytest.mark.usefixtures("erased")
def test_a_place_that_is_gone_is_said(log: EventLog, place: ExportPlace) -> None:
    with closing(exporter(log, place)) as export:
        folder = Path(place.root) / "manifests"
        folder.rename(folder.with_name("moved"))
        with pytest.raises((ExportUnavailable, ExportDamaged)):
            export.take_out_erased()


def test_a_content_that_stays_in_the_log_behind_the_seam_stays_in_the_export(
    sqlite_log: EventLog, place: ExportPlace
) -> None:
    played(sqlite_log)
    leave(sqlite_log, place)
    seam = seam_position(sqlite_log)
    stayed = {
        row.position: row.content
        for row in whole_log(sqlite_log)
        if row.position <= seam and row.content is not None
    }
    assert stayed
    with closing(exporter(sqlite_log, place)) as export:
        export.take_out_erased()
    found = {row.position: row.content for row in exported_log(place)}
    assert {position: found[position] for position in stayed} == stayed


def test_a_content_whose_row_the_log_lost_behind_the_seam_stays_in_the_export(
    log: EventLog, dsn: str, place: ExportPlace
) -> None:
    """No row of the log says that it was erased."""
    played(log)
    leave(log, place)
    seam = seam_position(log)
    stayed = [row for row in whole_log(log) if row.position <= seam and row.content]
    kinds = (ContractRequested, EventSaved, PublicEventPublished)
    found = [next(row for row in stayed if row.topic in topics_of(kind)) for kind in kinds]
    lost = {row.position: row.content for row in found}
    numbers = ", ".join(map(str, lost))
    run_sql(dsn, f"DELETE FROM stored_events WHERE rowid IN ({numbers})")
    _take_out(log, place)
    assert _exported_contents(place).items() >= lost.items()
