"""What is old leaves an archive for ever: signed, found if it is not, and nothing else with it."""

from __future__ import annotations

import json
import re
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from actors.archive.archived_states import fold_again
from eventstore.log.codec import decode
from eventstore.log.errors import RowsStay
from eventstore.log.event_log import EventLog
from eventstore.log.events import MessageQueued
from eventstore.log.faults import Fault
from eventstore.parquet.errors import Damage, ExportDamaged, RowsPruned
from eventstore.parquet.files import END, ExportPlace, open_place
from eventstore.parquet.manifest import Signer, Statement
from eventstore.parquet.opening import open_exports
from eventstore.parquet.rows import read_table
from eventstore.parquet.verify.export import verify_export
from eventstore.parquet.verify.findings import ExportFinding, ExportSummary
from eventstore.parquet.verify.mark import VerifiedMarks
from eventstore.parquet.write.compaction import Rewriting, replaced
from eventstore.parquet.write.erasing import contents_in
from eventstore.parquet.write.table import TableWriter
from eventstore.stores.open_log import open_log
from http_edge.crypto import signatures
from http_edge.server.archive_round import archive_once
from http_edge.server.exits import Exit
from http_edge.server.status_files import ArchiveReporter
from http_edge.settings.sections import Archive
from http_edge.settings.settings import Settings
from tests.export.leaving import (
    BOUNDS,
    KEYS,
    LATER_MS,
    assert_whole,
    faults_in,
    leave,
    log,
    nonces_of,
    place,
    plan,
    played,
    prune,
    read_ids,
    settings_of,
    states_of,
    streams_of,
    summary_of,
)
from tests.export.samples import (
    DAY_MS,
    OWNER,
    SIGNED_BY,
    SIGNER,
    catalog_of,
    contents,
    export_all,
    exported_log,
    exporter,
    findings,
    sign_again,
    whole_log,
)
from tests.export.test_across_the_seam import _of_earlier_release
from tests.histories import Act, History, random_script
from tests.unit.cli.conftest import Run, run

__all__ = ["log", "place", "run"]

SOME_S = 400
"""Of a history of the tests the last minutes; its rows are younger than what is pruned."""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    export = Settings().export.model_copy(update={"replaced_kept_s": 0.0, "rows_per_file_max": 300})
    archive = Archive(pause_s=0, rows_age_s_min=0)
    return settings_of(tmp_path / "data", archive=archive, export=export)


def _keeping(settings: Settings, history: History, age_s: float = SOME_S) -> Settings:
    """Settings under which, by the clock of the tests, so much of a history is kept."""
    keep_s = age_s + (LATER_MS - history.now_ms) / 1000
    archive = settings.archive.model_copy(update={"keep_s": keep_s})
    return settings.model_copy(update={"archive": archive})


def _round(settings: Settings) -> None:
    archived = archive_once(settings, is_checked=False, clock=lambda: LATER_MS)
    assert archived is not None


def _damages(place: ExportPlace, marks: VerifiedMarks | None = None) -> set[Any]:
    found = verify_export(place, SIGNED_BY, marks=marks)
    return {one.fault for one in found if isinstance(one, ExportFinding)}


