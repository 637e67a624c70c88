"""The life of ``poste serve``: what stops its start, and how it ends."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import psycopg
import pytest

from http_edge.clients.decentrl import EventToSave
from http_edge.crypto.mediator_keys import create, new_keys
from http_edge.server.exits import Exit
from http_edge.server.log_check import check_log
from http_edge.settings.settings import Settings
from tests.cluster.accounts import (
    SOURCES,
    Socket,
    befriend,
    client,
    in_flight,
    message,
    newcomer,
    post,
    until,
    waiting_payloads,
)
from tests.cluster.server import (
    EDGE,
    GCS,
    HOST,
    LINGERING,
    MEDIATOR_DID,
    RAYLET,
    Server,
    own_environment,
    processes_of,
    ready_url,
    send,
    serve_command,
)
from tests.crash.owner import here
from tests.full_pipe import fill

pytestmark = pytest.mark.cluster
REFUSED_S_MAX = 60.0
STARTING = "starting Ray"
RAYS = (GCS, RAYLET)
"""What Ray starts, in this order."""
DRAINED_S_MAX = 10.0
RAY_LOST_S_MAX = 30.0
AGAIN_S = 0.02


def refusal(data_dir: Path, /, *codes: Exit, **settings: str) -> str:
    """Why this start is refused as a mistake of its settings."""
    ended = subprocess.run(
        serve_command(data_dir, **settings),
        capture_output=True,
        text=True,
        check=False,
        env=own_environment(),
        timeout=REFUSED_S_MAX,
    )
    (code,) = codes or (Exit.USAGE,)
    assert (ended.returncode, ended.stdout) == (code, ""), ended.stderr
    assert "Traceback" not in ended.stderr
    return ended.stderr


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"no.such": "1"}, "no.such"),
        ({"listen": "192.0.2.77:0"}, "192.0.2.77:0"),
    ],
)
def test_a_mistake_in_the_settings_stops_the_start(
    tmp_path: Path, settings: dict[str, str], named: str
) -> None:
    assert named in refusal(tmp_path, **{"listen": "127.0.0.1:0", **settings})


def test_a_port_in_use_is_refused(server: Server, tmp_path: Path) -> None:
    listen = server.url.removeprefix("http://")
    assert listen in refusal(tmp_path, listen=listen)


def test_a_data_directory_in_use_is_refused(server: Server) -> None:
    reason = refusal(server.data_dir, Exit.BUSY, listen="127.0.0.1:0")
    assert f"Another mediator is running on {server.data_dir}" in reason


def test_a_log_is_not_served_with_other_keys_and_none_are_made_for_it(tmp_path: Path) -> None:
    settings = Settings(did=MEDIATOR_DID, data_dir=tmp_path)
    check_log(settings)  # makes both
    backup = settings.keys_path.rename(tmp_path / "backup.json")
    assert "is missing, but the log belongs to the key" in refusal(
        tmp_path, Exit.UNSAFE, listen="127.0.0.1:0", did=MEDIATOR_DID
    )
    assert not settings.keys_path.exists()
    create(settings.keys_path, new_keys())
    assert "The log belongs to the mediator with the key" in refusal(
        tmp_path, Exit.UNSAFE, listen="127.0.0.1:0", did=MEDIATOR_DID
    )
    backup.rename(settings.keys_path)
    check_log(settings)


def test_a_host_that_cannot_read_its_log_ends_the_first_start_soon(tmp_path: Path) -> None:
    settings = Settings(did=MEDIATOR_DID, data_dir=tmp_path)
    check_log(settings)
    with here(settings.log_dsn):
        pass  # owned a shard of it, which is a row
    with closing(sqlite3.connect(tmp_path / "log.db")) as log:
        assert log.execute("UPDATE stored_events SET state = x'00'").rowcount > 0
        log.commit()
    reason = refusal(tmp_path, Exit.INTERNAL, listen="127.0.0.1:0", did=MEDIATOR_DID)
    assert "The mediator did not become ready" in reason
    events = [json.loads(line) for line in reason.splitlines() if line.startswith("{")]
    (line,) = [event for event in events if event["event"] == "the start failed"]
    assert line["error"] == "CorruptRow"
    assert events[-1]["exit_code"] == Exit.INTERNAL


@pytest.mark.postgres
def test_a_node_whose_clock_is_not_the_databases_does_not_start(
    tmp_path: Path, postgres_url: str
) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        # As far as its own statements go, this database is a minute and a half ahead.
        connection.execute("CREATE SCHEMA ahead")
        connection.execute(
            "CREATE FUNCTION ahead.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS"
            " $$SELECT pg_catalog.clock_timestamp() + interval '90 s'$$"
        )
        name = connection.info.dbname
        connection.execute(f'ALTER DATABASE "{name}" SET search_path = public, ahead, pg_catalog')
    reason = refusal(
        tmp_path, Exit.UNSAFE, listen="127.0.0.1:0", did=MEDIATOR_DID, log=postgres_url
    )
    assert "s behind that of the database" in reason
    assert "limits.clock_off_s_max" in reason


@pytest.fixture(scope="module")
def unlucky_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A mediator on a machine that has no memory to spare, and that keeps what a crash leaves, in
    a directory that has a package of its name."""
    directory = tmp_path_factory.mktemp("unlucky")
    (directory / "http_edge.py").write_text("raise ImportError('this is another one')")
    server = Server(directory / "data")
    # To Ray, any use of memory is now too much. As for the installed command, Python has that
    # one's own directory in place of the current one.
    unusual = {"RAY_memory_usage_threshold": "0.001", "PYTHONSAFEPATH": "1"}
    server.environment = {**server.environment, **unusual}
    server.prefix = ("env", "-C", str(directory), "prlimit", "--core=unlimited")
    with server:
        yield server


