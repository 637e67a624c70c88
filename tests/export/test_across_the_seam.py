"""A log and its archive are the whole log again: checked, restored, and read by a new release."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from contextlib import AbstractContextManager, closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec.structs import replace
from typing_extensions import override

from actors.archive.archive_check import check_archive
from actors.archive.archived_states import fold_again
from actors.core.identity import FOLD
from eventstore.log.codec import decode
from eventstore.log.errors import CorruptRow, RowsStay
from eventstore.log.event_log import Departure, EventLog, LogRow, Snapshot
from eventstore.log.events import SEAL_TOPIC, MessageQueued
from eventstore.log.faults import Fault, Head
from eventstore.log.seam import SEAM, read_seam, seam_of, seam_position, sign_seam, state_entry
from eventstore.parquet.errors import Damage, ExportRefused
from eventstore.parquet.files import ExportPlace, open_place
from eventstore.parquet.verify.findings import ExportFinding
from eventstore.parquet.write.exporter import Exporter
from eventstore.parquet.write.step import Bounds
from eventstore.stores.open_log import open_log
from eventstore.stores.recorder_log import opened
from http_edge.cli import log as cli_log
from http_edge.server.exits import Exit, Stop
from http_edge.server.exporting import exporter_of
from http_edge.server.log_check import check_log
from http_edge.settings.sections import Archive
from http_edge.settings.settings import Settings
from tests.export.leaving import (
    BOUNDS,
    KEYS,
    assert_whole,
    faults_in,
    leave,
    leave_for,
    leave_older,
    log,
    place,
    played,
    prune,
    read_ids,
    settings_of,
    states_of,
    streams_of,
)
from tests.export.samples import (
    OWNER,
    SIGNED_BY,
    SIGNER,
    catalog_of,
    contents,
    export_all,
    exported_log,
    exporter,
    findings,
    whole_log,
)
from tests.export.test_leaving import Dying, Killed
from tests.histories import random_script
from tests.log.faulty_log import FaultyLog
from tests.log.raw_sql import run_sql
from tests.unit.cli.conftest import Run, run

__all__ = ["log", "place", "run"]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_of(tmp_path / "data", archive=Archive(pause_s=0))


def _exporter(
    settings: Settings, log: EventLog, place: ExportPlace
) -> AbstractContextManager[Exporter]:
    return exporter_of(settings, log, place)


def _export_all(settings: Settings, log: EventLog) -> None:
    """Export the young rows too, into one file with the old ones."""
    place = open_place(settings.archive_place)
    with _exporter(settings, log, place) as export:
        assert export.step() is not None
    assert exported_log(place)[-1].position == log.position()


def _faults(log: EventLog, place: ExportPlace) -> list[object]:
    seam = seam_of(log, SIGNED_BY)
    assert seam is not None
    found = check_archive(log, place, seam, SIGNED_BY, marks=None)
    return [one.fault for one in found if isinstance(one, ExportFinding)]


def test_the_check_of_a_log_reads_its_archive_and_walks_across_the_seam(
    settings: Settings, log: EventLog, place: ExportPlace, run: Run
) -> None:
    seam = leave_older(settings, played(log))
    named = ("--data-dir", str(settings.data_dir), "--json")
    ran = run("log", "verify", *named)
    assert (ran.code, ran.err) == (Exit.OK, "")
    said = json.loads(ran.out)["archive"]
    assert (said["position"], said["rows"], said["findings"]) == (seam, seam, [])
    again = json.loads(run("log", "verify", *named).out)["archive"]
    assert (again["rows"], again["verified_before_up_to"]) == (0, seam)
    assert json.loads(run("log", "verify", *named, "--all").out)["archive"]["rows"] == seam
    assert run("verify", *named).code == Exit.OK  # the archive, where no export is named
    path = max(path for path in place.sizes("events") if path.endswith(".parquet"))
    place.remove(path)
    ran = run("log", "verify", *named)
    assert ran.code == Exit.FINDING
    assert json.loads(ran.out)["archive"]["findings"][0]["path"] == path
    assert run("log", "verify", *named, "--without-archive").code == Exit.OK


def test_all_findings_in_an_archive_are_counted_and_no_more_are_kept_than_of_a_log(
    settings: Settings, log: EventLog, place: ExportPlace, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = played(log)
    leave_older(settings, history)
    for seed in (5, 6):
        history.play(random_script(seed, 40))
        _export_all(settings, log)
    paths = [path for path in place.sizes("events") if path.endswith(".parquet")]
    for path in paths:
        place.remove(path)
    monkeypatch.setattr(cli_log, "KEPT_MAX", 2)
    named = ("log", "verify", "--data-dir", str(settings.data_dir))
    said = json.loads(run(*named, "--json").out)["archive"]
    assert said["findings_in_all"] >= len(paths) > len(said["findings"]) == 2
    assert f"{said['findings_in_all']} findings in the archive" in run(*named).out


@pytest.mark.parametrize(
    ("rounds", "code", "said"),
    [
        (2, Exit.OK, "poste: rows moved to the archive during the check: checking again\n" * 2),
        (3, Exit.UNREACHABLE, "archive.every_s"),
    ],
)
def test_a_log_is_checked_again_if_rows_leave_it_during_the_check(  # noqa: PLR0913 - fixtures
    settings: Settings,
    log: EventLog,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    *,
    rounds: int,
    code: Exit,
    said: str,
) -> None:
    history = played(log)
    ages_s = [600 * (number + 1) for number in range(rounds)]

    class Overtaken(FaultyLog):
        """A log that rows leave as its check begins."""

        @override
        def position(self) -> int:
            if ages_s:
                leave_older(settings, history, ages_s.pop())
            return super().position()

    monkeypatch.setattr(
        "http_edge.cli.log.opened", lambda store, **how: Overtaken(opened(store, **how))
    )
    ran = run("log", "verify", "--data-dir", str(settings.data_dir))
    assert (ran.code, ages_s) == (code, [])
    assert said in ran.err


def test_an_archive_that_ends_before_the_seam_or_with_other_seals_is_found(
    settings: Settings, log: EventLog, place: ExportPlace, tmp_path: Path
) -> None:
    history = played(log)
    leave_older(settings, history, age_s=2_000)
    shutil.copytree(place.root, tmp_path / "earlier")
    leave_older(settings, history)
    assert _faults(log, place) == []
    earlier = open_place(str(tmp_path / "earlier"))
    assert Damage.ENDS_EARLY in _faults(log, earlier)
    seam = seam_of(log, SIGNED_BY)
    assert seam is not None
    name, head = next(iter(seam.heads.items()))
    other = replace(seam, heads={**seam.heads, name: Head(head.version, bytes(32))})
    found = [*check_archive(log, place, other, SIGNED_BY, marks=None)][:-1]
    assert [getattr(one, "fault", None) for one in found] == [Fault.WRONG_SEAM]


def test_an_archive_of_before_gets_no_rows_and_no_more_rows_leave_for_it(
    settings: Settings, log: EventLog, place: ExportPlace, tmp_path: Path
) -> None:
    history = played(log)
    leave_older(settings, history, age_s=2_000)
    earlier = open_place(str(shutil.copytree(place.root, tmp_path / "earlier")))
    leave_older(settings, history)
    before = contents(earlier)
    with (
        pytest.raises(ExportRefused, match="copy the archive there first"),
        _exporter(settings, log, earlier),
    ):
        pass
    with pytest.raises(RowsStay, match="have left the log for it"):
        leave_for(log, earlier)
    assert contents(earlier) == before


def test_contents_that_are_erased_later_leave_what_was_pruned_too(
    log: EventLog, place: ExportPlace
) -> None:
    history = played(log)
    leave(log, place)
    assert prune(log, place) > 0
    before = catalog_of(place)
    read_ids(history)
    leave(log, place)
    with closing(exporter(log, place, BOUNDS)) as export:
        assert export.take_out_erased().contents > 0
    after = catalog_of(place)
    kept = {row.position for row in whole_log(log) if row.content is not None}
    assert min(kept) <= seam_position(log)
    assert kept <= {row.position for row in exported_log(place) if row.content is not None}
    assert after.pruned == before.pruned
    assert after.statements[0].manifest.path != before.statements[0].manifest.path
    assert findings(place) == []


def test_what_was_pruned_is_not_put_together_with_later_steps(
    log: EventLog, place: ExportPlace
) -> None:
    history = played(log)
    leave(log, place)
    assert prune(log, place) > 0
    history.play(random_script(5, 600))
    export_all(log, place, BOUNDS)
    before = catalog_of(place)
    with closing(exporter(log, place, Bounds(rows_max=100_000))) as export:
        assert export.compact(files_min=2) > 0
    after = catalog_of(place)
    assert (after.pruned, after.statements[0]) == (before.pruned, before.statements[0])
    assert findings(place) == []


def test_a_log_whose_end_was_cut_off_behind_the_seam_is_found_by_its_archive(
    settings: Settings, log: EventLog, place: ExportPlace, run: Run
) -> None:
    history = played(log)
    seam = leave_older(settings, history)
    history.play(random_script(5, 400))
    with _exporter(settings, log, place) as export:
        assert export.step() is not None
    seals = [row.position for row in whole_log(log) if row.topic == SEAL_TOPIC]
    assert seals[-9] > seam
    check = ("log", "verify", "--data-dir", str(settings.data_dir), "--json")
    assert run(*check).code == Exit.OK
    history.play(random_script(6, 40))  # what is not exported yet is no fault
    assert run(*check).code == Exit.OK
    run_sql(settings.log_dsn, f"DELETE FROM stored_events WHERE rowid > {seals[-9]}")
    run_sql(settings.log_dsn, "DELETE FROM contents")
    ran = run(*check)
    assert ran.code == Exit.FINDING
    found = json.loads(ran.out)["archive"]["findings"]
    assert {(one["fault"], one["path"]) for one in found} == {("wrong-head", "end.json")}
    assert "its end was cut off" in found[0]["explanation"]


@pytest.mark.parametrize(
    ("name", "value"), [("shards", "3"), ("mediator_did", "did:x:another"), ("mediator_key", "1")]
)
def test_a_constant_of_the_log_that_was_changed_is_found_by_its_archive(
    settings: Settings, log: EventLog, run: Run, name: str, value: str
) -> None:
    leave_older(settings, played(log))
    log.setting(name, SIGNED_BY.text)  # a key that no start has stored yet
    check = ("verify", "--data-dir", str(settings.data_dir), "--json")
    for command in (("log", *check), check):
        assert run(*command).code == Exit.OK
    blob = f"CAST('{value}' AS BLOB)"
    where = f"WHERE CAST(name AS TEXT) = '{name}'"
    run_sql(settings.log_dsn, f"UPDATE settings SET value = {blob} {where}")
    for command in (("log", *check), check):
        ran = run(*command)
        assert (ran.code, f"the log beside it {value}" in ran.out) == (Exit.FINDING, True)


def test_a_seam_within_a_file_that_was_put_together_is_found_there(
    settings: Settings, log: EventLog, place: ExportPlace
) -> None:
    history = played(log)
    seam = leave_older(settings, history)
    with _exporter(settings, log, place) as export:
        assert export.step() is not None
        history.play(random_script(5, 400))
        assert export.step() is not None
        while export.compact(files_min=2):
            pass
        ends = [statement.manifest.last for statement in export.catalog.statements]
    assert ends == [log.position()]
    assert seam < log.position()
    assert [row.position for row in exported_log(place)][-1] == log.position()
    assert _faults(log, place) == []


def _facts(rows: Sequence[LogRow]) -> list[LogRow]:
    return [LogRow(r.position, r.stream, r.version, r.topic, r.state) for r in rows]


@pytest.mark.parametrize("is_export", [False, True])
@pytest.mark.parametrize("share", [None, 0.4, 0.97])
def test_a_log_and_its_archive_are_restored_as_one(
    settings: Settings,
    log: EventLog,
    run: Run,
    tmp_path: Path,
    share: float | None,
    is_export: bool,
) -> None:
    history = played(log)
    rows, streams = whole_log(log), streams_of(log)
    states = states_of(log, streams)
    if is_export:
        _export_all(settings, log)
    seam = leave_older(settings, history)
    assert 0.4 * len(rows) < seam < 0.97 * len(rows)
    restored = tmp_path / "restored"
    arguments = ["--from", str(settings.data_dir / "log.db"), "--to", str(restored)]
    arguments += ["--keys", str(settings.keys_path)]
    ends = [row.position for row in rows if row.topic == SEAL_TOPIC]
    if share is not None:
        ends = [end for end in ends if end <= share * len(rows)]
        arguments += ["--as-of", str(ends[-1])]
    ran = run("restore", *arguments)
    assert ran.code == Exit.OK, ran.err
    with closing(open_log(f"sqlite:{restored / 'log.db'}")) as again:
        assert _facts(whole_log(again)) == _facts(rows[: ends[-1]])
        assert SEAM not in again.settings()
        if share is None:  # else contents that were erased later are not there any more
            assert faults_in(again) == []
            assert states_of(again, streams) == states


def test_a_log_and_its_archive_are_restored_as_of_a_time(
    settings: Settings, log: EventLog, run: Run, tmp_path: Path
) -> None:
    history = played(log)
    rows = whole_log(log)
    leave_older(settings, history)
    seals = [(row.position, decode(row.topic, row.state)) for row in rows]
    times = [(at, seal.at_ms) for at, seal in seals if hasattr(seal, "previous")]
    position, at_ms = times[len(times) // 3]
    expected = max(p for p, ms in times if ms <= at_ms)
    at = datetime.fromtimestamp(at_ms / 1000, UTC).isoformat()
    restored = tmp_path / "restored"
    named = ("--from", str(settings.data_dir / "log.db"), "--to", str(restored), "--as-of", at)
    assert run("restore", *named, "--keys", str(settings.keys_path)).code == Exit.OK
    with closing(open_log(f"sqlite:{restored / 'log.db'}")) as again:
        assert again.position() == expected >= position


def test_a_log_without_its_archive_is_no_source_of_a_restore(
    settings: Settings, log: EventLog, run: Run, tmp_path: Path
) -> None:
    leave_older(settings, played(log))
    elsewhere = tmp_path / "elsewhere"
    Path(settings.archive_place).rename(elsewhere)
    arguments = ("--from", str(settings.data_dir / "log.db"), "--to", str(tmp_path / "restored"))
    ran = run("restore", *arguments, "--keys", str(settings.keys_path))
    assert (ran.code, "have left this log" in ran.err) == (Exit.USAGE, True)
    named = ("--keys", str(settings.keys_path), "--archive", str(elsewhere))
    assert run("restore", *arguments, *named).code == Exit.OK


def test_what_has_left_and_what_has_not_are_audited_from_one_place(
    settings: Settings, log: EventLog, place: ExportPlace, run: Run
) -> None:
    leave_older(settings, played(log))
    rows = whole_log(log)
    with _exporter(settings, log, place) as export:
        assert export.step() is not None
    exported = exported_log(place)
    assert exported[-1].position == rows[-1].position
    assert _faults(log, place) == []
    queued = [e for e in (decode(r.topic, r.state) for r in exported) if type(e) is MessageQueued]
    for event in (queued[0], queued[-1]):
        ran = run("audit", "message", event.message_id, "--from", str(place.root), "--json")
        assert ran.code == Exit.OK, ran.err


def _of_earlier_release(log: EventLog) -> None:
    """Make the states that stand for rows what an earlier release would have written."""
    text = log.settings()[SEAM]
    seam = read_seam(text)
    old = [(stream, state) for stream, state in log.archived_states() if state]
    new = [(stream, Snapshot(s.version, FOLD - 1, b"another layout")) for stream, s in old]
    states = seam.states.minus([state_entry(*one) for one in old])
    states = states.plus([state_entry(*one) for one in new])
    signed = sign_seam(replace(seam, states=states, fold=FOLD - 1), SIGNER.sign)
    log.let_leave(Departure(text, signed, (), new))


@pytest.mark.parametrize("is_export", [False, True])
def test_a_new_release_makes_archived_states_anew_before_it_serves(
    settings: Settings, log: EventLog, is_export: bool
) -> None:
    history = played(log)
    if is_export:
        _export_all(settings, log)
    leave_older(settings, history)
    streams = streams_of(log)
    states = states_of(log, streams)
    _of_earlier_release(log)
    run_sql(settings.log_dsn, "DELETE FROM snapshots")
    with pytest.raises(CorruptRow, match="is missing"):
        states_of(log, streams)
    assert faults_in(log) == []
    check_log(settings)
    assert states_of(log, streams) == states
    assert_whole(log, settings.log_dsn)
    assert read_seam(log.settings()[SEAM]).fold == FOLD


def test_a_log_whose_archive_is_gone_is_served_with_a_warning(
    settings: Settings, log: EventLog, place: ExportPlace, caplog: pytest.LogCaptureFixture
) -> None:
    leave_older(settings, played(log))
    check_log(settings)
    assert caplog.messages == []
    for entry in Path(place.root).iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    for _ in ("empty", "not there"):
        check_log(settings)
        assert [vars(said)["place"] for said in caplog.records] == [settings.archive_place]
        caplog.clear()
        shutil.rmtree(place.root, ignore_errors=True)


@pytest.mark.parametrize("is_stored", [True, False])
def test_a_kill_while_states_are_made_anew_leaves_a_log_that_goes_on(
    settings: Settings, log: EventLog, place: ExportPlace, is_stored: bool
) -> None:
    leave_older(settings, played(log))
    streams = streams_of(log)
    states = states_of(log, streams)
    _of_earlier_release(log)
    run_sql(settings.log_dsn, "DELETE FROM snapshots")
    for step in (1, 1) if is_stored else (1, 2):
        with pytest.raises(Killed):
            fold_again(Dying(log, step, is_stored=is_stored), place, KEYS, OWNER.mediator_did)
        assert faults_in(log) == []
    fold_again(log, place, KEYS, OWNER.mediator_did)
    assert states_of(log, streams) == states
    assert_whole(log, settings.log_dsn)


def test_states_that_the_archive_does_not_give_are_not_made_up(
    settings: Settings, log: EventLog, place: ExportPlace, tmp_path: Path
) -> None:
    history = played(log)
    leave_older(settings, history, age_s=2_000)
    shutil.copytree(place.root, tmp_path / "earlier")
    leave_older(settings, history)
    _of_earlier_release(log)
    with pytest.raises(RowsStay, match="lacks"):
        fold_again(log, open_place(str(tmp_path / "earlier")), KEYS, OWNER.mediator_did)
    shutil.rmtree(place.root)
    with pytest.raises(Stop, match="cannot be remade from"):
        check_log(settings)
    assert faults_in(log) == []