@pytest.mark.parametrize("seed", [11, 12])
def test_an_archive_that_was_pruned_is_sound_and_is_restored_to_what_lives(
    settings: Settings, log: EventLog, place: ExportPlace, run: Run, tmp_path: Path, seed: int
) -> None:
    history = played(log, seed=seed)
    read_ids(history)
    streams, rows = streams_of(log), whole_log(log)
    states, nonces = states_of(log, streams), nonces_of(log)
    _round(settings)
    most_ms = max(decode(row.topic, row.state).at_ms for row in rows[: int(len(rows) * 0.9)])
    _round(_keeping(settings, history, age_s=(history.now_ms - most_ms) / 1000))
    catalog = catalog_of(place)
    assert len(rows) / 2 < catalog.pruned_up_to < catalog.last == rows[-1].position
    assert catalog.pruned is not None
    assert catalog.rows == len(rows) - catalog.pruned.rows
    assert catalog.pruned.rows > 40  # seals are younger than the widest window
    kept = exported_log(place)
    assert {row.position for row in kept} <= {row.position for row in rows}
    until = catalog.pruned_up_to
    assert [row for row in kept if row.position > until] == list(rows)[until:]
    assert findings(place) == []
    named = ("--data-dir", str(settings.data_dir))
    assert run("log", "verify", *named).code == Exit.OK
    for source in (Path(place.root), settings.data_dir / "log.db"):
        target = tmp_path / f"restored-{source.name}"
        keys = ("--keys", str(settings.keys_path))
        ran = run("restore", "--from", str(source), "--to", str(target), *keys)
        assert ran.code == Exit.OK, ran.err
        with closing(open_log(f"sqlite:{target / 'log.db'}")) as again:
            assert (states_of(again, streams), nonces_of(again)) == (states, nonces)
            assert_whole(again, f"sqlite:{target / 'log.db'}")
            assert summary_of(again).left == len(rows) - len(whole_log(again))
            assert again.position() == rows[-1].position


def test_a_restored_log_and_its_archive_go_on_and_are_pruned_again(
    log: EventLog, place: ExportPlace, tmp_path: Path, settings: Settings, run: Run
) -> None:
    history = played(log, 250)
    read_ids(history)
    _round(settings)
    streams, before = streams_of(log), catalog_of(place)
    for seed in range(3):
        _round(_keeping(settings, history))
        before = catalog_of(place)
        restored = tmp_path / f"restored-{seed}"
        named = ("--from", str(place.root), "--to", str(restored))
        assert run("restore", *named, "--keys", str(settings.keys_path)).code == Exit.OK
        history.play(random_script(seed, 150))
        read_ids(history)
        _round(settings)
        assert findings(place) == []
        streams = streams_of(log)
        assert catalog_of(place).pruned_up_to >= before.pruned_up_to > 0
        assert_whole(log, settings.log_dsn)
    _round(_keeping(settings, history, age_s=0))
    catalog = catalog_of(place)
    assert catalog.pruned_up_to == catalog.last
    assert catalog.pruned is not None
    assert before.pruned is not None
    assert catalog.pruned.rows > before.pruned.rows
    assert catalog.pruned.rows == catalog.last - catalog.rows
    times, first = (found.statements[0].manifest.rewritten or 0 for found in (catalog, before))
    assert times > first > 0
    assert findings(place) == []
    states, nonces = states_of(log, streams), nonces_of(log)
    last = tmp_path / "last"
    keys = ("--keys", str(settings.keys_path))
    assert run("restore", "--from", str(place.root), "--to", str(last), *keys).code == Exit.OK
    with closing(open_log(f"sqlite:{last / 'log.db'}")) as again:
        assert (states_of(again, streams), nonces_of(again)) == (states, nonces)
        assert summary_of(again).left == again.position() - len(whole_log(again))
        played_on = settings.model_copy(update={"data_dir": last})
        History(again).play(random_script(9, 100))
        archive = played_on.archive_place
        Path(place.root).rename(archive)
        _round(played_on)
        assert findings(open_place(archive)) == []
        assert_whole(again, played_on.log_dsn)


def test_rows_that_are_still_in_the_log_and_young_ones_stay(
    log: EventLog, place: ExportPlace
) -> None:
    history = played(log)
    export_all(log, place, BOUNDS)
    rows = exported_log(place)
    assert prune(log, place) == 0  # nothing has left the log
    leave(log, place)
    assert prune(log, place, until_ms=0) == 0
    assert exported_log(place) == rows
    gone = prune(log, place, until_ms=history.now_ms - SOME_S * 1000)
    assert gone == len(rows) - len(exported_log(place)) > len(rows) / 4
    pruned_up_to = catalog_of(place).pruned_up_to
    young = [row for row in rows if row.position > pruned_up_to]
    assert exported_log(place)[-len(young) :] == young
    rest = catalog_of(place).statements[0].manifest
    contents_left = [contents_in(read_table(place, file)) for file in rest.files]
    assert (rest.rewritten, rest.contents) == (1, sum(contents_left))
    assert prune(log, place, until_ms=history.now_ms - SOME_S * 1000) == 0


