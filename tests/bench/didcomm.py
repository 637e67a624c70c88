"""The benchmark of DIDComm mediation in both generations: what runs, in which order, how much.

What is compared takes turns within one run, in several rounds: at each number of connections the
mediator, the edge alone, DIDComm v2 and the peer; for each way to fetch messages the versions of
pickup. So all of them see the same machine, and a ratio is the median of its rounds.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from array import array
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Final, TypeVar

import aiohttp
import msgspec

from http_edge.cli.output import ProgressBar
from http_edge.clients.didcomm import (
    PICKUP_2,
    PICKUP_3,
    PICKUP_4,
    Live,
    Mediation,
    Recipient,
    fetch_invitation,
)
from http_edge.clients.didcomm.pickup import PickupVersion
from http_edge.clients.load.agents import Agents
from http_edge.clients.load.didcomm_agents import DidComm2Agents, DidCommAgents, Mailbox, Mailbox2
from http_edge.didcomm.envelopes.keys import KeyPair
from tests.bench.acapy_peer import AcaPy, worked_off_after_s
from tests.bench.accounts import new_accounts
from tests.bench.agents import AGENTS, PacedLoad, didcomm_2_agents, didcomm_agents, drained
from tests.bench.load import Run, connected, run_apart
from tests.bench.memory import idle_sockets, queue_memory
from tests.bench.report import (
    Measurement,
    Report,
    measured,
    of_load,
    of_rounds,
    report,
    timed,
    with_figures,
)
from tests.bench.server import Costs, EdgeAlone, MeasuredServer

STORED: Final = "forwards"
STORED_2: Final = "forwards of v2"
_POOL: Final = 4_096
_WARM_UP: Final = Run(connections=16, count=1_000, seconds_max=3.0)
_FILL_CONNECTIONS: Final = 32
_FILL_S_MAX: Final = 120.0
_FULL_PAGES: Final = AGENTS * 100
"""A full page for each agent, however large the pages."""
_DRAIN_SOCKETS: Final = AGENTS
_PICKUPS: Final = {"2.0": (0, PICKUP_2), "3.0": (1, PICKUP_3), "4.0": (1, PICKUP_4)}
"""Each version of pickup, and which of two loads has the agents that speak it."""
_LIVE_SOCKETS: Final = 16
_LIVE_CONNECTIONS: Final = 64
_LIVE_PER_S: Final = 300
_ACKNOWLEDGED_S_MAX: Final = 10.0

_Taker = TypeVar("_Taker")


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How much of everything: bounded in count and in time.

    Attributes:
        rounds: How often what is compared takes turns.
        runs: The closed loops of forwards in a round.
        drained: Messages that each version of pickup takes from the queues in a round.
        single: Live deliveries one by one.
        paced: Live deliveries at 300/s.
        registrations: Wallets that register.
        queued: Messages whose memory is measured.
        sockets: Idle sockets.
    """

    rounds: int
    runs: tuple[Run, ...]
    drained: int
    single: int
    paced: int
    registrations: int
    queued: int
    sockets: int


