"""Idle sockets: what one costs in memory, of a wallet that has asked for whatever comes.

Each socket is another wallet's: authenticated, its return route open, waiting for messages. Memory
is that of all processes of the server, once the wallets are registered and once their sockets are
open.
"""

from __future__ import annotations

import asyncio
import resource
import time
from array import array
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import aiohttp
import uvloop

from http_edge.bench.measurement import Measurement, measured
from http_edge.bench.mediator import Mailbox, mediator_of
from http_edge.bench.processes import ProcessTree
from http_edge.bench.progress import ProgressBar
from http_edge.bench.registrations import register
from http_edge.bench.server import OwnServer
from http_edge.wallet import Wallet

_OPENING_AT_ONCE: Final = 16
_SETTLING_S: Final = 3.0
_SPARE_FILES: Final = 500
_KIB: Final = 1024
_NS_PER_S: Final = 1_000_000_000


def idle_sockets(data_dir: Path, count: int, bar: ProgressBar) -> Measurement:
    """Open ``count`` sockets at a server of their own; the latencies are those of opening one.

    Raises:
        RuntimeError: so many files may not be open, or a registration was refused.
        WalletError: a socket did not open, or its wallet was not answered.
    """
    _allow_files(count + _SPARE_FILES)
    with OwnServer(data_dir) as server:
        mediator = mediator_of(server)
        registering = register(mediator, count, progress=bar("register", count))
        mailboxes, _ = uvloop.run(registering)
        return uvloop.run(_open(server.processes, mailboxes, bar("open sockets", count)))


async def _open(
    processes: ProcessTree, mailboxes: Sequence[Mailbox], progress: Callable[[int], None]
) -> Measurement:
    latencies, shared = array("Q"), iter(mailboxes)
    await asyncio.sleep(_SETTLING_S)
    before_bytes = processes.own_memory_bytes()

    async with AsyncExitStack() as stack:
        connector = aiohttp.TCPConnector(limit=0)
        session = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))

        async def open_in_turn() -> None:
            for mailbox in shared:
                began = time.perf_counter_ns()
                wallet = Wallet(mailbox.connection, session=session)
                await stack.enter_async_context(_waiting(wallet))
                latencies.append(time.perf_counter_ns() - began)
                progress(len(latencies))

        started = time.perf_counter_ns()
        await asyncio.gather(*[open_in_turn() for _ in range(_OPENING_AT_ONCE)])
        seconds = (time.perf_counter_ns() - started) / _NS_PER_S
        await asyncio.sleep(_SETTLING_S)
        grown_bytes = processes.own_memory_bytes() - before_bytes
    count = len(mailboxes)
    figures = {"kib_each": grown_bytes / count / _KIB}
    return measured(f"idle sockets, {count:_}", latencies, seconds, figures=figures)


@asynccontextmanager
async def _waiting(wallet: Wallet) -> AsyncIterator[None]:
    """A socket of the wallet whose return route is known to be open."""
    async with wallet.implicit_socket() as socket:
        await wallet.over(socket).ping()  # messages of one socket are taken in their order
        yield


def _allow_files(count: int) -> None:
    """Let this process, and the server that it starts, have so many files open.

    Raises:
        RuntimeError: the system does not allow it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if count > hard != resource.RLIM_INFINITY:
        raise RuntimeError(f"{count} files are needed and {hard} allowed; see ulimit -Hn")
    if soft != resource.RLIM_INFINITY and soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
