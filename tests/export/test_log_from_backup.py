"""A log from a backup, and its archive, which went on since."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from actors.archive.archive_check import check_archive
from actors.archive.unneeded_rows import ReadRows
from eventstore.log.errors import RowsStay
from eventstore.log.event_log import EventLog
from eventstore.log.events import SEAL_TOPIC
from eventstore.log.faults import Fault, Head
from eventstore.log.seam import seam_of, seam_position
from eventstore.parquet.files import ExportPlace, open_place
from eventstore.parquet.write.pruning import Plan, Positions
from eventstore.stores.open_log import open_log
from http_edge.server.archive_round import Interrupted, archive_once
from http_edge.server.exits import Exit
from http_edge.server.exporting import exporter_of
from http_edge.settings.sections import Archive
from http_edge.settings.settings import Settings
from tests.export.leaving import (
    LATER_MS,
    assert_whole,
    leave_for,
    leave_older,
    log,
    nonces_of,
    place,
    plan,
    played,
    settings_of,
    states_of,
    streams_of,
)
from tests.export.samples import SIGNED_BY, catalog_of, exported_log, whole_log
from tests.histories import Crowd, History, random_script
from tests.log.raw_sql import run_sql
from tests.unit.cli.conftest import Run, run

__all__ = ["log", "place", "run"]

NONE_LEFT_S = 100_000
"""Longer than the histories of these tests."""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_of(tmp_path / "data", archive=Archive(pause_s=0))


def _backed_up(settings: Settings, data_dir: Path) -> Path:
    """A data directory with a copy of the log and the keys."""
    data_dir.mkdir()
    with (
        closing(sqlite3.connect(settings.data_dir / "log.db")) as source,
        closing(sqlite3.connect(data_dir / "log.db")) as target,
    ):
        source.backup(target)
    shutil.copy(settings.keys_path, data_dir)
    return data_dir


def _outdated(
    settings: Settings,
    log: EventLog,
    place: ExportPlace,
    data_dir: Path,
    pruned: Plan = plan,
    age_s: float = 1_500,
) -> Path:
    """A backup in this data directory: more rows have left the log since, and were pruned."""
    history = played(log)
    seam = leave_older(settings, history, age_s=age_s)
    assert bool(seam) == (age_s < NONE_LEFT_S)
    _backed_up(settings, data_dir)
    assert leave_older(settings, history, age_s=700) > seam
    with exporter_of(settings, log, place) as export:
        assert export.prune(LATER_MS, pruned) > 0
    catalog = catalog_of(place)
    assert seam < catalog.pruned_up_to < log.position()
    behind = [row for row in exported_log(place) if seam < row.position <= catalog.pruned_up_to]
    assert len(behind) < catalog.pruned_up_to - seam
    shutil.copytree(place.root, data_dir / "archive")
    return data_dir


@pytest.fixture
def outdated(settings: Settings, log: EventLog, place: ExportPlace, tmp_path: Path) -> Path:
    return _outdated(settings, log, place, tmp_path / "backup")


def _checked(data_dir: Path, run: Run) -> tuple[int, list[str], list[str]]:
    """The exit code of the check of a log with its archive, and the faults in both."""
    ran = run("log", "verify", "--data-dir", str(data_dir), "--json")
    found = json.loads(ran.out)
    in_log, in_archive = found["findings"], found["archive"]["findings"]
    return ran.code, [one["fault"] for one in in_log], [one["fault"] for one in in_archive]


def _restored(data_dir: Path, run: Run) -> tuple[int, str, Path]:
    """The exit code of a restore of a log with its archive, what was said, and its target."""
    target = data_dir.with_name("restored")
    named = ("--from", str(data_dir / "log.db"), "--to", str(target))
    ran = run("restore", *named, "--keys", str(data_dir / "mediator-keys.json"))
    return ran.code, ran.err, target


def test_a_log_from_a_backup_and_its_archive_that_was_pruned_beyond_its_seam_are_whole(
    outdated: Path, log: EventLog, run: Run
) -> None:
    assert _checked(outdated, run) == (Exit.OK, [], [])
    code, said, target = _restored(outdated, run)
    assert code == Exit.OK, said
    streams = streams_of(log)
    with closing(open_log(f"sqlite:{target / 'log.db'}")) as again:
        assert_whole(again, f"sqlite:{target / 'log.db'}")
        assert again.position() == log.position()
        assert (states_of(again, streams), nonces_of(again)) == (
            states_of(log, streams),
            nonces_of(log),
        )


@pytest.mark.parametrize("is_end", [False, True], ids=["a hole", "all to the end"])
def test_a_log_from_a_backup_that_lacks_rows_behind_its_seam_is_refused_with_a_pruned_archive(
    outdated: Path, run: Run, is_end: bool
) -> None:
    pruned_up_to = catalog_of(open_place(str(outdated / "archive"))).pruned_up_to
    dsn = f"sqlite:{outdated / 'log.db'}"
    with closing(open_log(dsn)) as log:
        seals = [row.position for row in whole_log(log) if row.topic == SEAL_TOPIC]
    before, end = [position for position in seals if position <= pruned_up_to][-2:]
    assert end == pruned_up_to
    hole = f"rowid > {before}" + ("" if is_end else f" AND rowid <= {end}")
    run_sql(dsn, f"DELETE FROM stored_events WHERE {hole}")
    code, in_log, in_archive = _checked(outdated, run)
    assert (code, "broken-chain" in in_log) == (Exit.FINDING, not is_end)
    assert "wrong-seam" in in_archive
    code, said, _ = _restored(outdated, run)
    assert code == (Exit.USAGE if is_end else Exit.UNSAFE), said
    assert ("ends before" if is_end else "newest seals differ") in said


def test_a_needed_row_that_a_pruned_archive_lacks_is_found_in_a_log_from_a_backup(
    settings: Settings, log: EventLog, place: ExportPlace, run: Run, tmp_path: Path
) -> None:
    def too_much(read: ReadRows, pruned_up_to: int) -> Positions:
        leaving = plan(read, pruned_up_to)
        rows = [row for some in read() for row in some if row.position not in leaving]
        leaving.add([row.position for row in rows if row.topic.startswith("public-event")][-1])
        return leaving

    backup = _outdated(settings, log, place, tmp_path / "backup", too_much)
    assert _checked(backup, run) == (Exit.FINDING, [], ["wrong-rest"])


def test_a_log_and_a_pruned_archive_that_ends_before_its_seam_are_refused(
    settings: Settings, log: EventLog, place: ExportPlace, run: Run, tmp_path: Path
) -> None:
    history = played(log)
    leave_older(settings, history, age_s=1_200)
    with exporter_of(settings, log, place) as export:
        assert export.prune(LATER_MS, plan) > 0
    earlier = shutil.copytree(place.root, tmp_path / "earlier")
    leave_older(settings, history, age_s=600)
    backup = _backed_up(settings, tmp_path / "backup")
    earlier.rename(backup / "archive")
    assert _checked(backup, run) == (Exit.FINDING, [], ["ends early"])
    code, said, _ = _restored(backup, run)
    assert (code, "lacks some of these rows" in said) == (Exit.USAGE, True)


def test_a_log_of_another_history_does_not_meet_a_pruned_archive(
    outdated: Path, place: ExportPlace
) -> None:
    with closing(open_log(f"sqlite:{outdated / 'log.db'}")) as log:
        seam = seam_of(log, SIGNED_BY)
        assert seam is not None
        assert [*check_archive(log, place, seam, SIGNED_BY, marks=None)][:-1] == []
        for name, head in seam.heads.items():
            other = replace(seam, heads={**seam.heads, name: Head(head.version, bytes(32))})
            found = [*check_archive(log, place, other, SIGNED_BY, marks=None)][:-1]
            assert [getattr(one, "fault", None) for one in found] == [Fault.WRONG_SEAM]


def test_a_log_from_a_backup_is_restored_with_contents_that_were_erased_from_its_archive_since(
    settings: Settings, log: EventLog, place: ExportPlace, run: Run, tmp_path: Path
) -> None:
    history = played(log)
    leave_older(settings, history, age_s=600)
    streams = streams_of(log)
    states = states_of(log, streams)
    backup = _backed_up(settings, tmp_path / "backup")
    history.play(random_script(5, 400))
    with exporter_of(settings, log, place) as export:
        assert export.take_out_erased().contents > 0
    shutil.copytree(place.root, backup / "archive")
    code, said, target = _restored(backup, run)
    assert code == Exit.OK, said
    with closing(open_log(f"sqlite:{target / 'log.db'}")) as again:
        assert_whole(again, f"sqlite:{target / 'log.db'}")
        restored = states_of(again, streams)
        # The names of those erased since have left the archive, too.
        assert all(restored[one] == states[one] or b"erased:" in restored[one] for one in streams)


@pytest.mark.parametrize("age_s", [1_500, NONE_LEFT_S], ids=["some had left", "none had left"])
def test_rows_of_a_log_from_a_backup_leave_again_if_its_archive_was_pruned_beyond_its_seam(
    settings: Settings, log: EventLog, place: ExportPlace, run: Run, tmp_path: Path, age_s: float
) -> None:
    backup = _outdated(settings, log, place, tmp_path / "backup", age_s=age_s)
    streams = streams_of(log)
    wanted = (states_of(log, streams), nonces_of(log))
    pruned_up_to = catalog_of(place).pruned_up_to
    archive = Archive(pause_s=0, rows_age_s_min=0, rows_per_step_max=30)
    settings = settings.model_copy(update={"data_dir": backup, "archive": archive})
    with closing(open_log(settings.log_dsn)) as again:
        seam = seam_position(again)

        def end_midway() -> None:
            if seam < seam_position(again) < pruned_up_to:
                raise Interrupted

        with pytest.raises(Interrupted):
            archive_once(settings, is_checked=True, after_step=end_midway)
        assert _checked(backup, run) == (Exit.OK, [], [])
        archived = archive_once(settings, is_checked=True)
        assert archived is not None
        assert archived.seam == again.position() == log.position()
        assert (states_of(again, streams), nonces_of(again)) == wanted
        assert_whole(again, settings.log_dsn)
        assert _checked(backup, run) == (Exit.OK, [], [])
        code, said, target = _restored(backup, run)
        assert code == Exit.OK, said
        with closing(open_log(f"sqlite:{target / 'log.db'}")) as restored:
            assert (states_of(restored, streams), nonces_of(restored)) == wanted
        with exporter_of(settings, again, open_place(settings.archive_place)) as export:
            assert export.prune(LATER_MS, plan) > 0
    assert _checked(backup, run) == (Exit.OK, [], [])


def test_no_rows_leave_a_log_that_went_another_way_before_the_end_of_what_was_pruned(
    settings: Settings, log: EventLog, place: ExportPlace, tmp_path: Path
) -> None:
    history = played(log)
    leave_older(settings, history, age_s=700)
    backup = _backed_up(settings, tmp_path / "backup")
    end = log.position()
    history.play(random_script(5, 400))
    leave_older(settings, history, age_s=0)
    with exporter_of(settings, log, place) as export:
        assert export.prune(LATER_MS, plan) > 0
    pruned_up_to = catalog_of(place).pruned_up_to
    assert end < pruned_up_to
    with closing(open_log(f"sqlite:{backup / 'log.db'}")) as other:
        seam = seam_position(other)
        for number in range(2):
            with pytest.raises(RowsStay, match="newest seals differ"):
                leave_for(other, place, section_rows=1)
            assert seam_position(other) == seam
            crowd = Crowd.of(number, 1)
            went = History(other, crowd=crowd, start_ms=history.now_ms, after=other.position())
            went.play(random_script(6, 600))
        assert other.position() > pruned_up_to
