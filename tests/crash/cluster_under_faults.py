"""A cluster under load loses one part after the other, and both protocol families keep count.

``python -m tests.crash.cluster_under_faults --rounds 20 --seed 7`` runs for long. Two nodes behind
a load balancer, with a PostgreSQL of their own, or several (``--databases 2``): while one of these
is away, the others have to serve. The second node is in a network namespace where
that is permitted. Some clients, the strays, know nothing but that node, so there is always a client
to ask a zombie.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from actors.core.partitioning import Placement
from eventstore.log.event_log import EventLog
from eventstore.stores.open_log import open_log
from http_edge.clients.decentrl import Account, MediatorClient
from http_edge.didcomm.envelopes.keys import did_key
from tests.cluster.accounts import befriend, client, newcomer, until
from tests.cluster.balancer import Balancer
from tests.cluster.memory import Memory, State
from tests.cluster.namespace import Namespace, is_permitted
from tests.cluster.nodes import Nodes, Place, apart
from tests.cluster.wallets import served
from tests.crash import kill_under_load, wallets_under_kills
from tests.crash.cluster_faults import FIRST, NEEDS_NAMESPACE, SECOND, Fault, Harm
from tests.crash.kill_under_load import Load
from tests.crash.ledger import Ledger, Outcome
from tests.crash.wallets_under_kills import WalletsOfRun
from tests.database_server import DatabaseServer, database_directory
from tests.ports import free_port

_LOG = logging.getLogger(__name__)
SERVED_S_MAX: Final = 60.0
MENDED_S_MAX: Final = 180.0
FURTHER: Final = 20
STRAYS: Final = 3
PAUSE_S: Final = 0.15
SETTINGS: Final = wallets_under_kills.SETTINGS | {
    "shards": "8",
    # A third of what they are by default, or else every fault would take three times as long.
    "limits.host_call_s_max": "8",
}
_POLL_S: Final = 0.1
_AWAY_S: Final = 6.0
"""Of several databases one is away for so long at least."""
_QUIET_S: Final = 1.5


@dataclass(slots=True)
class Faulted:
    """What one fault came to; seconds until all were served again."""

    fault: Fault
    served_s: float = 0.0
    mended_s: float = 0.0
    beside_s: float = 0.0
    """The longest time that those of another database were not served, while one was away."""
    strays: Counter[Outcome] = field(default_factory=Counter)

    def __str__(self) -> str:
        strays = "/".join(f"{self.strays[outcome]}" for outcome in Outcome)
        beside = f", those of other databases {self.beside_s:.1f} s" if self.beside_s else ""
        return (
            f"{self.fault.value} {self.served_s:.1f} s"
            f" (mended {self.mended_s:.0f} s, {strays}{beside})"
        )


@dataclass(frozen=True, slots=True)
class Report:
    """What a run came to."""

    faulted: Sequence[Faulted]
    commands: kill_under_load.Outcomes
    wallets: wallets_under_kills.PickupOutcomes
    fenced: int
    exit_codes: Sequence[int | None]
    compared: int
    differing: Sequence[str]

    @property
    def is_clean(self) -> bool:
        """Was every promise kept?"""
        return self.commands.is_clean and self.wallets.is_clean and not self.differing

    def __str__(self) -> str:
        answered = ", ".join(map(str, self.faulted))
        return (
            f"served again after: {answered}; {self.fenced} partitions given up by zombies,"
            f" exit codes {sorted(map(str, self.exit_codes))},"
            f" {self.compared} states compared, {len(self.differing)} differ {self.differing or ''}"
            f"\n  commands: {self.commands}\n  wallets: {self.wallets}"
        )


@dataclass(slots=True)
class Cluster:
    """The cluster of one run."""

    nodes: Nodes
    balancer: Balancer
    harm: Harm
    dsns: Sequence[str]

    @property
    def url(self) -> str:
        """Where clients reach it."""
        return self.balancer.url

    @property
    def placement(self) -> Placement:
        """Which database an identity is in."""
        return Placement(int(SETTINGS["shards"]), hosts=1, databases=len(self.dsns))

    def logs(self) -> Sequence[EventLog]:
        """The databases of its log, opened beside it."""
        return [open_log(dsn) for dsn in self.dsns]

    def memory(self) -> Memory:
        """What its hosts have in memory."""
        return Memory(*self.harm.operators())

    def fenced(self) -> int:
        """How many partitions its hosts found to have another owner."""
        words = [s.data_dir / "stderr" for s in self.nodes.servers.values()]
        return sum(
            path.read_text().count("has another owner: this host gave it up") for path in words
        )


@asynccontextmanager
async def running(directory: Path, seed: int, count: int) -> AsyncIterator[Cluster]:
    """A cluster that serves, with so many databases."""
    async with AsyncExitStack() as opened:
        balancer = await opened.enter_async_context(Balancer())
        with ExitStack() as stack:
            namespace = stack.enter_context(Namespace()) if is_permitted() else None
            places: dict[int, Place] = {}
            address = "127.0.0.1"
            if namespace is not None:
                address = namespace.database.address(1)
                places[FIRST], places[SECOND] = apart(namespace)
            else:
                for number in (FIRST, SECOND):
                    listen = f"127.0.0.1:{free_port()}"
                    places[number] = Place(f"127.0.8.{number}", listen)
            folder = stack.enter_context(database_directory())
            databases = [DatabaseServer.new(folder / f"db-{n}", address) for n in range(count)]
            standby = DatabaseServer(folder / "standby", free_port(), address)
            dsns = [database.url for database in databases]
            dsns[0] = databases[0].url_with(standby)
            for database in databases:
                await asyncio.to_thread(database.start)
            nodes = stack.enter_context(
                Nodes(
                    directory,
                    " ".join(dsns),
                    places=places,
                    public_url=balancer.url,
                    **SETTINGS,
                )
            )
            await asyncio.to_thread(nodes.start, FIRST, SECOND)
            balancer.serve(*[nodes.url(number) for number in (FIRST, SECOND)])
            chance = random.Random(seed)  # noqa: S311 - repeatable
            harm = Harm(nodes, databases, namespace, chance, standby)
            cluster = Cluster(nodes, balancer, harm, dsns)
            async with client(cluster.url) as mediator:
                await until(mediator.health)
            yield cluster


class Ordeal:
    """Faults one after the other, under load."""

    def __init__(
        self, cluster: Cluster, faults: Sequence[Fault], *, loses_everything: bool
    ) -> None:
        self._cluster = cluster
        self._faults = faults
        self._loses_everything = loses_everything
        self._load: asyncio.Future[Load] = asyncio.get_running_loop().create_future()
        self._town: asyncio.Future[WalletsOfRun] = asyncio.get_running_loop().create_future()
        self._over = asyncio.Event()
        self._strays: list[str] = []
        self._beside: dict[int, tuple[str, str]] = {}
        """Of each of several databases a sender and a recipient, both in it."""
        self.faulted: list[Faulted] = []
        self.fenced = 0
        self.compared = 0
        self.differing: list[str] = []

    async def of_commands(self, load: Load) -> None:
        """The faults, as those see them who send commands."""
        self._load.set_result(load)
        await self._over.wait()

    async def of_wallets(self, network: WalletsOfRun) -> None:
        """The faults, as wallets see them."""
        self._town.set_result(network)
        await self._over.wait()

    async def run(self) -> None:
        """Everything, from the first fault to the last."""
        try:
            load, network = await self._load, await self._town
            straying = client(self._cluster.nodes.url(SECOND))
            async with straying, client(self._cluster.url) as mediator:
                working = []
                for number in range(STRAYS):
                    stray = await newcomer(mediator, f"stray-{number}")
                    await befriend(stray, load.readers[0])
                    self._strays.append(stray.identity.did)
                    lost = straying.as_(stray.identity)
                    working.append(asyncio.create_task(load.write(lost, load.readers[:1])))
                recipients: list[Account] = []
                if len(self._cluster.dsns) > 1:
                    for number in range(len(self._cluster.dsns)):
                        sender, recipient = await self._pair_in(number, mediator)
                        recipients.append(recipient)
                        working.append(asyncio.create_task(load.write(sender, [recipient])))
                        working.append(asyncio.create_task(load.read(recipient)))
                for fault in self._faults:
                    await load.accepted(FURTHER)
                    await network.load.more(FURTHER)
                    await self._suffer(fault, load, network)
                await load.accepted(FURTHER)
                await network.load.more(FURTHER)
                load.stopping = network.load.stopping = True
                await asyncio.gather(*working)
                for recipient in recipients:
                    await load.drain(recipient)
                self.fenced = self._cluster.fenced()
                if self._loses_everything:
                    await self._lose_everything(load, network)
        finally:
            self._over.set()

    async def _suffer(self, fault: Fault, load: Load, network: WalletsOfRun) -> None:
        harm, faulted, ledger = self._cluster.harm, Faulted(fault), network.load.ledger
        before = self._answers(load)
        ledger.fault(begins=True)
        since = time.monotonic()
        await harm.begin(fault)
        if fault.is_of_database:
            if self._beside:
                faulted.beside_s = await self._longest_beside(load)
            await harm.end(fault)
            since = time.monotonic()
        elif fault.lasts:
            faulted.served_s = await self._served_again(load, network, since)
            await harm.end(fault)
        mending = asyncio.create_task(self._mended(fault))
        try:
            if not fault.lasts:
                faulted.served_s = await self._served_again(load, network, since)
            await mending
        finally:
            mending.cancel()
            await asyncio.gather(mending, return_exceptions=True)
        faulted.mended_s = time.monotonic() - since
        # With everything back, all accounts are asked once more.
        await self._served_again(load, network, time.monotonic())
        faulted.strays = self._answers(load) - before
        ledger.fault(begins=False)
        self.faulted.append(faulted)
        _LOG.info("%s", faulted)

    async def _pair_in(self, database: int, mediator: MediatorClient) -> tuple[Account, Account]:
        """A sender and a recipient, both in this database."""
        people: list[Account] = []
        while len(people) < len(("sender", "recipient")):
            person = await newcomer(mediator, f"of-{database}")
            if self._cluster.placement.database_of(person.identity.did) == database:
                people.append(person)
        sender, recipient = people
        await befriend(sender, recipient)
        self._beside[database] = sender.identity.did, recipient.identity.did
        return sender, recipient

    async def _longest_beside(self, load: Load) -> float:
        """The most seconds without a message accepted from one of each database not struck."""
        pairs = [p for number, p in self._beside.items() if number != self._cluster.harm.struck]
        longest_s, since = 0.0, time.monotonic()
        while (now := time.monotonic()) < since + _AWAY_S:
            # What was sent before the fault does not count.
            accepted = min(load.accepted_at.get(pair, since) for pair in pairs)
            longest_s = max(longest_s, now - max(since, accepted))
            await asyncio.sleep(_POLL_S)
        return longest_s

    def _answers(self, load: Load) -> Counter[Outcome]:
        """The answers of those who know the second node alone."""
        return Counter(a.outcome for a in load.ledger.attempts if a.sender in self._strays)

    async def _mended(self, fault: Fault) -> None:
        """Start again what ended, until nothing more ends and every node has its share."""
        nodes = self._cluster.nodes
        # A node whose Ray has lost its part ends some time later, and is served by meanwhile.
        ends = len(nodes.exit_codes) + (fault is Fault.RAY)
        async with asyncio.timeout(MENDED_S_MAX):
            while True:
                is_whole = await asyncio.to_thread(nodes.mend)
                if is_whole and len(nodes.exit_codes) >= ends and await self._spread():
                    return
                await asyncio.sleep(_POLL_S)

    async def _spread(self) -> bool:
        counts = await self._cluster.harm.counts()
        return len(counts) == len(self._cluster.nodes.servers) and min(counts.values()) > 0

    async def _served_again(self, load: Load, network: WalletsOfRun, since: float) -> float:
        """Seconds until every node that is not a stray accepted a message."""
        async with asyncio.timeout(SERVED_S_MAX):
            while True:
                at = [v for (who, _), v in load.accepted_at.items() if who not in self._strays]
                at += network.load.accepted_at.values()
                if min(at) >= since:
                    return time.monotonic() - since
                await asyncio.sleep(_POLL_S)

    async def _lose_everything(self, load: Load, network: WalletsOfRun) -> None:
        """Nothing but the database is left, and what comes back has the same in memory."""
        await self._is_quiet()
        faulted = Faulted(Fault.EVERYTHING)
        before = await self._states(load, network)
        network.load.ledger.fault(begins=True)
        await asyncio.to_thread(self._cluster.nodes.lose_everything)
        since = time.monotonic()
        await asyncio.to_thread(self._cluster.nodes.start)
        after = await self._states(load, network)
        faulted.served_s = faulted.mended_s = time.monotonic() - since
        network.load.ledger.fault(begins=False)
        self.compared = len(before)
        self.differing = [did for did in before if before[did] != after[did]]
        self.faulted.append(faulted)

    async def _is_quiet(self) -> None:
        logs = await asyncio.to_thread(self._cluster.logs)
        positions, before = [log.position() for log in logs], [-1]
        while positions != before:
            await asyncio.sleep(_QUIET_S)
            positions, before = [log.position() for log in logs], positions
        for log in logs:
            log.close()

    async def _states(self, load: Load, network: WalletsOfRun) -> Mapping[str, State]:
        """The states of all identities, each of which is woken for it.

        All are asked for again while a shard is on its way.
        """

        async def woken() -> bool:
            for account in (*load.readers, *load.writers):
                await account.query_pending_events()
            for picker in network.pickers:
                await picker.wallet.status()
            return True

        memory = self._cluster.memory()
        dids = [account.identity.did for account in (*load.readers, *load.writers)]
        dids += [did_key(picker.wallet.connection.key.public) for picker in network.pickers]
        async with asyncio.timeout(MENDED_S_MAX):
            while True:
                await served(lambda: until(woken))
                states = await asyncio.to_thread(memory.states, dids)
                if len(states) == len(dids):
                    return states
                await asyncio.sleep(_POLL_S)


async def run(
    directory: Path,
    faults: Sequence[Fault],
    seed: int,
    *,
    databases: int = 1,
    loses_everything: bool = True,
) -> Report:
    """Load, faults, at last all but the databases lost, and the reckoning of both families."""
    async with running(directory, seed, databases) as cluster:
        faults = [f for f in faults if f not in NEEDS_NAMESPACE or cluster.harm.can_cut]
        ordeal = Ordeal(cluster, faults, loses_everything=loses_everything)
        last = [Fault.EVERYTHING] if loses_everything else []
        counts = Counter(fault.value for fault in (*faults, *last))
        chance = cluster.harm.chance
        ledger = Ledger(unknown_may_come_late=True)
        load = Load(cluster, chance, ledger, pause_s=PAUSE_S)
        commands, wallets, _ = await asyncio.gather(
            kill_under_load.endure(load, ordeal.of_commands, dict(counts)),
            wallets_under_kills.endure(
                cluster,
                ordeal.of_wallets,
                counts,
                chance,
                pause_s=PAUSE_S,
                unknown_may_come_late=True,
            ),
            ordeal.run(),
        )
        report = Report(
            faulted=ordeal.faulted,
            commands=commands,
            wallets=wallets,
            fenced=ordeal.fenced,
            exit_codes=cluster.nodes.exit_codes,
            compared=ordeal.compared,
            differing=ordeal.differing,
        )
        await asyncio.to_thread(cluster.nodes.kill_everything)
        return report


def main() -> None:
    """Run with the arguments of the command line; exit code 1 when a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1, help="how often each fault happens")
    parser.add_argument("--faults", nargs="*", default=[], choices=[f.value for f in Fault])
    parser.add_argument("--databases", type=int, default=1, help="of the log")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    chosen = [Fault(name) for name in arguments.faults] or [
        fault for fault in Fault if fault is not Fault.EVERYTHING
    ]
    faults = chosen * arguments.rounds
    random.Random(arguments.seed).shuffle(faults)  # noqa: S311 - repeatable
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    with tempfile.TemporaryDirectory(prefix="poste-faults-") as directory:
        ran = run(Path(directory), faults, arguments.seed, databases=arguments.databases)
        report = asyncio.run(ran)
    sys.stdout.write(f"{report}\n")
    sys.exit(0 if report.is_clean else 1)


if __name__ == "__main__":
    main()