@pytest.fixture
def unlucky(unlucky_once: Server) -> Server:
    """The same, which a test may end in any way: it starts again for the next one."""
    if unlucky_once.exit_code(0) is not None:
        unlucky_once.kill_everything()
        unlucky_once.start()
    return unlucky_once


def test_no_process_imports_from_the_directory_where_the_mediator_is_started(
    unlucky: Server,
) -> None:
    assert len(unlucky.pids("ray::Ray")) == 2
    assert "this is another one" not in (unlucky.data_dir / "stderr").read_text()


async def test_a_machine_that_is_short_of_memory_ends_no_process_of_a_small_mediator(
    unlucky: Server,
) -> None:
    serving = unlucky.pids("ray::Ray")
    # The kernel ends none of them before a larger process.
    assert [_oom_score_adj(pid) for pid in serving] == [_oom_score_adj(unlucky.pid)] * 2
    async with client(unlucky.url) as mediator:
        await newcomer(mediator, "alice")
    assert unlucky.pids("ray::Ray") == serving


def _oom_score_adj(pid: int) -> str:
    return Path(f"/proc/{pid}/oom_score_adj").read_text()


def test_no_process_leaves_its_memory_in_a_file(unlucky: Server) -> None:
    """Keys and erased contents are in it; the system may write it where others look.

    With a limit of 0 it would still start a program for it (core(5)), with 1 it does not.
    """
    found = said_by_all(unlucky, "limits")
    soft = {line.split()[4] for text in found for line in text.splitlines() if "core" in line}
    assert len(found) > len(RAYS)
    assert soft == {"1"}


async def test_sigterm_lets_commands_in_flight_finish_and_leaves_the_log_alone(
    unlucky: Server,
) -> None:
    (folder,) = ray_folders(unlucky)
    with closing(unlucky.log()) as log:
        before = log.position()
    # Ray opens its folder to all: it stands in one that its owner alone can enter.
    assert folder.parent.parent.stat().st_mode & 0o077 == 0
    assert folder.is_dir()
    async with client(unlucky.url) as mediator:
        writer, reader = await newcomer(mediator, "writer"), await newcomer(mediator, "reader")
        await befriend(writer, reader)
        socket = await Socket.open(reader)
        (host,) = unlucky.pids(HOST)
        send(host, signal.SIGSTOP)
        sent = [message(writer, reader, f"{n}") for n in range(20)]
        commands = await in_flight(mediator, sent)
        ending = asyncio.create_task(asyncio.to_thread(unlucky.terminate))
        assert await socket.close_code() == 1001
        send(host, signal.SIGCONT)
        answers = [await task for task in commands]
        code, seconds = await ending
    assert [answer for answer in answers if answer[0] != 200] == []
    assert code == 0
    assert seconds < DRAINED_S_MAX
    unlucky.wait_until_gone()
    assert not folder.exists()
    with closing(unlucky.log()) as log:
        topics = [row.topic for row in log.read_log(after=before)]
    stored = [topic for topic in topics if "message" in topic]
    assert stored == ["message-queued.2"] * 20
    the_log_tells_the_life(unlucky, but_not=writer.identity.did)