def test_what_a_clock_that_was_ahead_has_recorded_ends_what_is_pruned(
    log: EventLog, place: ExportPlace
) -> None:
    """Older steps on its far side are for a later pruning: one manifest has no hole."""
    history = played(log, 150)
    read_ids(history)
    export_all(log, place, BOUNDS)
    ahead = catalog_of(place).last + 1
    acts = (history.save_events, history.connect)  # of partitions with a time each
    for at_ms, act in zip((history.now_ms + 5 * DAY_MS, history.now_ms), acts, strict=True):
        history.now_ms = at_ms
        act(Act(0, 0, 0, 0))
        history.commit()
        export_all(log, place, BOUNDS)
    recorded_ms = {row.position: decode(row.topic, row.state).at_ms for row in whole_log(log)}
    last = catalog_of(place).last
    assert recorded_ms[last] < recorded_ms[ahead] - 4 * DAY_MS
    leave(log, place)
    streams = streams_of(log)
    states = states_of(log, streams)
    assert prune(log, place, until_ms=recorded_ms[ahead] - DAY_MS) > 0
    catalog = catalog_of(place)
    assert catalog.pruned_up_to == ahead - 1
    assert {r.position for r in exported_log(place)} > {*range(ahead, last + 1)}
    assert findings(place) == []
    assert prune(log, place) > 0
    assert catalog_of(place).pruned_up_to == last
    pruned = catalog_of(place).pruned
    assert pruned is not None
    assert pruned.recorded_until_ms == max(recorded_ms.values())
    assert findings(place) == []
    assert states_of(log, streams) == states


def test_manifests_with_a_hole_between_them_are_not_made_one(
    log: EventLog, place: ExportPlace
) -> None:
    played(log)
    export_all(log, place, BOUNDS)
    first, _, third = catalog_of(place).statements[:3]
    files = [*first.manifest.files, *third.manifest.files]
    before = contents(place)
    with pytest.raises(ExportDamaged, match="missing before it"):
        replaced(Rewriting(place, log, SIGNER, 0), [first, third], files)
    assert contents(place) == before


def test_a_pruning_that_finds_nothing_writes_nothing(log: EventLog, place: ExportPlace) -> None:
    """What stays would be there twice: a check would call it stray."""
    History(log).play([])
    leave(log, place)
    before = contents(place)
    assert prune(log, place) == 0
    assert contents(place) == before
    assert findings(place) == []


class _Stopped(Exception):
    """The exporter ended here."""


@pytest.mark.parametrize("is_written", [True, False])
def test_a_pruning_that_ends_at_any_write_is_whole_or_was_never_begun(
    log: EventLog, place: ExportPlace, monkeypatch: pytest.MonkeyPatch, *, is_written: bool
) -> None:
    history = played(log, 200)
    read_ids(history)
    leave(log, place)
    states = states_of(log, streams_of(log))
    before, until_ms = exported_log(place), history.now_ms - SOME_S * 1000
    last: dict[int, int] = {}
    for fatal in range(1, 100):
        writes = [0]

        def around(name: str, holder: type, fatal: int = fatal, writes: list[int] = writes) -> None:
            made = getattr(holder, name)

            def call(*arguments: Any, **more: Any) -> Any:
                writes[0] += 1
                if writes[0] == fatal and not is_written:
                    raise _Stopped
                returned = made(*arguments, **more)
                if writes[0] == fatal:
                    raise _Stopped
                return returned

            patch.setattr(holder, name, call)

        with closing(exporter(log, place, BOUNDS)) as export, monkeypatch.context() as patch:
            around("write", ExportPlace)
            around("remove", ExportPlace)
            around("commit", TableWriter)
            try:
                export.prune(until_ms, plan)
                export.sweep()
                break
            except _Stopped:
                pass
        found = catalog_of(place)
        last[found.pruned_up_to] = fatal
        if not found.pruned_up_to:
            assert exported_log(place) == before
        assert _damages(place) <= {Damage.STRAY}
    else:
        pytest.fail("it never came to its end")
    assert len(last) == 2 or is_written
    assert catalog_of(place).strays == []
    assert findings(place) == []
    assert states_of(log, streams_of(log)) == states


