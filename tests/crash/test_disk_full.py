"""A full disk refuses, loses nothing, and needs no operator when there is room again."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from http_edge.clients.decentrl import Account, MediatorClient
from tests.cluster.accounts import (
    befriend,
    client,
    message,
    newcomer,
    post,
    until,
    waiting_payloads,
)
from tests.cluster.server import HOST, Server, ended, send
from tests.crash.conftest import LEFT_BYTES, Ballast, Report
from tests.crash.storage import stored_texts

pytestmark = [pytest.mark.crash, pytest.mark.cluster]
UNAVAILABLE = (503, {"type": "ERROR", "code": "TEMPORARILY_UNAVAILABLE"})
TEXT_BYTES = 16 * 1024
SERVED_AGAIN_S_MAX = 10.0


@pytest.fixture(scope="module")
def server(small_disk: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = f"sqlite://{small_disk / 'log.db'}"
    with Server(tmp_path_factory.mktemp("full") / "data", log=log) as server:
        yield server


async def fill(mediator: MediatorClient, writer: Account, reader: Account, name: str) -> list[str]:
    """Messages until ten in a row were unavailable: those that were accepted."""
    accepted: list[str] = []
    number = refused = 0
    while refused < 10:
        text = f"{name} {number} ".ljust(TEXT_BYTES, ".")
        answer = await post(mediator, message(writer, reader, text))
        if answer == UNAVAILABLE:
            refused += 1
        else:
            assert answer[0] == 200, answer
            accepted.append(text)
            refused = 0
        number += 1
        assert number * TEXT_BYTES < 2 * LEFT_BYTES, "the disk does not fill"
    return accepted


@pytest.mark.parametrize("killed", [False, True], ids=["goes on", "host killed while full"])
async def test_a_full_disk_refuses_and_service_returns_by_itself(
    server: Server, ballast: Ballast, report: Report, killed: bool
) -> None:
    async with client(server.url) as mediator:
        writer, reader = await newcomer(mediator, "writer"), await newcomer(mediator, "reader")
        await befriend(writer, reader)
        ballast.take()
        accepted = await fill(mediator, writer, reader, f"{killed}")
        if killed:
            (host,) = server.pids(HOST)
            send(host, signal.SIGKILL)
            assert await asyncio.to_thread(ended, host, SERVED_AGAIN_S_MAX)
            late = message(writer, reader, f"{killed} while full")
            assert await post(mediator, late) == UNAVAILABLE
        ballast.throw_off()
        freed = time.monotonic()
        await until(lambda: writer.send(reader.identity.did, f"{killed} after"))
        seconds = time.monotonic() - freed
        waiting = await waiting_payloads(reader)
        log = server.log()
        assert [t for t in stored_texts(log) if t.startswith(f"{killed} ")] == waiting
        log.close()
    report(f"{len(accepted)} accepted, 0 lost; served {seconds:.1f} s after space was freed")
    assert seconds < SERVED_AGAIN_S_MAX
    assert [text for text in waiting if text in set(accepted)] == accepted
    assert waiting[-1] == f"{killed} after"
    assert len(set(waiting)) == len(waiting)
