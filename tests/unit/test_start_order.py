"""The start of ``poste serve``: operators find it as soon as its listener answers, not before."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import Any

import pytest

from actors.host.connected_host import ignored
from actors.host.host_connection import Answered, HostServer
from actors.placement import placer_link
from actors.placement.port import PlacerLease
from eventstore.log.host_leases import LEASE_S_MAX, HostLease
from eventstore.stores.open_log import open_host_leases
from http_edge.crypto.mediator_keys import load_or_create, operators_token
from http_edge.server import serve
from http_edge.server.data_dir import LOCK, locked
from http_edge.server.exits import Exit, Stop
from http_edge.settings.settings import Limits, Settings
from tests.full_disk import files_up_to
from tests.unit.test_stop_order import handlers_of_signals_kept

WAIT_S = 10.0
LONG_S = 600.0
NOT_HERE = "192.0.2.1"
"""An address for documentation, which no machine has."""


def mediator_of(settings: Settings, away: dict[int, str] | None = None) -> Any:
    """A mediator of these settings whose other parts are only kept."""
    nothing: Any = object()
    parts: Any = away or {}, None, nothing, nothing, nothing
    return serve._Mediator(settings, *parts, prepare=nothing, started_s=0)


class Waiting:
    """A question to an actor of Ray that is answered when the test says so."""

    def __init__(self) -> None:
        self.came, self.may_answer = asyncio.Event(), asyncio.Event()
        self.listening = self.ping = self

    async def remote(self) -> None:
        self.came.set()
        await self.may_answer.wait()


async def test_the_operators_address_is_there_once_an_edge_listens_though_hosts_are_not_ready(
    tmp_path: Path,
) -> None:
    settings = Settings(data_dir=tmp_path).bound_to(8080, 9090)
    mediator: Any = mediator_of(settings)
    edge, host = Waiting(), Waiting()
    mediator._edges, mediator._hosts = {"edge-0": edge}, {"host-0": host}
    starting = asyncio.create_task(mediator._until_ready())
    async with asyncio.timeout(WAIT_S):
        await edge.came.wait()
        assert not settings.operators_address_path.exists()
        edge.may_answer.set()
        await host.came.wait()
        assert settings.operators_address_path.read_text() == settings.operators_url
        host.may_answer.set()
        await starting


def test_a_disk_that_takes_no_more_when_the_url_is_noted_is_named_and_keeps_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(data_dir=tmp_path).bound_to(8080, 9090)
    load_or_create(settings.keys_path)
    operators_token(settings.operators_token_path)
    settings.served_url_path.write_text("https://last.example")
    monkeypatch.setattr(serve, "_start_ray", lambda _: tmp_path)
    nothing: Any = object()
    refused = pytest.raises(Stop, match="cannot be used: File too large")
    with handlers_of_signals_kept(), files_up_to(8), refused:
        serve._served(settings, {}, None, nothing, nothing, started_s=0)
    assert settings.served_url_path.read_text() == "https://last.example"


def test_no_signal_ends_a_start_as_if_it_were_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(data_dir=tmp_path).bound_to(8080, 9090)
    load_or_create(settings.keys_path)
    operators_token(settings.operators_token_path)
    nothing: Any = object()
    handle, marked_before = signal.signal, list[bool]()

    def is_marked() -> bool:
        return bool((tmp_path / LOCK).read_bytes())

    def handled(number: signal.Signals, handler: Any) -> Any:
        marked_before.append(is_marked())
        return handle(number, handler)

    def start_ray(_: Path) -> Path:
        assert is_marked()
        raise Stop(Exit.UNREACHABLE, "Ray does not start in this test")

    monkeypatch.setattr(serve, "_start_ray", start_ray)
    with handlers_of_signals_kept(), locked(tmp_path):
        monkeypatch.setattr(signal, "signal", handled)
        with pytest.raises(Stop, match="in this test"):
            serve._served(settings, {}, None, nothing, nothing, started_s=0)
        monkeypatch.undo()
    assert set(marked_before) == {False}


async def test_a_disk_that_takes_no_more_when_the_operators_address_is_noted_is_named(
    tmp_path: Path,
) -> None:
    settings = Settings(data_dir=tmp_path).bound_to(8080, 9090)
    mediator: Any = mediator_of(settings)
    with files_up_to(8), pytest.raises(Stop, match="cannot be used: File too large"):
        await mediator._until_ready()
    assert not settings.operators_address_path.exists()


async def test_a_signal_ends_a_node_that_waits_for_its_name_and_it_starts_no_host_and_no_edge(
    tmp_path: Path,
) -> None:
    limits = Limits(host_lease_s=LEASE_S_MAX)
    settings = Settings(data_dir=tmp_path, limits=limits).on_node("a", "127.0.0.1")
    mediator: Any = mediator_of(settings)
    with closing(open_host_leases(settings.log_dsn)) as leases:
        leases.take(HostLease("host-a-0", "a", "killed", "127.0.0.1", 1, b""), LEASE_S_MAX)
        serving = asyncio.create_task(mediator.serve([]))
        async with asyncio.timeout(WAIT_S):
            while mediator._node is None:  # noqa: ASYNC110 - its start sets no event
                await asyncio.sleep(0)
            mediator._stop_on(signal.SIGTERM)
            assert await serving == Exit.OK
    assert (mediator._node._roles, mediator._hosts, mediator._edges) == ({}, {}, {})


@contextmanager
def silent_placer(settings: Settings) -> Iterator[asyncio.Event]:
    """Another node's placer that answers nothing; yields what happens when it gets a question."""
    loop, has_question = asyncio.get_running_loop(), asyncio.Event()

    def no_batch(*_: object) -> None:
        raise AssertionError("a placer gets no batches")

    def no_answer(_question: bytes, _answered: Answered) -> None:
        loop.call_soon_threadsafe(has_question.set)

    silent, placer = HostServer(no_batch, no_answer, ignored), PlacerLease.of(0, databases=1)
    lease = silent.listen("127.0.0.1", placer.name, "b", "silent", protocol=placer.protocol)
    with closing(open_host_leases(settings.log_dsn)) as leases:
        leases.take(lease, LONG_S)
        yield has_question
    silent.stop()