async def test_an_edge_that_cannot_start_does_not_cut_short_what_others_answer(
    tmp_path: Path,
) -> None:
    settings = {"edges": "2", "limits.drain_s_max": "30"}
    with Server(tmp_path / "data", **settings) as server:
        stderr = server.data_dir / "stderr"
        (server.data_dir / "mediator-keys.json").rename(server.data_dir / "away")
        send(server.pids(EDGE)[0], signal.SIGKILL)

        async def has_failed() -> bool:
            return "the start failed" in stderr.read_text()

        async with client(server.url) as mediator:
            writer, reader = await newcomer(mediator, "writer"), await newcomer(mediator, "reader")
            await befriend(writer, reader)
            await until(has_failed)
            (host,) = server.pids(HOST)
            send(host, signal.SIGSTOP)
            (command,) = await in_flight(mediator, [message(writer, reader, "last")])
            send(server.pid, signal.SIGTERM)
            # Longer than the edge that cannot start takes to end.
            assert await asyncio.to_thread(server.exit_code, DRAINED_S_MAX) is None
            send(host, signal.SIGCONT)
            assert (await command)[0] == 200
            assert await asyncio.to_thread(server.exit_code, DRAINED_S_MAX) == Exit.OK


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_again_and_again_does_not_cut_the_stop_short(
    number: signal.Signals, unlucky: Server
) -> None:
    (folder,) = ray_folders(unlucky)
    code = None
    for _ in range(int(DRAINED_S_MAX / AGAIN_S)):
        send(unlucky.pid, number)
        code = unlucky.exit_code(AGAIN_S)
        if code is not None:
            break
    assert code == 0
    unlucky.wait_until_gone()
    assert not folder.exists()


def the_log_tells_the_life(server: Server, *, but_not: str) -> None:
    """What stands in the lines of the last start and its clean stop."""
    said = (server.data_dir / "stderr").read_text()
    texts = said.splitlines()
    starts = [number for number, text in enumerate(texts) if '"event": "starting"' in text]
    lines = [json.loads(text) for text in texts[starts[-1] :]]
    # Paths of tests can be too long for Ray's sockets, which is said then.
    events = [line["event"] for line in lines if line["level"] == "info"]
    assert [event for event in events if not event.startswith("Ray's folder")] == [
        "starting",
        "starting Ray",
        "starting hosts and edges",
        "ready",
        "first registration since the start",
        "stopping",
        "stopped",
    ]
    by_event = {line["event"]: line for line in lines}
    assert by_event["ready"]["url"] == server.url
    assert by_event["ready"]["mediator_did"] == MEDIATOR_DID
    assert by_event["ready"]["seconds"] > 0
    assert by_event["stopping"]["signal"] == "SIGTERM"
    assert by_event["stopped"]["exit_code"] == 0
    assert but_not not in said


