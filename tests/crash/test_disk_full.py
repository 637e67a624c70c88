"""A full disk refuses, loses nothing, and needs no operator when there is room again.

Wallets and their senders are refused in the words of their protocols.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import aiohttp
import pytest

from http_edge.clients.decentrl import Account, MediatorClient
from http_edge.clients.didcomm import MediatorRefused, ProblemReported
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
from tests.cluster.wallets import MediatedAgent, served
from tests.crash.conftest import LEFT_BYTES, Ballast, Report
from tests.crash.storage import stored_texts

pytestmark = [
    pytest.mark.crash,
    pytest.mark.cluster,
    pytest.mark.parametrize("killed", [False, True], ids=["goes on", "host killed while full"]),
]
TEXT_BYTES: Final = 16 * 1024
REFUSED_IN_A_ROW: Final = 10
SERVED_AGAIN_S_MAX: Final = 10.0
LEASE_S: Final = 1.0
Answer = TypeVar("Answer")
UNAVAILABLE: Final = (503, {"type": "ERROR", "code": "TEMPORARILY_UNAVAILABLE"})
REFUSED_STATUSES: Final = frozenset({429, 503})


@pytest.fixture(scope="module")
def server(small_disk: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    # A disk that is nearly full is refused with another code, once the host has looked.
    settings = {
        "log": f"sqlite://{small_disk / 'log.db'}",
        "didcomm.lease_s": f"{LEASE_S}",
        "limits.free_bytes_min": "0",
    }
    with Server(tmp_path_factory.mktemp("full") / "data", **settings) as server:
        yield server


async def filled(send_text: Callable[[str], Awaitable[bool]], name: str) -> list[str]:
    """Texts until so many in a row were refused: those that were accepted."""
    accepted: list[str] = []
    number = refused = 0
    while refused < REFUSED_IN_A_ROW:
        text = f"{name} {number} ".ljust(TEXT_BYTES, ".")
        number += 1
        assert number * TEXT_BYTES < 2 * LEFT_BYTES, "the disk does not fill"
        if await send_text(text):
            accepted.append(text)
            refused = 0
        else:
            refused += 1
    return accepted


async def kill_host(server: Server) -> None:
    (host,) = server.pids(HOST)
    send(host, signal.SIGKILL)
    assert await asyncio.to_thread(ended, host, SERVED_AGAIN_S_MAX)


async def is_accepted(
    mediator: MediatorClient, writer: Account, reader: Account, text: str
) -> bool:
    """Was a message accepted? If not, it was refused as it should."""
    answer = await post(mediator, message(writer, reader, text))
    assert answer[0] == 200 or answer == UNAVAILABLE, answer
    return answer[0] == 200


async def test_a_full_disk_refuses_and_service_returns_by_itself(
    server: Server, ballast: Ballast, report: Report, killed: bool
) -> None:
    async with client(server.url) as mediator:
        writer, reader = await newcomer(mediator, "writer"), await newcomer(mediator, "reader")
        await befriend(writer, reader)
        ballast.take()
        offer = partial(is_accepted, mediator, writer, reader)
        accepted = await filled(offer, f"{killed}")
        if killed:
            await kill_host(server)
            # What the start itself gave back may be room for some more.
            accepted += await filled(offer, f"{killed} while full")
        ballast.throw_off()
        freed = time.monotonic()
        await until(lambda: writer.send(reader.identity.did, f"{killed} after"))
        seconds = time.monotonic() - freed
        waiting = await waiting_payloads(reader)
        with closing(server.log()) as log:
            assert [t for t in stored_texts(log) if t.startswith(f"{killed} ")] == waiting
    report(f"{len(accepted)} accepted, 0 lost; served {seconds:.1f} s after space was freed")
    assert seconds < SERVED_AGAIN_S_MAX
    assert [text for text in waiting if text in set(accepted)] == accepted
    assert waiting[-1] == f"{killed} after"
    assert len(set(waiting)) == len(waiting)


async def forward(agent: MediatedAgent, text: str) -> bool:
    """Was a forward accepted? If not, it was refused as it should."""
    try:
        await agent.write(text)
    except MediatorRefused as error:
        if error.status in REFUSED_STATUSES:
            return False
        raise
    return True


async def answered(ask: Callable[[], Awaitable[Answer]]) -> Answer | None:
    """The answer to a wallet, None for a problem report; anything else is wrong."""
    try:
        return await ask()
    except ProblemReported:
        return None


async def test_a_full_disk_costs_a_wallet_nothing_and_service_returns_by_itself(
    server: Server, ballast: Ballast, report: Report, killed: bool
) -> None:
    async with aiohttp.ClientSession() as session:
        bob = await MediatedAgent.arrive(session, server.url)
        await bob.write("first", "second")
        first, second = await bob.wallet.fetch(2)
        await bob.wallet.received([first.id])
        ballast.take()
        accepted = ["second", *await filled(partial(forward, bob), "wallet")]
        answers = [
            await answered(ask)
            for ask in (
                bob.wallet.status,
                bob.wallet.request_mediation,
                bob.wallet.query_keylist,
                bob.wallet.queue_status,
                bob.wallet.pickup1_status,
            )
        ]
        held = await answered(lambda: bob.wallet.fetch(1)) or []
        confirmed = await answered(lambda: bob.wallet.received([second.id]))
        refused = {"first"}
        if killed:
            await kill_host(server)
            # What the start itself gave back may be room for this one.
            if await forward(bob, "while full"):
                accepted.append("while full")
            else:
                refused.add("while full")
        ballast.throw_off()
        freed = time.monotonic()
        await served(lambda: forward(bob, "after"))
        seconds = time.monotonic() - freed
        drained = await drain(bob)
    with closing(server.log()) as log:
        stored_texts(log)
    report(
        f"{len(accepted)} accepted, 0 lost; {answers.count(None)} of {len(answers)} questions"
        f" answered with a problem report; served {seconds:.1f} s after space was freed"
    )
    assert seconds < SERVED_AGAIN_S_MAX
    if confirmed is not None:
        accepted.remove("second")
    assert set(accepted) <= set(drained), "an accepted forward is lost"
    assert not refused & set(drained)
    assert confirmed is None or "second" not in drained, "a confirmed removal is undone"
    assert len(set(drained)) == len(drained)
    # What was out on a lease when the rest was taken comes after it.
    late = {"second", *bob.texts(held)}
    waiting = [text for text in accepted if text not in late]
    assert [text for text in drained if text in set(waiting)] == waiting


async def drain(agent: MediatedAgent) -> list[str]:
    """Everything that waits, what is out on a lease too."""
    found: list[str] = []
    async with asyncio.timeout(SERVED_AGAIN_S_MAX):
        while (await agent.wallet.status()).message_count:
            found += await agent.drained()
    return found
