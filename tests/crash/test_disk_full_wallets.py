"""A full disk refuses wallets and their senders in their own words, and loses nothing."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Final, TypeVar

import aiohttp
import pytest

from http_edge.clients.didcomm import MediatorRefused, ProblemReported
from tests.cluster.server import HOST, Server, ended, send
from tests.cluster.wallets import MediatedAgent, served
from tests.crash.conftest import LEFT_BYTES, Ballast, Report
from tests.crash.storage import stored_texts

pytestmark = [pytest.mark.crash, pytest.mark.cluster]
TEXT_BYTES: Final = 16 * 1024
REFUSED_IN_A_ROW: Final = 10
SERVED_AGAIN_S_MAX: Final = 10.0
LEASE_S: Final = 1.0
Answer = TypeVar("Answer")
UNAVAILABLE: Final = frozenset({429, 503})


@pytest.fixture(scope="module")
def server(small_disk: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    settings = {"log": f"sqlite://{small_disk / 'log.db'}", "didcomm.lease_s": f"{LEASE_S}"}
    with Server(tmp_path_factory.mktemp("full") / "data", **settings) as server:
        yield server


async def forward(agent: MediatedAgent, text: str) -> bool:
    """Was a forward accepted? If not, it was refused as it should."""
    try:
        await agent.write(text)
    except MediatorRefused as error:
        if error.status in UNAVAILABLE:
            return False
        raise
    return True


async def answered(ask: Callable[[], Awaitable[Answer]]) -> Answer | None:
    """The answer to a wallet, None for a problem report; anything else is wrong."""
    try:
        return await ask()
    except ProblemReported:
        return None


async def fill(agent: MediatedAgent) -> list[str]:
    """Forwards until several in a row were refused: those that were accepted."""
    accepted: list[str] = []
    number = refused = 0
    while refused < REFUSED_IN_A_ROW:
        text = f"{number} ".ljust(TEXT_BYTES, ".")
        number += 1
        assert number * TEXT_BYTES < 2 * LEFT_BYTES, "the disk does not fill"
        if await forward(agent, text):
            accepted.append(text)
            refused = 0
        else:
            refused += 1
    return accepted


@pytest.mark.parametrize("killed", [False, True], ids=["goes on", "host killed while full"])
async def test_a_full_disk_costs_a_wallet_nothing_and_service_returns_by_itself(
    server: Server, ballast: Ballast, report: Report, killed: bool
) -> None:
    async with aiohttp.ClientSession() as session:
        bob = await MediatedAgent.arrive(session, server.url)
        await bob.write("first", "second")
        first, second = await bob.wallet.fetch(2)
        await bob.wallet.received([first.id])
        ballast.take()
        accepted = ["second", *await fill(bob)]
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
            (host,) = server.pids(HOST)
            send(host, signal.SIGKILL)
            assert await asyncio.to_thread(ended, host, SERVED_AGAIN_S_MAX)
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