def plan(*, quick: bool, scale: bool, sockets: int | None) -> Plan:
    """The usual plan, or one of about a minute that shows whether all of it works.

    ``sockets`` of None is 2,000, and 10,000 at scale.
    """
    share, seconds_max = (20, 3.0) if quick else (1, 10.0)
    idle = (10_000 if scale else 2_000) // share
    return Plan(
        rounds=2 if quick else 5,
        runs=tuple(
            Run(connections, count // share, seconds_max)
            for connections, count in ((1, 1_000), (16, 6_000), (64, 8_000))
        ),
        drained=_FULL_PAGES // share,
        single=1_000 // share,
        paced=6_000 // share,
        registrations=2_000 // share,
        queued=40_000 // share,
        sockets=idle if sockets is None else sockets,
    )


async def run(wanted: Plan, acapy: Path | None, bar: ProgressBar) -> Report:
    """Measure a mediator that is started for this in a temporary directory.

    ``acapy`` is the program of the peer; None leaves it out.

    Raises:
        AssertionError, RuntimeError, WalletError: a server did not start, or refused something.
    """
    lines: list[Measurement] = []
    with tempfile.TemporaryDirectory() as folder, MeasuredServer(Path(folder) / "data") as server:
        async with (
            didcomm_agents(server, progress=bar("set up", AGENTS)) as agents,
            didcomm_2_agents(server, progress=bar("set up v2", AGENTS)) as agents_2,
        ):
            lines += [
                line async for line in _forwards(server, agents, agents_2, wanted, acapy, bar)
            ]
            lines += [line async for line in _drains(server, agents, agents_2, wanted, bar)]
            first = DidCommAgents(agents.mailboxes[:1])
            first_2 = DidComm2Agents(agents_2.mailboxes[:1])
            for name, one in (("live, one by one", first), ("live v2, one by one", first_2)):
                lines.append(await _one_by_one(name, server, one, wanted.single, bar))
            lines.append(await _at_a_pace(server, agents, wanted.paced, bar))
        for name, make in (("wallet", didcomm_agents), ("v2 wallet", didcomm_2_agents)):
            lines.append(await _registered(name, make, server, wanted.registrations, bar))
        lines.append(await new_accounts(server, wanted.registrations, bar))
    lines.append(await queue_memory(wanted.queued, bar))
    if wanted.sockets:
        lines.append(await idle_sockets(wanted.sockets, bar))
    return report(wanted, lines, peer=str(acapy) if acapy else "none")


@dataclass(frozen=True, slots=True)
class _Contender:
    """A server that takes the same load in turns.

    ``retries_known``: the same bytes are no second message there, so each body has to differ.
    ``settle`` brings the server back to where it was before so many messages were accepted, and
    gives figures about it.
    """

    name: str
    agents: Agents
    pool: Sequence[bytes]
    server: MeasuredServer | None
    settle: Callable[[int], Awaitable[dict[str, float]]]
    retries_known: bool = True


async def _forwards(
    server: MeasuredServer,
    agents: DidCommAgents,
    agents_2: DidComm2Agents,
    wanted: Plan,
    acapy: Path | None,
    bar: ProgressBar,
) -> AsyncIterator[Measurement]:
    """The runs of forwards; of what is compared also how many times its rate the mediator has."""

    def emptied(those: Agents) -> Callable[[int], Awaitable[dict[str, float]]]:
        async def settle(accepted: int) -> dict[str, float]:
            progress = bar("drain", accepted)
            await drained("drain", those, server, expected=accepted, progress=progress)
            return {}

        return settle

    async with AsyncExitStack() as stack:
        contenders = [
            _Contender(STORED, agents, list(agents.messages(_POOL)), server, emptied(agents)),
            await stack.enter_async_context(_alone()),
            _Contender(
                STORED_2, agents_2, list(agents_2.messages(_POOL)), server, emptied(agents_2)
            ),
        ]
        if acapy is not None:
            contenders.append(await stack.enter_async_context(_peer(acapy)))
        for one in contenders:
            await _turn(one, _WARM_UP, bar)
        for run in wanted.runs:
            turns = await _in_rounds(
                {one.name: one for one in contenders},
                wanted.rounds,
                partial(_turn, run=run, bar=bar),
            )
            stored = turns[STORED]
            for name, lines in turns.items():
                if name == STORED_2:
                    yield of_rounds(lines, "of_v1", lines, stored)
                elif name == STORED:
                    yield of_rounds(lines)
                else:
                    yield of_rounds(lines, "mediator_ratio", stored, lines)


async def _in_rounds(
    takers: Mapping[str, _Taker],
    rounds: int,
    turn: Callable[[_Taker], Awaitable[Measurement]],
) -> Mapping[str, Sequence[Measurement]]:
    """Each one's turns: one in every round, in an order that changes with the round."""
    names, turns = list(takers), defaultdict(list)
    for number in range(rounds):
        first = number % len(names)
        for name in (*names[first:], *names[:first]):
            turns[name].append(await turn(takers[name]))
    return {name: turns[name] for name in names}


async def _turn(one: _Contender, run: Run, bar: ProgressBar) -> Measurement:
    """A contender's turn of a round."""
    name = f"{one.name}, {run.connections} connections"
    with one.server.spending() if one.server else contextlib.nullcontext(Costs()) as costs:
        result = await asyncio.to_thread(
            run_apart,
            one.agents,
            one.pool,
            run,
            numbered=one.retries_known,
            progress=bar(name, run.count),
        )
    line = of_load(name, result, costs if one.server else None)
    return with_figures(line, **await one.settle(result.accepted))


@asynccontextmanager
async def _alone() -> AsyncIterator[_Contender]:
    with tempfile.TemporaryDirectory() as folder, EdgeAlone(Path(folder) / "data") as alone:
        async with aiohttp.ClientSession() as session:
            invitation = await fetch_invitation(session, f"{alone.url}/invitation")
            mediation = Mediation(f"{alone.url}/didcomm", (invitation.key,))

            async def settle(_accepted: int) -> dict[str, float]:
                return {}

            # No wallet answers for these mailboxes: messages alone are made of them.
            boxes = [Mailbox(None, Recipient(KeyPair.new(), mediation)) for _ in range(AGENTS)]  # type: ignore[arg-type]
            agents = DidCommAgents(boxes)
            yield _Contender("edge alone", agents, list(agents.messages(_POOL)), alone, settle)


@asynccontextmanager
async def _peer(acapy: Path) -> AsyncIterator[_Contender]:
    with tempfile.TemporaryDirectory() as folder, AcaPy(acapy, Path(folder)) as server:
        async with aiohttp.ClientSession() as session:
            agents = DidCommAgents(await server.mailboxes(session, AGENTS))

            async def settle(_accepted: int) -> dict[str, float]:
                return {"worked_off_after_s": await worked_off_after_s(server.tree)}

            pool = list(agents.messages(_POOL))
            yield _Contender("ACA-Py", agents, pool, None, settle, retries_known=False)


@dataclass(frozen=True, slots=True)
class _Drain:
    """Queues that ``bodies`` fill; ``agents`` empty them by a version of pickup."""

    title: str
    page_size: int
    senders: Agents
    bodies: Sequence[bytes]
    agents: DidCommAgents | DidComm2Agents
    pickup: PickupVersion


async def _drains(
    server: MeasuredServer,
    agents: DidCommAgents,
    agents_2: DidComm2Agents,
    wanted: Plan,
    bar: ProgressBar,
) -> AsyncIterator[Measurement]:
    """Fill the queues and drain them by each version of pickup, over HTTP and over sockets."""
    fill = Run(_FILL_CONNECTIONS, wanted.drained, _FILL_S_MAX)
    async with AsyncExitStack() as stack:
        sockets = [
            Mailbox(wallet.over(await stack.enter_async_context(wallet.socket())), recipient)
            for wallet, recipient in agents.mailboxes[:_DRAIN_SOCKETS]
        ]
        sockets_2 = [
            Mailbox2(wallet.over(await stack.enter_async_context(wallet.socket())), recipient)
            for wallet, recipient in agents_2.mailboxes[:_DRAIN_SOCKETS]
        ]
        ways = {
            "HTTP": (agents, agents_2),
            "WebSocket": (DidCommAgents(sockets), DidComm2Agents(sockets_2)),
        }
        pools = [list(those.messages(_POOL)) for those in ways["HTTP"]]
        for page_size, (name, way) in product((10, 100), ways.items()):
            drains = {
                version: _Drain(
                    f"drain by {page_size}, {name}, pickup {version}",
                    page_size,
                    ways["HTTP"][which],
                    pools[which],
                    way[which],
                    pickup,
                )
                for version, (which, pickup) in _PICKUPS.items()
            }
            turns = await _in_rounds(
                drains, wanted.rounds, partial(_drained, server=server, fill=fill, bar=bar)
            )
            oldest, *newer = turns.values()
            yield of_rounds(oldest)
            for lines in newer:
                yield of_rounds(lines, "of_pickup_2", lines, oldest)


async def _drained(
    drain: _Drain, *, server: MeasuredServer, fill: Run, bar: ProgressBar
) -> Measurement:
    """Fill the queues of these agents and drain them once."""
    result = await asyncio.to_thread(run_apart, drain.senders, drain.bodies, fill, numbered=True)
    for wallet, _ in drain.agents.mailboxes:
        wallet.pickup = drain.pickup
    return await drained(
        drain.title,
        drain.agents,
        server,
        expected=result.accepted,
        page_size=drain.page_size,
        progress=bar(drain.title, result.accepted),
    )


async def _registered(
    name: str,
    make: Callable[..., AbstractAsyncContextManager[Agents]],
    server: MeasuredServer,
    count: int,
    bar: ProgressBar,
) -> Measurement:
    """So many new accounts, each with one recipient."""
    with server.spending() as costs:
        started_s = time.monotonic()
        async with make(server, count, bar(f"register: {name}", count)):
            seconds = time.monotonic() - started_s
    per_1000 = costs.cpu_s / count * 1000
    return timed(f"register a {name}", count, seconds, server_cpu_s_per_1000=per_1000)


async def _one_by_one(
    name: str,
    server: MeasuredServer,
    one: DidCommAgents | DidComm2Agents,
    count: int,
    bar: ProgressBar,
) -> Measurement:
    """From the POST of a forward until the wallet has its frame; then the next.

    Sender and wallet are one process: one clock times both ends.

    Raises:
        RuntimeError: a forward was refused.
    """
    progress, latencies, bodies = bar(name, count), array("Q"), list(one.messages(count))
    async with (
        one.mailboxes[0].wallet.live() as live,
        connected(one.endpoint, one.media_type, 1) as (post,),
    ):
        with server.spending() as costs:
            started_s = time.monotonic()
            for body in bodies:
                sent_ns = time.perf_counter_ns()
                answer = asyncio.ensure_future(post(body))
                (picked,) = await live.next()
                latencies.append(time.perf_counter_ns() - sent_ns)
                if refusal := await answer:
                    raise RuntimeError(f"a forward was refused: {refusal}")
                await live.received([picked.id])
                progress(len(latencies))
            seconds = time.monotonic() - started_s
        waiting = (await live.status()).message_count
    return measured(name, latencies, seconds, costs=costs, figures={"unacknowledged": waiting})


async def _at_a_pace(
    server: MeasuredServer, agents: DidCommAgents, count: int, bar: ProgressBar
) -> Measurement:
    """Forwards at 300/s to wallets that are live, and acknowledge while they listen."""
    name = f"live at {_LIVE_PER_S}/s, {_LIVE_SOCKETS} sockets"
    some = DidCommAgents(agents.mailboxes[:_LIVE_SOCKETS])
    load, bodies = PacedLoad(count, _LIVE_PER_S, bar(name, count)), list(some.messages(count))

    async def listen(live: Live, mailbox: Mailbox, held: asyncio.Queue[list[str]]) -> None:
        while True:
            picked = await live.next(None)
            now_ns = time.perf_counter_ns()
            for one in picked:
                message = mailbox.recipient.unpack(one.envelope).message
                load.arrived(int(str(message["@id"]).rpartition("-")[2]), now_ns)
            held.put_nowait([one.id for one in picked])

    async def acknowledge(live: Live, held: asyncio.Queue[list[str]]) -> None:
        while True:
            await live.received(await held.get())
            held.task_done()

    async with AsyncExitStack() as stack:
        lives = [await stack.enter_async_context(box.wallet.live()) for box in some.mailboxes]
        posts = await stack.enter_async_context(
            connected(some.endpoint, some.media_type, _LIVE_CONNECTIONS)
        )
        helds = [asyncio.Queue[list[str]]() for _ in lives]
        tasks = [
            asyncio.create_task(work)
            for live, box, held in zip(lives, some.mailboxes, helds, strict=True)
            for work in (listen(live, box, held), acknowledge(live, held))
        ]
        with server.spending() as costs:
            started_s = time.monotonic()
            await load.send(posts, bodies)
            seconds = time.monotonic() - started_s
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ACKNOWLEDGED_S_MAX):
                await asyncio.gather(*[held.join() for held in helds])
        waiting = sum([(await live.status()).message_count for live in lives])
        for task in tasks:
            task.cancel()
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(ended, Exception):
                raise ended
    return load.measurement(name, seconds, costs, unacknowledged=waiting)