@pytest.mark.parametrize("moment", [STARTING, *RAYS, "starting hosts and edges"])
def test_sigterm_during_the_start_ends_it_without_ready(moment: str, tmp_path: Path) -> None:
    with subprocess.Popen(
        serve_command(tmp_path, listen="127.0.0.1:0"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=own_environment(),
        start_new_session=True,
    ) as process:
        assert process.stderr is not None
        events = []
        for line in process.stderr:
            events.append(json.loads(line)["event"])
            if events[-1] == STARTING and moment in RAYS:
                while moment not in [name for _, name in processes_of([process.pid])]:
                    assert process.poll() is None
                process.terminate()
            if events[-1] == moment:
                process.terminate()
        output, _ = process.communicate(timeout=REFUSED_S_MAX)
    assert (process.returncode, output) == (0, b"")
    assert events[-2:] == ["stopping", "stopped"]


def test_sigterm_ends_a_mediator_whose_stderr_is_not_read(tmp_path: Path) -> None:
    unread, stderr = os.pipe()
    with subprocess.Popen(
        serve_command(tmp_path, listen="127.0.0.1:0"),
        stdout=subprocess.PIPE,
        bufsize=0,
        stderr=stderr,
        env=own_environment(),
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        try:
            assert ready_url(process.stdout)
            fill(stderr)
            process.terminate()
            assert process.wait(DRAINED_S_MAX) == Exit.OK
        finally:
            process.kill()
            os.close(stderr)
            os.close(unread)


def said_by_all(server: Server, file: str) -> list[str]:
    """What this file of /proc says of each process that has not ended meanwhile, as some of Ray's
    do at any time."""
    found = []
    for pid, _ in server.processes():
        with suppress(FileNotFoundError, ProcessLookupError):
            found.append(Path(f"/proc/{pid}/{file}").read_text(errors="replace"))
    return found


def ray_folders(server: Server) -> set[Path]:
    """The folders of Ray whose sockets the processes of a mediator have open."""
    names = "\0".join(said_by_all(server, "cmdline"))
    return {Path(name) for name in re.findall(r"(?:/[\w.-]+)+/session_[\d_-]+", names)}


async def test_a_killed_mediator_leaves_nothing_running_and_returns_with_all_it_held(
    unlucky: Server,
) -> None:
    async with client(unlucky.url) as mediator:
        writer, reader = await newcomer(mediator, "writer"), await newcomer(mediator, "reader")
        await befriend(writer, reader)
        accepted = message(writer, reader, "held")
        assert (await post(mediator, accepted))[0] == 200
        saved = EventToSave(
            sender_did=reader.identity.did,
            recipient_did=writer.identity.did,
            timestamp_s=SOURCES.now_ms() // 1000,
            payload="history",
            encrypted_tags=[reader.identity.encrypt_tag("tag")],
        )
        await reader.save_events([saved])
        await reader.publish("news", '{"title":"published"}')
        unlucky.kill()
    unlucky.wait_until_gone(but=LINGERING)
    before = unlucky.log()
    held = before.position()

    unlucky.start()
    async with client(unlucky.url) as mediator:
        writer, reader = mediator.as_(writer.identity), mediator.as_(reader.identity)
        assert await post(mediator, accepted) == (
            401,
            {"type": "ERROR", "code": "DUPLICATE_NONCE"},
        )
        assert await waiting_payloads(reader) == ["held"]
        assert [contract.requestor_did async for contract in reader.contracts()] == [
            writer.identity.did
        ]
        assert [e.payload async for e in reader.saved_events(tags=["tag"])] == ["history"]
        events = [e.event async for e in mediator.public_events(reader.identity.did)]
        assert events == ['{"title":"published"}']
        assert await writer.send(reader.identity.did, "after the restart")
    assert before.position() > held
    before.close()


def test_a_mediator_that_has_lost_ray_ends_soon_so_that_it_is_started_again(
    unlucky: Server,
) -> None:
    for pid, _ in list(unlucky.processes()):
        if pid != unlucky.pid:
            send(pid, signal.SIGKILL)
    assert unlucky.exit_code(RAY_LOST_S_MAX)  # neither served on nor ended well


def test_a_mediator_whose_raylet_hangs_ends_so_that_it_is_started_again(tmp_path: Path) -> None:
    server = Server(tmp_path / "data")
    soon = dict.fromkeys(("initial_delay_ms", "period_ms", "timeout_ms"), "1000")
    soon["failure_threshold"] = "3"
    checks = {f"RAY_health_check_{name}": value for name, value in soon.items()}
    server.environment = {**server.environment, **checks}
    with server:
        (raylet,) = server.pids(RAYLET)
        send(raylet, signal.SIGSTOP)
        assert server.exit_code(RAY_LOST_S_MAX) == Exit.INTERNAL
        server.wait_until_gone()
        assert "Ray does not end" in (server.data_dir / "stderr").read_text().splitlines()[-1]


def test_sigterm_ends_a_mediator_in_order_while_rays_control_service_hangs(unlucky: Server) -> None:
    (gcs,) = unlucky.pids(GCS)
    send(gcs, signal.SIGSTOP)
    assert unlucky.terminate()[0] == Exit.OK
    unlucky.wait_until_gone()


LOOPBACK = {
    "0100007F",
    "0000000000000000FFFF00000100007F",
    "00000000000000000000000001000000",
}


def listening(pids: list[int]) -> set[str]:
    """The addresses, as the kernel writes them, on which these processes accept connections."""
    inodes: set[str] = set()
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):
            for descriptor in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(FileNotFoundError):  # closed meanwhile
                    inodes.add(str(descriptor.readlink()))
    rows = [
        row.split()
        for table in ("tcp", "tcp6")
        for row in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
    ]
    return {
        row[1].partition(":")[0]
        for row in rows
        if row[3] == "0A" and f"socket:[{row[9]}]" in inodes
    }


def test_every_port_of_a_mediator_rays_included_is_on_loopback(server: Server) -> None:
    found = listening([pid for pid, _ in server.processes()])
    assert found
    assert found <= LOOPBACK


def test_the_main_process_loads_neither_what_edges_serve_with_nor_postgresql(
    server: Server,
) -> None:
    """Without scrapes and push it needs none of aiohttp, and on SQLite none of psycopg."""

    def loaded(pid: int) -> set[str]:
        mapped = Path(f"/proc/{pid}/maps").read_text()
        return {name for name in ("/aiohttp/", "/psycopg") if name in mapped}

    (edge,) = server.pids(EDGE)
    assert loaded(edge) == {"/aiohttp/"}, "libraries in C are seen there"
    assert loaded(server.pid) == set()


def test_ray_has_no_process_for_what_nothing_here_reads(server: Server) -> None:
    commands = said_by_all(server, "cmdline")
    pythons = [found for found in commands if "raylet/raylet" not in found]  # that names its agents
    names = ("dashboard.py", "monitor.py", "/agent.py", "/agent/main.py", "ray::Dashboard")
    unused = (*names, "ray::RuntimeEnvAgent")
    assert [found for found in pythons if any(name in found for name in unused)] == []
