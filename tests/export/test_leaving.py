"""Old rows leave for the archive: nothing that lives is lost, and the rest still proves itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import takewhile
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from eventsourcing.persistence import StoredEvent
from msgspec.structs import replace
from typing_extensions import override

from actors.core.evolve import to_snapshot
from actors.core.identity import FOLD
from actors.host.stored_states import read_identity, state_at, wrong_snapshots
from eventstore.log.codec import decode_seal
from eventstore.log.errors import CorruptRow, RowsStay, SeamRefused
from eventstore.log.event_log import Departure, EventLog, Snapshot
from eventstore.log.events import SEAL_TOPIC
from eventstore.log.seam import SEAM, read_seam, sign_seam
from eventstore.log.streams import identity_stream
from eventstore.log.verify import Summary, heads_not_in, verify
from eventstore.parquet.errors import ExportDamaged, ExportRefused
from eventstore.parquet.files import ExportPlace, open_place
from eventstore.stores.open_log import open_log
from http_edge.crypto.mediator_keys import load_or_create
from http_edge.server.exits import Exit
from tests.export.erased import dsn, log
from tests.export.leaving import (
    BOUNDS,
    LATER_MS,
    assert_whole,
    faults_in,
    leave,
    nonces_of,
    played,
    read_ids,
    states_of,
    streams_of,
    summary_of,
)
from tests.export.samples import SIGNER, export_all, exported_log, exporter, findings, whole_log
from tests.histories import IDENTITIES, MEDIATOR, PLACEMENT, Act, random_script
from tests.log.faulty_log import FaultyLog
from tests.log.raw_sql import run_sql
from tests.log.samples import save
from tests.unit.cli.conftest import Run, run

__all__ = ["dsn", "log", "run"]

RESTART = Act(0, 0, 0, 0)


class Killed(Exception):
    """A process ended here."""


class Dying(FaultyLog):
    """A log whose process ends at one of the steps, before its commit or after it."""

    def __init__(self, log: EventLog, step: int, *, is_stored: bool) -> None:
        super().__init__(log)
        self._left = step
        self._is_stored = is_stored

    @override
    def let_leave(self, departure: Departure) -> None:
        self._left -= 1
        if self._left or self._is_stored:
            super().let_leave(departure)
        if not self._left:
            raise Killed


@pytest.fixture
def place(tmp_path: Path) -> ExportPlace:
    return open_place(str(tmp_path / "archive"))


def test_what_lives_is_the_same_after_old_rows_have_left(
    log: EventLog, dsn: str, place: ExportPlace
) -> None:
    played(log)
    streams, rows = streams_of(log), whole_log(log)
    states, nonces = states_of(log, streams), nonces_of(log)
    left = leave(log, place)
    assert left.left > len(rows) / 4
    assert len(whole_log(log)) == len(rows) - left.left
    assert left.seam == rows[-1].position
    assert {row.stream for row in whole_log(log) if row.version == 1} == {r.stream for r in rows}
    assert (states_of(log, streams), nonces_of(log)) == (states, nonces)
    run_sql(dsn, "DELETE FROM snapshots")
    assert states_of(log, streams) == states
    assert_whole(log, dsn)
    assert exported_log(place) == list(rows)
    assert findings(place) == []
    summary = summary_of(log)
    assert (summary.seam, summary.left) == (left.seam, left.left)
    assert leave(log, place).left == 0


def test_a_mediator_whose_rows_leave_again_and_again_goes_on_as_one_whose_rows_stay(
    log: EventLog, dsn: str, place: ExportPlace, tmp_path: Path
) -> None:
    with closing(open_log(f"sqlite:{tmp_path / 'whole.db'}")) as whole:
        ours, theirs = played(log, 200), played(whole, 200)
        for seed in range(4):
            for history in (ours, theirs):
                read_ids(history)
            leave(log, place)
            for history in (ours, theirs):
                if seed % 2:  # the others have their states in memory
                    history.restart(RESTART)
                history.play(random_script(seed, 150))
                read_ids(history)
            streams = streams_of(whole)
            assert states_of(log, streams) == states_of(whole, streams)
            assert nonces_of(log) == nonces_of(whole)
            assert_whole(log, dsn)
        leave(log, place)
        assert_whole(log, dsn)
        stayed = len(whole_log(log))
        assert stayed < len(whole_log(whole)) / 2
        export_all(log, place, BOUNDS)
        assert exported_log(place)[-1] == whole_log(whole)[-1]


@pytest.mark.parametrize(("step", "is_stored"), [(1, True), (2, False)])
def test_a_kill_at_any_step_leaves_a_log_that_is_whole_and_goes_on(
    log: EventLog, dsn: str, place: ExportPlace, step: int, is_stored: bool
) -> None:
    history = played(log, 250)
    read_ids(history)
    leave(log, place, until_ms=history.now_ms - 200_000)
    history.play(random_script(3, 100))
    streams = streams_of(log)
    states, nonces = states_of(log, streams), nonces_of(log)
    kills = 0
    while True:
        try:
            leave(Dying(log, step, is_stored=is_stored), place, section_rows=400)
            break
        except Killed:
            kills += 1
        assert faults_in(log) == []
        assert (states_of(log, streams), nonces_of(log)) == (states, nonces)
    assert kills > 3
    assert_whole(log, dsn)
    assert summary_of(log).seam == log.position()


def test_only_what_is_old_leaves(log: EventLog, place: ExportPlace) -> None:
    history = played(log)
    seals = [
        (row.position, decode_seal(row.state).at_ms)
        for row in whole_log(log)
        if row.topic == SEAL_TOPIC
    ]
    until_ms = max(at_ms for _, at_ms in seals if at_ms <= history.now_ms - 600_000)
    left = leave(log, place, until_ms=until_ms)
    assert left.seam == [*takewhile(lambda seal: seal[1] <= until_ms, seals)][-1][0]
    assert 0 < left.seam < log.position()
    assert read_seam(log.settings()[SEAM]).position == left.seam
    rest = [row.position for row in whole_log(log) if row.position > left.seam]
    assert rest == list(range(left.seam + 1, log.position() + 1))


def test_a_stream_without_the_state_that_stands_for_its_rows_is_refused_and_not_new(
    log: EventLog, dsn: str, place: ExportPlace
) -> None:
    played(log)
    leave(log, place)
    states = list(log.archived_states())
    run_sql(dsn, "DELETE FROM archived_states")
    run_sql(dsn, "DELETE FROM snapshots")
    assert set(faults_in(log)) == {"missing-state"}
    for stream, _ in states:
        with pytest.raises(CorruptRow, match="is missing"):
            read_identity(log, stream)


def test_a_state_that_was_changed_is_named_and_its_stream_refused(
    log: EventLog, dsn: str, place: ExportPlace
) -> None:
    played(log)
    leave(log, place)
    ((stream, _), *_) = log.archived_states()
    run_sql(dsn, "DELETE FROM snapshots")
    run_sql(dsn, f"UPDATE archived_states SET version = version + 1 WHERE stream = x'{stream.hex}'")
    assert set(faults_in(log)) == {"missing-state"}
    with pytest.raises(CorruptRow, match="is missing"):
        read_identity(log, stream)


def test_a_snapshot_that_is_older_than_the_rows_that_left_is_not_the_present(
    log: EventLog, place: ExportPlace
) -> None:
    played(log)
    streams = streams_of(log)
    states = states_of(log, streams)
    grown = [stream for stream in streams if read_identity(log, stream)[0].version > 1]
    former = {one: Snapshot(2, FOLD, to_snapshot(state_at(log, one, 2))) for one in grown}
    leave(log, place)
    left = [stream for stream, _ in log.archived_states()]
    save(log, *[(stream, former[stream]) for stream in left])
    assert list(wrong_snapshots(log)) == []
    assert states_of(log, streams) == states


@pytest.mark.parametrize(
    ("statement", "fault"),
    [
        ("UPDATE stored_events SET state = state || x'00' WHERE rowid = {kept}", "wrong-rest"),
        ("DELETE FROM stored_events WHERE rowid = {kept}", "wrong-rest"),
        ("INSERT INTO contents SELECT {left}, content FROM contents LIMIT 1", "wrong-content"),
        (
            (
                "UPDATE settings SET value ="
                " CAST(replace(CAST(value AS TEXT), '\"left\":', '\"left\":1') AS BLOB)"
                " WHERE name = {seam}"
            ),
            "wrong-seam",
        ),
        ("UPDATE settings SET value = x'6e6f6e65' WHERE name = {seam}", "wrong-seam"),
        (
            (
                "UPDATE settings SET value = CAST(substr(CAST(value AS TEXT), 1,"
                " instr(CAST(value AS TEXT), char(10))) || 'none' AS BLOB) WHERE name = {seam}"
            ),
            "wrong-seam",
        ),
        ("DELETE FROM settings WHERE name = {seam}", "version-break"),
        ("UPDATE stored_events SET state = state || x'00' WHERE rowid = {last}", "broken-seal"),
        (
            (
                "UPDATE stored_events SET originator_version = originator_version + 1000"
                " WHERE rowid > {behind} AND topic = '{seal}'"
            ),
            "version-break",
        ),
    ],
)
def test_what_was_changed_before_or_behind_the_seam_is_found(
    log: EventLog, dsn: str, place: ExportPlace, statement: str, fault: str
) -> None:
    history = played(log)
    seam = leave(log, place, until_ms=history.now_ms - 600_000).seam
    rows = {row.position: row.topic for row in whole_log(log)}
    kept = max(at for at, topic in rows.items() if at < seam and topic != SEAL_TOPIC)
    left = max({*range(1, seam)} - rows.keys())
    places = {"kept": kept, "left": left, "behind": seam, "last": log.position() - 1}
    name = f"x'{SEAM.encode().hex()}'"
    run_sql(dsn, statement.format(**places, seam=name, seal=SEAL_TOPIC))
    assert fault in faults_in(log)


def test_a_seam_of_before_does_not_fit_what_stayed_since(
    log: EventLog, dsn: str, place: ExportPlace
) -> None:
    history = played(log)
    leave(log, place, until_ms=history.now_ms - 600_000)
    former = log.settings()[SEAM]
    leave(log, place)
    run_sql(
        dsn,
        f"UPDATE settings SET value = x'{former.encode().hex()}'"
        f" WHERE name = x'{SEAM.encode().hex()}'",
    )
    assert "wrong-rest" in faults_in(log)
    with pytest.raises(RowsStay):
        leave(log, place)


def test_no_row_leaves_a_log_in_which_a_row_that_stayed_was_changed(
    log: EventLog, dsn: str, place: ExportPlace
) -> None:
    history = played(log)
    seam = leave(log, place, until_ms=history.now_ms - 600_000).seam
    kept = whole_log(log)[1].position
    assert kept < seam
    run_sql(dsn, f"UPDATE stored_events SET state = state || x'00' WHERE rowid = {kept}")
    with pytest.raises(RowsStay, match="see poste log verify"):
        leave(log, place)
    assert read_seam(log.settings()[SEAM]).position == seam


def test_the_seam_of_another_key_is_refused(log: EventLog, place: ExportPlace) -> None:
    played(log)
    leave(log, place)
    text = log.settings()[SEAM]
    log.let_leave(Departure(text, text[:-2] + ("00" if text[-2:] != "00" else "11")))
    assert faults_in(log) == ["wrong-seam"]
    with pytest.raises(SeamRefused):
        leave(log, place)


@pytest.mark.parametrize(
    ("change", "why"),
    [({"mediator_did": "did:web:other"}, "belongs to"), ({"fold": FOLD - 1}, "another release")],
)
def test_no_row_leaves_at_a_seam_of_another_mediator_or_release(
    log: EventLog, place: ExportPlace, change: dict[str, Any], why: str
) -> None:
    history = played(log)
    leave(log, place, until_ms=history.now_ms - 600_000)
    text = log.settings()[SEAM]
    other = sign_seam(replace(read_seam(text), **change), SIGNER.sign)
    log.let_leave(Departure(text, other))
    with pytest.raises(RowsStay, match=why):
        leave(log, place)
    assert log.settings()[SEAM] == other


def _lose(place: ExportPlace) -> None:
    place.remove(max(path for path in place.sizes("events") if path.endswith(".parquet")))


def _change(place: ExportPlace) -> None:
    path = max(path for path in place.sizes("events") if path.endswith(".parquet"))
    content = place.read(path)
    place.write(path, content[:-1] + bytes([content[-1] ^ 1]))


@pytest.mark.parametrize("damage", [_lose, _change])
def test_nothing_leaves_for_an_archive_that_does_not_have_it(
    log: EventLog, place: ExportPlace, damage: Callable[[ExportPlace], None]
) -> None:
    played(log)
    export_all(log, place, BOUNDS)
    rows = whole_log(log)
    damage(place)
    with pytest.raises(ExportDamaged):
        leave(log, place, section_rows=100_000)
    newest = whole_log(log)[-20:]
    assert newest == list(rows)[-20:]
    assert faults_in(log) == []


def test_a_row_that_is_another_one_in_the_archive_stays(
    log: EventLog, dsn: str, place: ExportPlace
) -> None:
    played(log)
    export_all(log, place, BOUNDS)
    run_sql(dsn, "UPDATE stored_events SET state = state || x'00' WHERE rowid = 40")
    with pytest.raises(RowsStay, match="the archive has another row at position 40"):
        leave(log, place)
    assert SEAM not in log.settings()


def test_an_export_to_another_place_needs_what_has_left(
    log: EventLog, place: ExportPlace, tmp_path: Path
) -> None:
    history = played(log, 50)
    early, elsewhere = (open_place(str(tmp_path / name)) for name in ("early", "elsewhere"))
    export_all(log, early, BOUNDS)
    history.play(random_script(11, 400))
    leave(log, place, until_ms=history.now_ms - 600_000)
    for other in (early, elsewhere):
        with pytest.raises(ExportRefused, match="copy the archive there first"):
            exporter(log, other)
    history.play(random_script(5, 50))
    export_all(log, place, BOUNDS)
    assert findings(place) == []


def test_a_place_where_the_log_cannot_be_exported_is_left_as_it_was(
    log: EventLog, place: ExportPlace, tmp_path: Path
) -> None:
    history = played(log)
    leave(log, place, until_ms=history.now_ms - 600_000)
    elsewhere = tmp_path / "elsewhere"
    with pytest.raises(ExportRefused):
        exporter(log, open_place(str(elsewhere)))
    assert not elsewhere.exists()


def test_heads_that_have_left_are_looked_for_in_the_archive_alone(
    log: EventLog, place: ExportPlace
) -> None:
    history = played(log, 150)
    *_, earlier = verify(log)
    assert isinstance(earlier, Summary)
    history.play(random_script(5, 250))
    leave(log, place)
    *found, summary = verify(log, known_heads=earlier.heads)
    assert isinstance(summary, Summary)
    assert found == []
    assert summary.older_heads > 0
    assert heads_not_in(log, earlier.heads) == {}
    newest = {name: head._replace(digest=bytes(32)) for name, head in summary.heads.items()}
    *wrong, _ = verify(log, known_heads=newest)
    assert len(wrong) == len(newest)
    assert heads_not_in(log, newest) == newest


def test_two_processes_do_not_let_rows_leave_at_once(log: EventLog, place: ExportPlace) -> None:
    history = played(log)
    export_all(log, place, BOUNDS)

    class Overtaken(FaultyLog):
        @override
        def let_leave(self, departure: Departure) -> None:
            leave(self._log, place, until_ms=history.now_ms - 600_000)
            super().let_leave(departure)

    with pytest.raises(RowsStay, match="another process"):
        leave(Overtaken(log), place)
    assert faults_in(log) == []
    assert history.now_ms < LATER_MS


def test_a_snapshot_is_not_accused_because_rows_leave_while_it_is_checked(
    log: EventLog, place: ExportPlace
) -> None:
    history = played(log)
    for stream in streams_of(log):
        state, _ = read_identity(log, stream)
        save(log, (stream, Snapshot(state.version, FOLD, to_snapshot(state))))
    read_ids(history)
    left: list[int] = []

    class Overtaken(FaultyLog):
        """A log that rows leave while a stream is read."""

        @override
        def read_stream(
            self,
            stream: UUID,
            *,
            after: int = 0,
            before: int | None = None,
            limit: int | None = None,
            newest_first: bool = False,
        ) -> Sequence[StoredEvent]:
            if before and stream == identity_stream(IDENTITIES[0]) and not left:
                left.append(leave(log, place).left)
            return super().read_stream(
                stream, after=after, before=before, limit=limit, newest_first=newest_first
            )

    assert list(wrong_snapshots(Overtaken(log))) == []
    assert left > [0]
    assert list(wrong_snapshots(log)) == []


def test_the_command_lets_rows_leave_and_the_archive_makes_the_log_whole_again(
    run: Run, tmp_path: Path
) -> None:
    data_dir, restored = tmp_path / "data", tmp_path / "restored"
    data_dir.mkdir()
    keys = data_dir / "mediator-keys.json"
    load_or_create(keys)
    with closing(open_log(f"sqlite:{data_dir / 'log.db'}")) as log:
        log.setting("mediator_did", MEDIATOR)
        log.setting("shards", str(PLACEMENT.shards))
        played(log)
        streams, rows = streams_of(log), whole_log(log)
        states = states_of(log, streams)
    named = ("--data-dir", str(data_dir))
    ran = run("log", "archive", *named, "--json")
    assert (ran.code, ran.err) == (Exit.OK, "")
    said = json.loads(ran.out)
    assert said["rows_left"] > len(rows) / 10
    assert said["position"] == len(rows)
    verified = json.loads(run("log", "verify", *named, "--json").out)
    assert (verified["findings"], verified["made_from_rows"]) == ([], [])
    assert verified["summary"]["rows_left"] == said["rows_left"]
    assert run("log", "rebuild-read-models", *named).code == Exit.OK
    assert run("log", "verify", *named).code == Exit.OK
    assert json.loads(run("log", "archive", *named, "--json").out)["rows_left"] == 0
    archive = ("--from", str(data_dir / "archive"), "--to", str(restored), "--keys", str(keys))
    assert run("restore", *archive).code == Exit.OK
    with closing(open_log(f"sqlite:{restored / 'log.db'}")) as log:
        assert whole_log(log) == rows
        assert states_of(log, streams) == states