def test_only_what_a_pruning_names_may_be_missing_and_a_forged_one_is_found(
    log: EventLog, place: ExportPlace
) -> None:
    history = played(log)
    leave(log, place)
    whole = contents(place)
    assert prune(log, place, until_ms=history.now_ms - SOME_S * 1000)
    with closing(exporter(log, place, BOUNDS)) as export:
        export.sweep()
    sound, catalog = contents(place), catalog_of(place)
    first = catalog.statements[0]
    assert _damages(place) == set()

    def put(files: dict[str, bytes]) -> None:
        for path in place.sizes("").keys() - files.keys():
            place.remove(path)
        for path, content in files.items():
            place.write(path, content)

    # A file that stayed, and one behind: as ever.
    for path in (first.manifest.files[0].path, catalog.statements[1].manifest.files[0].path):
        put({each: content for each, content in sound.items() if each != path})
        assert Damage.MISSING in _damages(place)
    # What was removed does not come back unseen, nor does the archive as it was.
    gone = sorted(whole.keys() - sound.keys())
    back = next(path for path in gone if path.endswith(".parquet"))
    put(sound | {back: whole[back]})
    assert Damage.STRAY in _damages(place)
    put(whole | {END: sound[END]})
    assert Damage.ROLLED_BACK in _damages(place)
    # Another key, another rest under the same name, another tree, a chain that goes elsewhere.
    put(sound)
    stranger = Signer(SIGNER.signed_by, lambda said: signatures.sign(bytes(32), said))
    sign_again(place, first.manifest, stranger)
    assert _damages(place) & {Damage.BAD_SIGNATURE, Damage.CHANGED}
    for forged in (
        replace(first.manifest, pruned=None, signature=""),
        replace(first.manifest, stands_for="00" * 32, signature=""),
        replace(first.manifest, tree=replace(_tree(first), root="00" * 32), signature=""),
    ):
        put(sound)
        sign_again(place, forged)
        assert Damage.CHANGED in _damages(place)  # the version names its SHA-256
    # The tiles have the seals that were removed.
    put(sound)
    tile = next(path for path in sorted(sound) if path.startswith("tree/tile/0/"))
    place.write(tile, bytes(len(sound[tile])))
    assert {Fault.WRONG_TREE, Damage.CHANGED} & _damages(place)
    put(sound)
    assert _damages(place) == set()


def _tree(statement: Statement) -> Any:
    assert statement.manifest.tree is not None
    return statement.manifest.tree


def test_what_was_verified_before_is_gone_on_from_and_a_summary_says_what_is_missing(
    log: EventLog, place: ExportPlace, tmp_path: Path
) -> None:
    history = played(log)
    leave(log, place)
    marks = VerifiedMarks(open_place(str(tmp_path / "marks")), SIGNER)
    assert _damages(place, marks) == set()
    assert prune(log, place, until_ms=history.now_ms - SOME_S * 1000)
    history.play(random_script(4, 60))
    export_all(log, place, BOUNDS)
    *found, summary = verify_export(place, SIGNED_BY, marks=marks)
    assert found == []
    assert isinstance(summary, ExportSummary)
    assert summary.pruned_up_to == catalog_of(place).pruned_up_to > 0
    assert _damages(place) == set()


