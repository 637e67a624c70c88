"""Live delivery by Pickup 2.0: from the POST of a forward until the wallet has opened its frame.

Each delivery is acknowledged, and the queue must be empty in the end. Sender and wallets are one
process: one monotonic clock times both ends, and they take turns on one core.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from array import array
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

import aiohttp

from http_edge.bench.connection import Connection
from http_edge.bench.envelopes import forwards, letters, routing_key_of, seal_of
from http_edge.bench.measurement import Measurement, measured
from http_edge.bench.mediator import Mailbox, Mediator
from http_edge.bench.paced import PacedLoad, connections_to
from http_edge.wallet import Live, Wallet

_THANKED_S_MAX: Final = 10.0
_SUCCESS: Final = range(200, 300)
_NS_PER_S: Final = 1_000_000_000


async def one_by_one(
    mediator: Mediator,
    mailbox: Mailbox,
    count: int,
    *,
    progress: Callable[[int], None] = lambda _: None,
) -> Measurement:
    """Deliver and acknowledge a message, then the next.

    Raises:
        RuntimeError: a forward was refused, or another message came than the one that was due.
        WalletError: nothing came, or the socket broke.
    """
    written, latencies = letters([mailbox], count), array("Q")
    posted = forwards(written, routing_key_of(mailbox))
    async with _going_live([mailbox]) as (live,):
        connection = await Connection.open(mediator.target)
        with mediator.costs() as spent:
            started = time.perf_counter_ns()
            for number, body in enumerate(posted):
                sent = time.perf_counter_ns()
                answer = connection.post(body)
                (picked,) = await live.next()
                latencies.append(time.perf_counter_ns() - sent)
                status, _ = await answer
                if status not in _SUCCESS:
                    raise RuntimeError(f"a forward was refused: {status}")
                if seal_of(picked.envelope) != seal_of(written[number].envelope):
                    raise RuntimeError("another message came than the one that was due")
                await live.received([picked.id])
                progress(number)
            seconds = (time.perf_counter_ns() - started) / _NS_PER_S
        connection.close()
        waiting = (await live.status()).message_count
    return measured(
        "live, one by one",
        latencies,
        seconds,
        figures={"unacknowledged": waiting},
        **spent.per(count, seconds),
    )


async def at_a_pace(
    mediator: Mediator,
    mailboxes: Sequence[Mailbox],
    *,
    count: int,
    per_s: int,
    progress: Callable[[int], None] = lambda _: None,
) -> Measurement:
    """Forward ``count`` messages, ``per_s`` each second, to wallets that are live.

    Raises:
        OSError: the server went away.
        WalletError: a socket did not open, or an acknowledgement failed.
    """
    written = letters(mailboxes, count)
    posted = forwards(written, routing_key_of(mailboxes[0]))
    numbers = {seal_of(letter.envelope): number for number, letter in enumerate(written)}
    load = PacedLoad(count, per_s, progress)
    async with _going_live(mailboxes) as lives, connections_to(mediator.target) as connections:
        wallets = [_LiveWallet(live, load, numbers) for live in lives]
        tasks = [asyncio.create_task(work) for one in wallets for work in (one.hear(), one.thank())]
        with mediator.costs() as spent:
            started = time.perf_counter_ns()
            await load.send(posted, connections)
            await load.wait_for_the_last()
            seconds = (time.perf_counter_ns() - started) / _NS_PER_S
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_THANKED_S_MAX):
                await asyncio.gather(*[wallet.unthanked.join() for wallet in wallets])
        waiting = sum([(await live.status()).message_count for live in lives])
        for task in tasks:
            task.cancel()
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(ended, Exception):
                raise ended
    return measured(
        f"live at {per_s}/s, {len(mailboxes)} sockets",
        load.latencies,
        seconds,
        refused={"refused": load.refused} if load.refused else {},
        figures={"missing": load.missing, "unacknowledged": waiting},
        **spent.per(count, seconds),
    )


class _LiveWallet:
    """Hears deliveries while it acknowledges those before."""

    def __init__(self, live: Live, load: PacedLoad, numbers: dict[str, int]) -> None:
        self.unthanked: asyncio.Queue[list[str]] = asyncio.Queue()
        self._live = live
        self._load = load
        self._numbers = numbers

    async def hear(self) -> None:
        while True:
            picked = await self._live.next()
            now = time.perf_counter_ns()
            for one in picked:
                self._load.arrived(self._numbers.pop(seal_of(one.envelope)), now)
            self.unthanked.put_nowait([one.id for one in picked])

    async def thank(self) -> None:
        while True:
            ids = await self.unthanked.get()
            await self._live.received(ids)
            self.unthanked.task_done()


@asynccontextmanager
async def _going_live(mailboxes: Sequence[Mailbox]) -> AsyncIterator[list[Live]]:
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())
        wallets = [Wallet(mailbox.connection, session=session) for mailbox in mailboxes]
        yield [await stack.enter_async_context(wallet.live()) for wallet in wallets]
