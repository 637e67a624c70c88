"""Processes are killed under the load of both protocol families: it costs neither anything.

Clients of both send and read at once, and all of them without pause when a kill comes, so every
kill hits all that the mediator does.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
from collections import Counter
from pathlib import Path

import pytest

from tests.cluster.server import EDGE, HOST, Server, ended, send
from tests.crash import kill_under_load, wallets_under_kills
from tests.crash.conftest import Report
from tests.crash.kill_under_load import FURTHER_ACKS, WRITERS, Load, Outcomes, chosen, kill
from tests.crash.wallets_under_kills import (
    FURTHER_FORWARDS,
    SENDERS,
    SETTINGS,
    PickupOutcomes,
    WalletsOfRun,
)

pytestmark = [pytest.mark.crash, pytest.mark.cluster]
KILLS = int(os.environ.get("KILLS", "5"))
"""``python -m tests.crash.kill_under_load`` and ``wallets_under_kills`` run for longer."""
SEED = int(os.environ.get("SEED", "1"))
IS_LONG = "KILLS" in os.environ
PAUSE_S = 0.0 if IS_LONG else 0.1
"""Between two messages of a sender while the next kill is not near: what waits for a kill need not
take all of the machine. A run with ``KILLS`` never rests."""
ACKS = FURTHER_ACKS if IS_LONG else (50, 100)
FORWARDS = FURTHER_FORWARDS if IS_LONG else (30, 60)
"""How many more have to be accepted before senders stop resting: so many that a mediator works."""

HANGS_S_MAX = 60.0


async def before_kill(load: Load, network: WalletsOfRun) -> None:
    """Wait for further messages at a pace, then for some of every sender without pause."""
    acks, forwards = load.chance.randrange(*ACKS), load.chance.randrange(*FORWARDS)
    await asyncio.gather(load.accepted(acks), network.load.more(forwards))
    load.pause_s = network.load.pause_s = 0.0
    await asyncio.gather(load.accepted(2 * WRITERS), network.load.more(2 * SENDERS))


async def endured(server: Server, kills: int, report: Report) -> tuple[Outcomes, PickupOutcomes]:
    """The reckoning of both families after so many kills, which broke no promise of either."""
    chance = random.Random(SEED)  # noqa: S311 - repeatable
    targets = chosen(chance, kills)
    counts = Counter(target.value for target in targets)
    wallets: asyncio.Future[WalletsOfRun] = asyncio.get_running_loop().create_future()
    is_over = asyncio.Event()

    async def of_wallets(network: WalletsOfRun) -> None:
        wallets.set_result(network)
        await is_over.wait()

    async def of_commands(load: Load) -> None:
        try:
            network = await wallets
            for target in targets:
                await before_kill(load, network)
                network.load.ledger.kills += 1
                # Signals are sent before anything else runs; then it may rest again.
                load.pause_s = network.load.pause_s = PAUSE_S
                await kill(server, target, chance)
        finally:
            is_over.set()

    commands, pickups = await asyncio.gather(
        kill_under_load.endure(Load(server, chance, pause_s=PAUSE_S), of_commands, dict(counts)),
        wallets_under_kills.endure(server, of_wallets, counts, chance, pause_s=PAUSE_S),
    )
    report(f"{commands}\n  wallets: {pickups}")
    for outcomes in (commands, pickups):
        assert outcomes.is_clean, str(outcomes)
    return commands, pickups


@pytest.mark.timeout(300 + 30 * KILLS)
async def test_no_kill_costs_an_acknowledged_message_a_key_or_a_rule(
    tmp_path: Path, report: Report
) -> None:
    with Server(tmp_path / "data", **SETTINGS) as server:
        commands, pickups = await endured(server, KILLS, report)
    assert commands.accepted >= 50 * KILLS
    assert pickups.accepted >= 30 * KILLS


@pytest.mark.postgres
@pytest.mark.timeout(300 + 30 * KILLS)
async def test_no_kill_costs_anything_with_two_hosts_and_two_edges_on_postgres(
    tmp_path: Path, postgres_url: str, report: Report
) -> None:
    settings = SETTINGS | {"log": postgres_url, "hosts": "2", "edges": "2"}
    with Server(tmp_path / "data", **settings) as server:
        await endured(server, max(3, KILLS // 3), report)


@pytest.mark.timeout(300)
async def test_a_host_and_an_edge_that_hang_are_started_again_and_cost_nothing_accepted(
    tmp_path: Path, report: Report
) -> None:
    """Each hangs under load, and the bound is the lowest: no process that works is killed."""

    async def hang_each(load: Load) -> None:
        for title in (HOST, EDGE):
            await load.further()
            (process,) = server.pids(title)
            send(process, signal.SIGSTOP)
            assert await asyncio.to_thread(ended, process, HANGS_S_MAX)
        await load.further()

    settings = {"limits.process_silent_s_max": "5"}
    with Server(tmp_path / "data", **settings) as server:
        load = Load(server, random.Random(SEED))  # noqa: S311 - repeatable
        outcomes = await kill_under_load.endure(load, hang_each, {"hang": 2})
        written = (server.data_dir / "stderr").read_text()
    report(str(outcomes))
    assert outcomes.is_clean, str(outcomes)
    assert re.findall(r"(\S+) hangs:", written) == ['"host-0', '"edge-0']
