"""Old rows leave a log in PostgreSQL for its export, with the same promise as in SQLite."""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from subprocess import Popen

import pytest
from typing_extensions import override

from actors.core.refusals import Refusal
from eventstore.log.event_log import Departure, EventLog
from eventstore.log.seam import SEAM
from eventstore.parquet.files import open_place
from eventstore.stores.advisory_lock import advisory_lock
from eventstore.stores.open_log import open_log
from eventstore.stores.postgres_bounds import PostgresBounds
from http_edge.crypto.mediator_keys import create
from http_edge.server.archive_round import run_beside
from http_edge.server.child_process import keep_archiving
from http_edge.server.exits import Exit
from http_edge.server.status_files import ArchiveReporter, archive_figures
from http_edge.settings.sections import Archive, Export
from http_edge.settings.settings import Settings
from tests.cluster.server import own_environment
from tests.export.leaving import (
    BOUNDS,
    KEYS,
    assert_whole,
    faults_in,
    leave,
    leave_for,
    nonces_of,
    played,
    read_ids,
    settings_of,
    states_of,
    streams_of,
    summary_of,
)
from tests.export.samples import OWNER, export_all, exported_log, findings, whole_log
from tests.export.test_leaving import RESTART, Dying, Killed
from tests.histories import ACTS, History, random_script
from tests.log.faulty_log import FaultyLog
from tests.log.raw_sql import run_sql
from tests.postgres import Server
from tests.unit.cli.conftest import Run, run

__all__ = ["run"]

pytestmark = pytest.mark.postgres
WAIT_S = 60
POSTE = (sys.executable, "-c", "from http_edge.cli.main import main; main()")
NOW_MS = 4_000_000_000_000


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


class Leaving(FaultyLog):
    """A log that keeps, for each time that rows leave, how many appends another one had."""

    def __init__(self, log: EventLog, other: FaultyLog) -> None:
        super().__init__(log)
        self._other = other
        self.appends_by_then: list[int] = []

    @override
    def let_leave(self, departure: Departure) -> None:
        super().let_leave(departure)
        self.appends_by_then.append(len(self._other.appends))


def test_commands_go_on_while_rows_leave(log: EventLog, postgres_url: str, tmp_path: Path) -> None:
    place = open_place(str(tmp_path / "archive"))
    appending = FaultyLog(log)
    history = played(appending, 200)
    export_all(log, place, BOUNDS)
    over = threading.Event()

    def others() -> None:
        for seed in itertools.count(30):
            if over.is_set():
                return
            script = random_script(seed, 20)
            # An identity that is being erased is unavailable by rule.
            history.play([act for act in script if ACTS[act.what % len(ACTS)] != History.order])

    with closing(open_log(postgres_url)) as another, ThreadPoolExecutor(1) as pool:
        beside = pool.submit(others)
        leaving = Leaving(another, appending)
        try:
            left = leave_for(leaving, place, section_rows=60).left
        finally:
            over.set()
        beside.result()
    assert left > 0
    assert leaving.appends_by_then[-1] > leaving.appends_by_then[0]
    assert not history.refusals & {Refusal.TEMPORARILY_UNAVAILABLE, Refusal.NOT_OWNER}
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


def test_a_log_that_was_put_back_continues_with_what_its_archive_has_of_it(
    log: EventLog, postgres_server: Server, postgres_url: str, run: Run, tmp_path: Path
) -> None:
    """As after a recovery to a point in time. The archive has what came after that, too."""
    create(tmp_path / "mediator-keys.json", KEYS)
    place = open_place(str(tmp_path / "archive"))
    history = played(log, 200)
    rows, streams = whole_log(log), streams_of(log)
    assert leave(log, place).left > 0
    states = states_of(log, streams)
    log.close()
    ((name,),) = run_sql(postgres_url, "SELECT current_database()")
    earlier = f"{name}_earlier"
    run_sql(postgres_server.get_uri(), f"CREATE DATABASE {earlier} TEMPLATE {name}")
    with closing(open_log(postgres_url)) as later:
        history.log = later
        history.restart(RESTART)
        history.play(random_script(1, 100))
        leave(later, place)
    put_back = postgres_server.get_uri(earlier)
    named = ("--data-dir", str(tmp_path), "--set", f"did={OWNER.mediator_did}")
    try:
        for place_name in ("archive", "new"):
            to = ("--to", str(tmp_path / place_name))
            assert run("export", "--log", put_back, *to, *named).code == Exit.USAGE
        archive, again = (
            ("--archive", str(tmp_path / "archive")),
            f"sqlite:{tmp_path / 'again' / 'log.db'}",
        )
        keys = ("--keys", str(tmp_path / "mediator-keys.json"))
        target = ("--to", str(tmp_path / "again"))
        ran = run("restore", "--from", put_back, *archive, *target, *keys)
        assert ran.code == Exit.OK, ran.err
    finally:
        run_sql(postgres_server.get_uri(), f"DROP DATABASE {earlier} WITH (FORCE)")
    ran = run("export", "--log", again, "--to", str(tmp_path / "new"), *named)
    assert ran.code == Exit.OK, ran.err
    with closing(open_log(again)) as restored:
        assert states_of(restored, streams) == states
        assert [row.position for row in whole_log(restored)] == [row.position for row in rows]
        assert faults_in(restored) == []


