"""Old rows leave a log in PostgreSQL by the command, with the same promise as in SQLite."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from eventstore.log.event_log import EventLog
from eventstore.parquet.files import open_place
from eventstore.stores.open_log import open_log
from http_edge.crypto.mediator_keys import create
from http_edge.server.exits import Exit
from tests.export.leaving import (
    KEYS,
    assert_whole,
    faults_in,
    leave,
    nonces_of,
    played,
    read_ids,
    states_of,
    streams_of,
)
from tests.export.samples import OWNER, exported_log, findings, whole_log
from tests.export.test_leaving import RESTART, Dying, Killed
from tests.histories import random_script
from tests.unit.cli.conftest import Run, run

__all__ = ["run"]

pytestmark = pytest.mark.postgres


@pytest.fixture
def log(postgres_url: str) -> Iterator[EventLog]:
    with closing(open_log(postgres_url)) as opened:
        opened.setting("mediator_did", OWNER.mediator_did)
        opened.setting("shards", str(OWNER.shards))
        yield opened


def test_what_lives_is_the_same_after_rows_have_left_again_and_again(
    log: EventLog, postgres_url: str, tmp_path: Path
) -> None:
    place = open_place(str(tmp_path / "archive"))
    history = played(log, 200)
    for seed in range(3):
        read_ids(history)
        rows, streams = whole_log(log), streams_of(log)
        states, nonces = states_of(log, streams), nonces_of(log)
        left = leave(log, place)
        assert left.left > 0
        assert len(whole_log(log)) == len(rows) - left.left
        assert (states_of(log, streams), nonces_of(log)) == (states, nonces)
        assert_whole(log, postgres_url)
        if seed % 2:  # the others have their states in memory
            history.restart(RESTART)
        history.play(random_script(seed, 100))
    leave(log, place)
    assert_whole(log, postgres_url)
    assert findings(place) == []
    assert exported_log(place)[-1].position == log.position()


@pytest.mark.parametrize("is_stored", [True, False])
def test_a_kill_at_any_step_leaves_a_log_that_is_whole_and_goes_on(
    log: EventLog, postgres_url: str, tmp_path: Path, is_stored: bool
) -> None:
    place = open_place(str(tmp_path / "archive"))
    played(log, 200)
    streams = streams_of(log)
    states, nonces = states_of(log, streams), nonces_of(log)
    kills = 0
    while True:
        try:
            leave(Dying(log, 1 if is_stored else 2, is_stored=is_stored), place, section_rows=400)
            break
        except Killed:
            kills += 1
        assert faults_in(log) == []
        assert (states_of(log, streams), nonces_of(log)) == (states, nonces)
    assert kills > 1
    assert_whole(log, postgres_url)


def test_commands_go_on_while_rows_leave(log: EventLog, postgres_url: str, tmp_path: Path) -> None:
    place = open_place(str(tmp_path / "archive"))
    history = played(log, 200)
    began = threading.Event()

    def others() -> None:
        began.set()
        for seed in range(30, 40):
            history.play(random_script(seed, 20))

    beside = threading.Thread(target=others)
    with closing(open_log(postgres_url)) as another:
        beside.start()
        began.wait()
        left = sum(leave(another, place, section_rows=60).left for _ in range(3))
        beside.join()
    assert left > 0
    assert_whole(log, postgres_url)
    leave(log, place)
    assert_whole(log, postgres_url)
    assert findings(place) == []


def test_the_command_archives_verifies_and_restores(
    log: EventLog, postgres_url: str, run: Run, tmp_path: Path
) -> None:
    create(tmp_path / "mediator-keys.json", KEYS)
    played(log)
    rows, streams = whole_log(log), streams_of(log)
    states = states_of(log, streams)
    named = ("--data-dir", str(tmp_path), "--log", postgres_url, "--json")
    assert run("log", "archive", *named).code == Exit.USAGE
    to = ("--set", f"export.to={tmp_path / 'archive'}")
    ran = run("log", "archive", *named, *to)
    assert ran.code == Exit.OK, ran.err
    assert json.loads(ran.out)["rows_left"] > len(rows) / 10
    ran = run("log", "verify", *named, *to)
    assert ran.code == Exit.OK, ran.err
    assert json.loads(ran.out)["archive"]["findings"] == []
    restored = tmp_path / "restored"
    source = ("--from", postgres_url, "--archive", str(tmp_path / "archive"))
    keys = ("--keys", str(tmp_path / "mediator-keys.json"))
    ran = run("restore", *source, "--to", str(restored), *keys)
    assert ran.code == Exit.OK, ran.err
    with closing(open_log(f"sqlite:{restored / 'log.db'}")) as again:
        assert states_of(again, streams) == states
        assert [row.position for row in whole_log(again)] == [row.position for row in rows]
        assert faults_in(again) == []