def test_what_is_asked_as_of_before_or_of_a_message_that_is_gone_is_said_to_be_pruned(
    settings: Settings, log: EventLog, place: ExportPlace, run: Run, tmp_path: Path
) -> None:
    history = played(log)
    rows = whole_log(log)
    _round(settings)
    _round(_keeping(settings, history))
    catalog = catalog_of(place)
    until = catalog.pruned_up_to
    assert catalog.pruned is not None
    export = open_exports(str(place.root))
    export.require(until)
    export.require(None)
    end = datetime.fromtimestamp(catalog.pruned.recorded_until_ms / 1000, UTC)
    export.require(end)
    at = datetime.fromtimestamp(catalog.pruned.at_ms / 1000, UTC)
    why = f"until {end.isoformat(timespec='seconds')}, were removed from the archive at"
    why += f" {at.isoformat(timespec='seconds')}"
    for as_of in (until - 1, 1, end - timedelta(milliseconds=1)):
        with pytest.raises(RowsPruned, match=re.escape(why)):
            export.require(as_of)
        named = ("--from", str(place.root), "--to", str(tmp_path / "restored"))
        said = str(as_of) if isinstance(as_of, int) else as_of.isoformat()
        ran = run("restore", *named, "--keys", str(settings.keys_path), "--as-of", said)
        assert (ran.code, "removed from the archive" in ran.err) == (Exit.USAGE, True)
        ran = run("audit", "message", "any", "--from", str(place.root), "--as-of", said)
        assert (ran.code, "removed from the archive" in ran.err) == (Exit.USAGE, True)
        assert "damaged" not in ran.err
    left = {row.position for row in rows} - {row.position for row in exported_log(place)}
    seen = {True: 0, False: 0}
    for row in rows:
        event = decode(row.topic, row.state)
        if not isinstance(event, MessageQueued) or row.position > until:
            continue
        is_gone = row.position in left
        seen[is_gone] += 1
        ran = run("audit", "message", event.message_id, "--from", str(place.root), "--json")
        assert ran.code == (Exit.FINDING if is_gone else Exit.OK), ran.err
        if is_gone:
            assert "removed from the archive" in ran.err
        else:
            assert json.loads(ran.out)["events"][0]["seal_position"] is None
            question = ("audit", "message", event.message_id, "--from", str(place.root))
            ran = run(*question, "--proof", str(tmp_path / "proof"))
            assert ran.code == Exit.FINDING
            assert "no proof can be made: the archive no longer has all rows" in ran.err
            assert not (tmp_path / "proof").exists()
    assert all(seen.values())


def test_a_new_release_makes_states_anew_from_what_was_not_pruned(
    settings: Settings, log: EventLog, place: ExportPlace
) -> None:
    history = played(log)
    read_ids(history)
    streams = streams_of(log)
    states = states_of(log, streams)
    _round(settings)
    _round(_keeping(settings, history))
    assert catalog_of(place).pruned_up_to
    _of_earlier_release(log)
    fold_again(log, place, KEYS, OWNER.mediator_did)
    assert states_of(log, streams) == states
    assert faults_in(log) == []


def test_a_row_that_is_missing_without_a_pruning_is_no_beginning(
    log: EventLog, place: ExportPlace
) -> None:
    played(log, 100)
    rows = whole_log(log)
    with pytest.raises(RowsStay, match="lacks a row"):
        plan(lambda: [[*rows[:50], *rows[60:]]], 0)


def test_rounds_prune_from_time_to_time_and_never_without_the_setting(tmp_path: Path) -> None:
    now = [1_900_000_000_000]
    reporter = ArchiveReporter(tmp_path, lambda: now[0])
    assert not reporter.is_pruning_due(0, 60)
    assert reporter.is_pruning_due(1, 60)
    reporter.on_end(has_pruned=True)
    now[0] += 59_000
    assert not ArchiveReporter(tmp_path, lambda: now[0]).is_pruning_due(1, 60)
    now[0] += 1_000
    assert ArchiveReporter(tmp_path, lambda: now[0]).is_pruning_due(1, 60)
    now[0] -= 86_400_000  # the clock was ahead when the last round pruned
    assert ArchiveReporter(tmp_path, lambda: now[0]).is_pruning_due(1, 60)