def _node(tmp_path: Path, name: str, log: str) -> Settings:
    """The settings of a node of a cluster that exports to a folder which all share."""
    archive = Archive(enabled=True, rows_age_s_min=0, pause_s=0, every_s=0.05)
    export = Export(to=str(tmp_path / "archive"))
    return settings_of(tmp_path / name, log=log, archive=archive, export=export)


async def test_each_node_starts_rounds_and_says_how_far_the_log_is(
    log: EventLog, postgres_url: str, tmp_path: Path
) -> None:
    played(log)
    one, two = (_node(tmp_path, name, postgres_url) for name in ("one", "two"))
    assert one.lets_rows_leave
    stopping = asyncio.Event()
    running = asyncio.create_task(keep_archiving(one, stopping, 1, first_s=0))
    async with asyncio.timeout(WAIT_S):
        while not archive_figures(one.data_dir, NOW_MS, 1)["rows_left"]:  # noqa: ASYNC110 - of another
            await asyncio.sleep(0.05)
        stopping.set()
        await running
    assert_whole(log, postgres_url)
    assert findings(open_place(one.archive_place)) == []
    run_beside(two, threading.Event(), ArchiveReporter(two.data_dir, lambda: NOW_MS))
    shown, summary = archive_figures(two.data_dir, NOW_MS), summary_of(log)
    assert shown["fault"] == ""
    assert (shown["position"], shown["rows_left"]) == (summary.seam, summary.left)
    assert summary.left > 0


def test_a_node_leaves_the_round_to_the_one_that_has_it_under_way(
    log: EventLog, postgres_url: str, tmp_path: Path
) -> None:
    played(log, 100)
    node = _node(tmp_path, "one", postgres_url)
    reporter = ArchiveReporter(node.data_dir, lambda: NOW_MS)
    with advisory_lock(postgres_url, f"archive to {node.archive_place}", PostgresBounds()):
        run_beside(node, threading.Event(), reporter)
    assert SEAM not in log.settings()
    assert archive_figures(node.data_dir, NOW_MS)["last_round_age_s"] is None
    run_beside(node, threading.Event(), reporter)
    assert summary_of(log).left > 0
    assert_whole(log, postgres_url)


def test_an_exporter_for_all_nodes_lets_rows_leave_too(
    log: EventLog, postgres_url: str, tmp_path: Path
) -> None:
    played(log)
    node = _node(tmp_path, "exporter", postgres_url)
    command = (*POSTE, "export", "--watch", "--to", str(tmp_path / "archive"))
    named = ("--data-dir", str(node.data_dir), "--log", postgres_url)
    archive = {"enabled": "on", "rows_age_s_min": "0", "every_s": "0.05"}
    words = [
        word for name, value in archive.items() for word in ("--set", f"archive.{name}={value}")
    ]
    with Popen([*command, *named, *words], env=own_environment()) as watching:
        began_s = time.monotonic()
        while not archive_figures(node.data_dir, NOW_MS)["rows_left"]:
            assert time.monotonic() - began_s < WAIT_S
            time.sleep(0.05)
        watching.send_signal(signal.SIGINT)
        assert watching.wait(WAIT_S) == Exit.OK
    assert_whole(log, postgres_url)
    assert findings(open_place(node.archive_place)) == []
