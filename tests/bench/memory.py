"""What identities, messages and sockets cost in memory, and how fast a server comes back.

Memory is that of all processes of the server, Ray's included, and always taken as a growth between
two levels, so that nothing counts which a server needs once: code, caches, the buffers of a busy
time.
"""

from __future__ import annotations

import asyncio
import random
import resource
import tempfile
import time
from array import array
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

from http_edge.cli.output import ProgressBar
from http_edge.clients.decentrl import MediatorClient
from http_edge.clients.didcomm import Wallet
from http_edge.clients.load.decentrl_agents import DecentrlAgents
from tests.bench.agents import decentrl_agents, didcomm_agents
from tests.bench.load import Run, run_apart
from tests.bench.report import Measurement, measured, timed
from tests.bench.server import MANY_SOCKETS, MeasuredServer

_CONNECTIONS: Final = 32
_CHUNK: Final = 20_000
"""Commands signed at once: few enough for memory and for the five minutes that they are valid."""
_SECONDS_MAX: Final = 600.0
_COLD: Final = 1_000
_POOL: Final = 2_048
_OPENING_AT_ONCE: Final = 16
_SETTLING_S: Final = 3.0
_SPARE_FILES: Final = 500
_KIB: Final = 1024
_MIB: Final = 1024 * 1024


async def measure_scale(
    folder: Path, identities: int, queued: int, bar: ProgressBar
) -> list[Measurement]:
    """Register identities, queue messages for them, restart, and wake some of them.

    After a restart no identity is in memory: the first command to one has to load it.

    Raises:
        AssertionError, RuntimeError, ClientError: the mediator did not start, or refused a part.
    """
    with MeasuredServer(folder / "data") as server:
        empty_bytes = server.tree.memory_bytes()
        async with decentrl_agents(server, identities, bar("register", identities)) as agents:
            registered_bytes = server.tree.memory_bytes()
            filled_s = await _fill(agents, queued, bar)
            queued_bytes = server.tree.memory_bytes()
    again, started_s = MeasuredServer(folder / "data"), time.monotonic()
    with again:
        ready_s = time.monotonic() - started_s
        cold = await _wake(again, agents)
        woken_bytes = again.tree.memory_bytes()
    memory = {
        "empty_mib": empty_bytes / _MIB,
        f"with_{identities}_registered_mib": registered_bytes / _MIB,
        f"with_{queued}_queued_mib": queued_bytes / _MIB,
        "after_restart_mib": woken_bytes / _MIB,
    }
    return [
        timed(f"queue for {identities:_} identities", queued, filled_s, **memory),
        timed("ready after restart", 1, ready_s),
        cold,
    ]


async def _fill(agents: DecentrlAgents, count: int, bar: ProgressBar) -> float:
    """Sign and send chunk by chunk; the seconds that sending took.

    Raises:
        RuntimeError: one was refused, or a chunk took too long.
    """
    bodies, seconds, progress = agents.messages(count), 0.0, bar("queue messages", count)
    for first in range(0, count, _CHUNK):
        chunk = [body for _, body in zip(range(_CHUNK), bodies, strict=False)]
        run = Run(_CONNECTIONS, len(chunk), _SECONDS_MAX)
        result = await asyncio.to_thread(run_apart, agents, chunk, run)
        seconds += result.elapsed_s
        if result.accepted < len(chunk):
            raise RuntimeError(f"{result.accepted} of {len(chunk)} accepted: {result.refused}")
        progress(first + len(chunk))
    return seconds


async def _wake(server: MeasuredServer, agents: DecentrlAgents) -> Measurement:
    """One query each of some identities that were not used since the restart."""
    chance, latencies = random.Random(0), array("Q")  # noqa: S311 - a sample
    chosen = chance.sample(agents.pairs, min(_COLD, len(agents.pairs)))
    started_s = time.monotonic()
    async with MediatorClient(server.url) as client:
        for pair in chosen:
            account = client.as_(pair.recipient.identity)
            began_ns = time.perf_counter_ns()
            await account.query_pending_events(page_size=10)
            latencies.append(time.perf_counter_ns() - began_ns)
    seconds = time.monotonic() - started_s
    return measured("first command to a cold identity", latencies, seconds)


async def queue_memory(count: int, bar: ProgressBar) -> Measurement:
    """Queue ``count`` messages for 64 wallets of a server of its own.

    Half as many are queued before the first look: the log fills its caches with those.

    Raises:
        AssertionError, RuntimeError, WalletError: the server did not start, or refused a message.
    """
    with tempfile.TemporaryDirectory() as folder, MeasuredServer(Path(folder) / "data") as server:
        async with didcomm_agents(server) as agents:
            pool, levels, seconds = list(agents.messages(_POOL)), [0, 0], 0.0
            for turn, share in enumerate((count // 2, count)):
                run, name = Run(_CONNECTIONS, share, _SECONDS_MAX), f"queue {share:_}"
                result = await asyncio.to_thread(
                    run_apart, agents, pool, run, numbered=True, progress=bar(name, share)
                )
                if result.refused:
                    raise RuntimeError(f"refused: {result.refused}")
                await asyncio.sleep(_SETTLING_S)
                levels[turn], seconds = server.tree.own_memory_bytes(), result.elapsed_s
    kib_each = (levels[1] - levels[0]) / count / _KIB
    return timed("memory of waiting messages", count, seconds, kib_each=kib_each)


async def idle_sockets(count: int, bar: ProgressBar) -> Measurement:
    """Open ``count`` sockets at a server of their own; the latencies are those of opening one.

    Each is another wallet's: authenticated, its return route open, waiting for messages.

    Raises:
        RuntimeError: so many files may not be open.
        AssertionError, WalletError: the server did not start, or a socket was not answered.
    """
    _allow_files(count + _SPARE_FILES)
    name = f"idle sockets, {count:_}"
    with (
        tempfile.TemporaryDirectory() as folder,
        MeasuredServer(Path(folder) / "data", MANY_SOCKETS) as server,
    ):
        async with didcomm_agents(server, count, bar("register", count)) as agents:
            await asyncio.sleep(_SETTLING_S)
            before_bytes, started_s = server.tree.own_memory_bytes(), time.monotonic()
            latencies, shared, progress = array("Q"), iter(agents.mailboxes), bar(name, count)
            async with AsyncExitStack() as stack:

                async def open_in_turn() -> None:
                    for mailbox in shared:
                        began_ns = time.perf_counter_ns()
                        await stack.enter_async_context(_waiting(mailbox.wallet))
                        latencies.append(time.perf_counter_ns() - began_ns)
                        progress(len(latencies))

                await asyncio.gather(*[open_in_turn() for _ in range(_OPENING_AT_ONCE)])
                seconds = time.monotonic() - started_s
                await asyncio.sleep(_SETTLING_S)
                grown_bytes = server.tree.own_memory_bytes() - before_bytes
    return measured(name, latencies, seconds, figures={"kib_each": grown_bytes / count / _KIB})


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
