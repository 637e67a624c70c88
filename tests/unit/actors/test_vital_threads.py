"""A host without one of its vital threads ends, and is started again."""

from __future__ import annotations

import logging
import os
import queue
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Never

import msgspec
import pytest
import ray

from actors.core.commands import CheckRegistered
from actors.core.limits import HostLimits
from actors.core.submissions import Submission
from actors.host.host import Host
from actors.host.host_connection import HostServer
from actors.host.host_term import HostTerm, LeaseKeeper
from actors.host.identity_host import HostOptions
from actors.host.port import EndHost
from actors.host.vital_thread import vital_thread
from actors.host.writer import Writer
from actors.ray.processes import RayDedicatedHost, RayIdentityHost
from eventstore.log.errors import UnsafeLog
from eventstore.log.event_log import EventLog
from eventstore.log.host_leases import HostLease
from eventstore.stores.host_lease_file import HostLeaseFile
from tests.unit.actors.given import host, unclaimed

WAIT_S = 10


def fault(*_: object) -> Never:
    raise ZeroDivisionError


@pytest.fixture
def owner(log: EventLog) -> Host:
    return host(log)


def writer(owner: Host, log: EventLog, _: Path) -> None:
    running = Writer(owner, log, incarnation="1", push_out=fault, limits=HostLimits())
    running.start()
    running.call(fault)


def memory(owner: Host, log: EventLog, _: Path) -> None:
    class Exhausted(Writer):
        def _execute(self, items: Sequence[tuple[str, Submission]]) -> Never:
            raise MemoryError

    running = Exhausted(owner, log, incarnation="1", push_out=fault, limits=HostLimits())
    running.start()
    running.submit(
        "edge-0", msgspec.msgpack.encode([unclaimed("did:x:me", CheckRegistered())]), fault
    )


def lease(_owner: Host, _log: EventLog, folder: Path) -> None:
    mine = HostLease("host-a", "a", "first", "127.0.0.1", 7001, b"token")
    leases = HostLeaseFile(folder / "hosts", monotonic=fault)
    LeaseKeeper(mine, leases, HostTerm(4.0), on_over=fault).start()


def accept(_owner: Host, _log: EventLog, _: Path) -> None:
    class Faulty(HostServer):
        def _accept(self, listener: socket.socket) -> None:
            with listener:
                super()._accept(listener)

        def _await_proof(self, accepted: socket.socket) -> None:
            accepted.close()
            fault()

    lease = Faulty(fault, fault, fault).listen("127.0.0.1", "host", "", "")
    socket.create_connection((lease.address, lease.port)).close()


def test_a_host_ends_even_if_it_cannot_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    codes: queue.SimpleQueue[int] = queue.SimpleQueue()
    monkeypatch.setattr(os, "_exit", codes.put)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    monkeypatch.setattr(logging.getLogger("actors.host.vital_thread"), "critical", fault)
    vital_thread("work", fault).start()
    assert codes.get(timeout=WAIT_S) == 70


@pytest.mark.parametrize("begin", [writer, memory, lease, accept])
def test_a_host_ends_with_any_of_its_vital_threads(
    owner: Host,
    log: EventLog,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    begin: Callable[[Host, EventLog, Path], None],
) -> None:
    codes: queue.SimpleQueue[int] = queue.SimpleQueue()
    monkeypatch.setattr(os, "_exit", codes.put)
    begin(owner, log, tmp_path)
    assert codes.get(timeout=WAIT_S) == 70


def test_a_dedicated_host_that_had_no_thread_left_to_end_ends_by_the_next_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()

    class Ending(RayDedicatedHost):
        def _end(self) -> None:
            ended.set()

    def full(_: threading.Thread) -> Never:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(sys, "setswitchinterval", lambda _: None)
    options = HostOptions("host", f"sqlite:{tmp_path}/log.db", [], HostLimits())
    host = Ending(options, lambda _: None)
    try:
        with monkeypatch.context() as limited:
            limited.setattr(threading.Thread, "start", full)
            with pytest.raises(RuntimeError):
                host.answer(EndHost())
        host.answer(EndHost())
        assert ended.wait(WAIT_S)
    finally:
        host.stop()


def test_a_dedicated_host_ends_even_if_it_does_not_stop_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes: queue.SimpleQueue[int] = queue.SimpleQueue()
    options = HostOptions("host", f"sqlite:{tmp_path}/log.db", [], HostLimits())
    monkeypatch.setattr(sys, "setswitchinterval", lambda _: None)
    host = RayDedicatedHost(options, lambda _: None)
    try:
        with monkeypatch.context() as broken:
            broken.setattr(os, "_exit", codes.put)
            broken.setattr(host, "stop", fault)
            host.answer(EndHost())
            assert codes.get(timeout=WAIT_S) == 0
    finally:
        host.stop()


@pytest.mark.parametrize(
    ("why", "is_restart", "is_tried_again"),
    [
        (MemoryError, False, False),
        (MemoryError, True, False),
        (UnsafeLog, True, False),
        (OSError, True, False),
        (UnsafeLog, False, True),  # of a database that was away when the mediator started
    ],
)
def test_a_host_that_cannot_start_again_says_why_and_ends_after_a_pause(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    why: type[Exception],
    is_restart: bool,
    is_tried_again: bool,
) -> None:
    steps: list[float] = []
    monkeypatch.setattr(time, "sleep", steps.append)
    monkeypatch.setattr(os, "_exit", steps.append)
    with pytest.raises(why):  # only because this process goes on
        start(tmp_path, monkeypatch, why, is_restart=is_restart, is_tried_again=is_tried_again)
    pause_s, code = steps
    assert (pause_s >= 1, code) == (True, 70)
    assert caplog.records[0].exc_info is not None
    assert caplog.records[0].exc_info[0] is why


def test_a_first_start_that_fails_says_why_and_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(UnsafeLog):
        start(tmp_path, monkeypatch, UnsafeLog, is_restart=False)
    (line,) = caplog.records
    assert line.exc_info is not None
    assert line.exc_info[0] is UnsafeLog


def start(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    why: type[Exception],
    *,
    is_restart: bool,
    is_tried_again: bool = False,
) -> None:
    """Start a host that cannot start; Ray says whether it has started it before."""

    class Context:
        was_current_actor_reconstructed = is_restart

    def prepare(_name: str) -> Never:
        raise why

    monkeypatch.setattr(ray, "get_runtime_context", Context)
    options = HostOptions("host", f"sqlite:{folder}/log.db", [], HostLimits())
    RayIdentityHost(options, prepare, is_tried_again=is_tried_again)