async def test_a_signal_ends_a_node_that_waits_to_learn_whether_others_serve_what_is_away_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placer_link, "_ANSWER_S_MAX", LONG_S)
    settings = Settings(data_dir=tmp_path).on_node("a", "127.0.0.1")
    mediator: Any = mediator_of(settings, {1: "its port failed"})
    with silent_placer(settings) as has_question:
        serving = asyncio.create_task(mediator.serve([]))
        async with asyncio.timeout(WAIT_S):
            await has_question.wait()
            mediator._stop_on(signal.SIGTERM)
            assert await serving == Exit.OK
    assert (mediator._hosts, mediator._edges) == ({}, {})


async def test_a_node_that_fails_to_stand_by_as_a_placer_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without its part as a placer it would serve, and never take over from another node."""
    monkeypatch.setattr(placer_link, "_ANSWER_S_MAX", LONG_S)
    settings = Settings(data_dir=tmp_path).on_node("a", NOT_HERE)
    mediator: Any = mediator_of(settings, {1: "its port failed"})
    with silent_placer(settings):
        async with asyncio.timeout(WAIT_S):
            assert await mediator.serve([]) == Exit.INTERNAL
    assert "the main process failed" in caplog.messages
    assert (mediator._hosts, mediator._edges) == ({}, {})


async def test_a_database_is_looked_at_again_when_there_was_no_thread_to_look_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = list[int]()

    def full(*_: object) -> str:
        looks.append(1)
        if len(looks) == 1:
            raise RuntimeError("can't start new thread")
        raise ReferenceError("looked at again")

    monkeypatch.setattr(serve, "_AWAY_S", 0)
    monkeypatch.setattr(serve, "_aside", full)
    settings = Settings(data_dir=tmp_path)
    mediator: Any = mediator_of(settings, {0: ""})
    with pytest.raises(ReferenceError):
        await mediator._serve_once_back(0)


async def test_a_mediator_ends_when_a_part_of_its_main_process_fails(tmp_path: Path) -> None:
    async def failing() -> None:
        raise RuntimeError("can't start new thread")

    settings = Settings(data_dir=tmp_path)
    mediator: Any = mediator_of(settings)
    mediator._vital(failing())
    async with asyncio.timeout(WAIT_S):
        await mediator._stopping.wait()
    assert mediator._exit == Exit.INTERNAL


def test_a_mediator_serves_though_what_it_prints_finds_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    mediator = mediator_of(Settings(data_dir=tmp_path))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as systemd:
        systemd.bind("notify")
        monkeypatch.setenv("NOTIFY_SOCKET", "notify")
        with suppress(OSError), Path("/dev/full").open("w") as full, redirect_stdout(full):
            mediator._announce()
        assert systemd.recv(100) == b"READY=1"


@pytest.mark.parametrize(
    "address", ["notify", f"@poste-test-notify-{os.getpid()}"], ids=["in a file", "abstract"]
)
async def test_systemd_learns_that_the_mediator_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.chdir(tmp_path)  # the whole path may be longer than that of a socket may be
    settings = Settings(data_dir=tmp_path)
    mediator: Any = mediator_of(settings)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as systemd:
        systemd.bind(address.replace("@", "\0"))
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        mediator._announce()
        assert systemd.recv(100) == b"READY=1"


@pytest.mark.parametrize(
    ("path", "typed"),
    [("{}/elsewhere:{}/its own", "poste"), ("{}/elsewhere", "'{}/its own/poste'")],
    ids=["on the path", "not on the path"],
)
async def test_what_is_next_can_be_typed_where_the_mediator_was_started(
    path: str,
    typed: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    program = tmp_path / "its own" / "poste"
    program.parent.mkdir()
    program.touch(0o755)
    monkeypatch.setattr("sys.argv", [str(program), "serve"])
    monkeypatch.setenv("PATH", path.replace("{}", str(tmp_path)))
    settings = Settings(data_dir=tmp_path).bound_to(8080, 9090)
    mediator = mediator_of(settings)
    mediator._announce()
    said = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    poste = typed.replace("{}", str(tmp_path))
    assert [rest for word, rest in said if word == "Next"] == [
        f"{poste} demo --url http://127.0.0.1:8080",
        f"{poste} demo didcomm --url http://127.0.0.1:8080",
    ]
