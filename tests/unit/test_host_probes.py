"""An edge notices that a host restarted, whatever happens to its probes of this host and others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from actors.core.partitioning import Placement
from actors.core.replies import Notice
from actors.host.connected_host import Caller, ConnectedHostPort, ignored
from actors.host.host_connection import Answered, HostServer
from actors.host.host_finder import HostFinder
from actors.host.port import HostPort
from eventstore.stores.open_log import open_host_leases
from http_edge.dispatch.hub import SERVICE_RESTART
from http_edge.dispatch.routes import Routes
from http_edge.server.edge import Edge
from http_edge.settings.settings import DidComm, Settings
from tests.edge.mediator import KEYS
from tests.unit.dispatch.recording_host import RecordingHost

WAIT_S = 10.0
LONG_S = 600.0


class Closing:
    """A subscriber that waits to be closed."""

    def __init__(self) -> None:
        self.code: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def notify(self, notice: Notice) -> None:
        raise AssertionError(notice)

    def close(self, code: int) -> None:
        if not self.code.done():
            self.code.set_result(code)


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("http_edge.server.edge._PROBE_S", 0)


@asynccontextmanager
async def edge_of(data_dir: Path, ports: Mapping[str, HostPort]) -> AsyncIterator[Edge]:
    """An edge that listens, and reaches these hosts."""
    didcomm = DidComm(enabled=False)  # else a search for queues asks the hosts, too
    settings = Settings(data_dir=data_dir, hosts=len(ports), didcomm=didcomm).bound_to(0, 0)
    routes = Routes.fixed(Placement(shards=16, hosts=len(ports)))
    edge = Edge("edge-0", settings, KEYS, ports.__getitem__, routes=routes)
    await edge.start()
    try:
        async with asyncio.timeout(WAIT_S):
            yield edge
    finally:
        await edge.stop(0)


async def test_a_host_that_does_not_answer_delays_no_probe_of_another(tmp_path: Path) -> None:
    silent, other = RecordingHost(), RecordingHost()
    silent.hold()
    async with edge_of(tmp_path, {"host-0": silent, "host-1": other}) as edge:
        await asyncio.gather(silent.called.wait(), other.called.wait())
        placement = edge._gateway.routes.placement
        dids = (f"did:x:{number}" for number in range(99))
        did = next(d for d in dids if placement.host_of(placement.partition_of(d)) == "host-1")
        socket = Closing()
        edge._hub.add(did, socket)
        other.incarnation_name = "second"
        assert await socket.code == SERVICE_RESTART
        assert len(silent.held) == 1, "a host has one probe at a time"


class FullAtFirst:
    """Fails as the first thread of a process does that has too many; then calls."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call
        self.has_failed = False

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        if not self.has_failed:
            self.has_failed = True
            raise RuntimeError("can't start new thread")
        return self._call(*arguments, **options)


async def test_a_host_is_probed_again_after_a_probe_had_no_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    loop, is_probed = asyncio.get_running_loop(), asyncio.Event()

    def no_batch(*_: object) -> None:
        raise AssertionError("a probe brings no batch")

    def answer(_question: bytes, _answered: Answered) -> None:
        loop.call_soon_threadsafe(is_probed.set)

    server = HostServer(no_batch, answer, ignored)
    lease = server.listen("127.0.0.1", "host-0", "", "first")
    with closing(open_host_leases(Settings(data_dir=tmp_path).log_dsn)) as leases:
        leases.take(lease, LONG_S)
        finder = HostFinder([leases])
        thread = finder._threads[0]
        monkeypatch.setattr(thread, "submit", FullAtFirst(thread.submit))
        port = ConnectedHostPort(Caller("edge-0", WAIT_S), "host-0", finder)
        async with edge_of(tmp_path, {"host-0": port}):
            await is_probed.wait()
        port.close()
    server.stop()
    assert "the probe of host-0 failed" in caplog.messages
