"""What very many registered identities cost, in PostgreSQL, beside a log of a thousand of them.

Both logs are written by ``tests.bench.populated_log``, each into a server of its own, and each has
a mediator. Starts, claims and commands are measured in turns, so both see the same machine.
The commands ask the same of both: as many identities, in the same order, as long unused.
"""

from __future__ import annotations

import asyncio
import itertools
import tempfile
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

import msgspec

from actors.core.limits import HostLimits
from actors.core.partitioning import shard_name
from actors.host.host import Host
from eventstore.log.event_log import StorageFigures
from eventstore.stores.open_log import open_log
from http_edge.cli.output import ProgressBar
from http_edge.clients.decentrl import Channel, Identity, MediatorClient, signed_command
from http_edge.clients.decentrl.contracts import sealed_request
from http_edge.clients.load.closed_loop import LoadResult
from http_edge.clients.load.decentrl_agents import REGISTERED_S, DecentrlAgents
from http_edge.clients.sources import Sources
from http_edge.crypto.encoding import b64encode
from http_edge.crypto.key_agreement import new_key_pair
from http_edge.dids.document import DidDocument
from tests.bench.cluster import spent_s
from tests.bench.load import Run, run_apart
from tests.bench.populated_log import SHARDS, Known, Population, write_population
from tests.bench.processes import ProcessTree, memory_bytes
from tests.bench.report import Measurement, Report, measured, report, timed
from tests.bench.server import MeasuredServer
from tests.cluster.server import EDGE, HOST
from tests.database_server import DatabaseServer, database_directory

_CONNECTIONS: Final = 16
_PAYLOAD: Final = "x" * 1_024
_SECONDS_MAX: Final = 60.0
_SETTLED_S: Final = 3.0
_KIB: Final = 1024
_MIB: Final = 1024 * 1024
_SOURCES: Final = Sources()


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How many of everything.

    Attributes:
        identities: In the large log.
        waiting: Of these, for whom a message waits.
        few: Identities in the small log, for each of which a message waits. Of both logs as many
            are asked.
        rounds: How often both take turns; each round asks others of the few.
        starts: How often both are started.
        repeated: How often a round asks each of them for what is in memory by then.
    """

    identities: int
    waiting: int
    few: int = 1_000
    rounds: int = 5
    starts: int = 3
    repeated: int = 5


def plan(identities: int, waiting: int | None, *, quick: bool) -> Plan:
    """The plan for so many; without ``waiting`` a message waits for one in ten."""
    waits = max(1_000, identities // 10) if waiting is None else min(waiting, identities)
    if quick:
        return Plan(identities=identities, waiting=waits, few=1_000, rounds=2, starts=1, repeated=1)
    return Plan(identities=identities, waiting=waits)


async def run(wanted: Plan, bar: ProgressBar) -> Report:
    """Write both logs, and measure mediators on them.

    Raises:
        AssertionError: something did not start, or the host refused what it was to write.
        RuntimeError: a command was refused.
    """
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="poste-")))
        databases = stack.enter_context(database_directory())
        sides, lines = [], []
        sizes = {
            "few": Population(wanted.few, wanted.few),
            "many": Population(wanted.identities, wanted.waiting),
        }
        for name, population in sizes.items():
            database = DatabaseServer.new(databases / name)
            await asyncio.to_thread(database.start)
            side = _Side(name, population, database, Known.create(wanted.few), folder / name)
            lines.append(await asyncio.to_thread(side.fill, bar))
            sides.append(side)
        lines += await asyncio.to_thread(_claims, sides, wanted)
        lines += await _starts(stack, sides, wanted, bar)
        for side in sides:
            await stack.enter_async_context(side.client)
        lines += await _commands(sides, wanted, bar)
    return report(wanted, lines, log="PostgreSQL", shards=SHARDS, connections=_CONNECTIONS)


class Spent(NamedTuple):
    """CPU seconds of each layer, and KiB that went to the write-ahead log of the database.

    A page goes there whole with its first change after a checkpoint, and a large log has more.
    """

    cpu_s: Mapping[str, float]
    wal_kib: float


class _Side:
    """One of the two logs, and the mediator that serves it."""

    def __init__(
        self,
        name: str,
        population: Population,
        database: DatabaseServer,
        known: Known,
        folder: Path,
    ) -> None:
        self.name = name
        self.known = known
        self._population = population
        self._database = database
        settings = {"log": database.url, "shards": str(SHARDS), "hosts": "1", "edges": "1"}
        self.server = MeasuredServer(folder, settings)
        self._client: MediatorClient | None = None

    def fill(self, bar: ProgressBar) -> Measurement:
        """Write the log, and do what the server would come to do by itself later."""
        identities, started_s = self._population.identities, time.monotonic()
        progress = bar(f"register {identities:_}", identities)
        write_population(self._database.url, self._population, self.known, progress=progress)
        seconds = time.monotonic() - started_s
        self._database.run("VACUUM (ANALYZE)")
        self._database.run("CHECKPOINT")
        with closing(open_log(self._database.url)) as log:
            figures, storage = log.figures(), log.storage()
        assert figures.identities == identities, figures
        return timed(
            f"{self.name}: identities registered",
            identities,
            seconds,
            waiting=figures.queue_messages,
            settled_s=time.monotonic() - started_s - seconds,
            **_sizes(storage, identities),
        )

    def claim_s(self) -> float:
        """How long a host takes to claim all shards, in one append."""
        with closing(open_log(self._database.url)) as log:
            host = Host(
                "host-0",
                log,
                HostLimits(),
                secret=b"secret",
                clock=_SOURCES.now_ms,
                new_id=_SOURCES.new_nonce,
            )
            started_s = time.perf_counter()
            host.moves.adopt([shard_name(number) for number in range(SHARDS)], None)
            return time.perf_counter() - started_s

    def memory(self) -> dict[str, float]:
        """MiB of a host and of an edge that were just started."""
        titles = {"host_mib": HOST, "edge_mib": EDGE}
        return {
            name: sum(map(memory_bytes, self.server.pids(title))) / _MIB
            for name, title in titles.items()
        }

    def spent(self) -> Spent:
        """What it has taken so far."""
        ((wal_bytes,),) = self._database.run("SELECT pg_current_wal_insert_lsn() - '0/0'")
        return Spent(spent_s([self.server], ProcessTree(self._database.pid)), int(wal_bytes) / _KIB)

    @property
    def client(self) -> MediatorClient:
        """A client of the mediator, which runs."""
        self._client = self._client or MediatorClient(self.server.url)
        return self._client

    def post(self, bodies: Sequence[bytes]) -> LoadResult:
        """Post commands from a process of its own. Raises: RuntimeError: one was refused."""
        agents = DecentrlAgents(self.client, [])
        result = run_apart(agents, bodies, Run(_CONNECTIONS, len(bodies), _SECONDS_MAX))
        if result.accepted < len(bodies):
            raise RuntimeError(f"{result.accepted} of {len(bodies)} accepted: {result.refused}")
        return result


def _sizes(storage: StorageFigures, identities: int) -> dict[str, float]:
    parts = (storage.facts_bytes, storage.contents_bytes, storage.read_models_bytes)
    stored_bytes = sum(part or 0 for part in parts)
    return {"stored_mib": stored_bytes / _MIB, "bytes_each": stored_bytes / identities}


def _claims(sides: Sequence[_Side], wanted: Plan) -> list[Measurement]:
    """All shards claimed anew, in turns: of each the newest seals are read, 500 at most."""
    took_ns: dict[str, list[int]] = {side.name: [] for side in sides}
    for _ in range(wanted.rounds):
        for side in sides:
            took_ns[side.name].append(int(side.claim_s() * 1e9))
    return [
        measured(f"{name}: {SHARDS} shards claimed", found, sum(found) / 1e9)
        for name, found in took_ns.items()
    ]


async def _starts(
    stack: AsyncExitStack, sides: Sequence[_Side], wanted: Plan, bar: ProgressBar
) -> list[Measurement]:
    """Both mediators started in turns, one at a time; after the last time they stay."""
    took_ns: dict[str, list[int]] = {side.name: [] for side in sides}
    progress = bar("starts", wanted.starts * len(sides))
    for turn in range(wanted.starts):
        for number, side in enumerate(sides):
            started_ns = time.perf_counter_ns()
            await asyncio.to_thread(side.server.start)
            took_ns[side.name].append(time.perf_counter_ns() - started_ns)
            if turn == wanted.starts - 1:
                stack.callback(side.server.__exit__, None, None, None)
            else:
                await asyncio.to_thread(side.server.__exit__, None, None, None)
            progress(turn * len(sides) + number + 1)
    await asyncio.sleep(_SETTLED_S)
    lines = []
    for side in sides:
        found_ns = took_ns[side.name]
        figures = side.memory()
        lines.append(
            measured(
                f"{side.name}: start until ready", found_ns, sum(found_ns) / 1e9, figures=figures
            )
        )
    return lines


@dataclass(slots=True)
class _Posted:
    """What one command has cost on one side, round by round."""

    latencies_ns: array[int] = field(default_factory=lambda: array("Q"))
    seconds: float = 0.0
    spent_s: Counter[str] = field(default_factory=Counter)
    wal_kib: float = 0.0
    each_s: list[float] = field(default_factory=list)
    p50_ns: list[float] = field(default_factory=list)

    def add(self, result: LoadResult, before: Spent, after: Spent) -> None:
        """Take a turn: its result, and what was spent before and after."""
        spent = {layer: after.cpu_s[layer] - before.cpu_s[layer] for layer in after.cpu_s}
        self.wal_kib += after.wal_kib - before.wal_kib
        self.latencies_ns.extend(result.latencies)
        self.seconds += result.elapsed_s
        self.spent_s.update(spent)
        self.each_s.append(sum(spent.values()) / result.accepted)
        self.p50_ns.append(median(result.latencies))

    def line(self, name: str, of: _Posted | None) -> Measurement:
        """What it was; ``of`` is the other side, and ratios are the medians of all rounds."""
        count = len(self.latencies_ns)
        figures = {
            f"{layer}_cpu_s_per_1000": spent / count * 1000 for layer, spent in self.spent_s.items()
        }
        figures["wal_kib_each"] = self.wal_kib / count
        figures["cpu_s_per_1000"] = sum(self.spent_s.values()) / count * 1000
        if of is not None:
            figures["cpu_ratio"] = _ratio(self.each_s, of.each_s)
            figures["p50_ratio"] = _ratio(self.p50_ns, of.p50_ns)
        return measured(name, self.latencies_ns, self.seconds, figures=figures)


def _ratio(these: Sequence[float], others: Sequence[float]) -> float:
    return median(one / other for one, other in zip(these, others, strict=True))


async def _commands(sides: Sequence[_Side], wanted: Plan, bar: ProgressBar) -> list[Measurement]:
    """Each command on both sides, one after the other, first on this one, then on that one."""
    documents = {side.name: await side.client.document() for side in sides}
    each = wanted.few // wanted.rounds
    found: dict[tuple[str, str], _Posted] = {}
    progress = bar("commands", wanted.rounds)
    for number in range(wanted.rounds):
        chosen = slice(number * each, (number + 1) * each)
        for what, bodies in _COMMANDS.items():
            for side in sides if number % 2 == 0 else reversed(sides):
                asking = _Asking(side.known, documents[side.name], chosen, wanted.repeated)
                made = list(bodies(asking))
                before = side.spent()
                result = await asyncio.to_thread(side.post, made)
                posted = found.setdefault((what, side.name), _Posted())
                posted.add(result, before, side.spent())
        progress(number + 1)
    lines = []
    for what in _COMMANDS:
        few = found[what, "few"]
        lines += [few.line(f"few: {what}", None), found[what, "many"].line(f"many: {what}", few)]
    return lines


@dataclass(frozen=True, slots=True)
class _Asking:
    """The commands of a round, signed."""

    known: Known
    mediator: DidDocument
    chosen: slice
    repeated: int

    def messages(self) -> Iterator[bytes]:
        """One to each whose turn it is."""
        for recipient in self.known.recipients[self.chosen]:
            yield _signed(self.known.sender, recipient.did, _PAYLOAD, Channel.TWO_WAY_PRIVATE)

    def more_messages(self) -> Iterator[bytes]:
        """Some to each."""
        for _ in range(self.repeated):
            yield from self.messages()

    def queries(self) -> Iterator[bytes]:
        """Each asks some times what waits for it."""
        payload = {
            "type": "QUERY_PENDING_EVENTS",
            "filter": {},
            "pagination": {"page": 0, "page_size": 10},
        }
        for recipient in [*self.known.recipients[self.chosen]] * self.repeated:
            yield _signed(recipient, self.mediator.did, payload)

    def registrations(self) -> Iterator[bytes]:
        """As many of identities that are new."""
        until_s = _SOURCES.now_ms() // 1000 + REGISTERED_S
        for number, _ in enumerate(itertools.repeat(None, len(self.known.recipients[self.chosen]))):
            new, ephemeral = Identity.create(f"new-{number}", self.mediator.did), new_key_pair()
            payload = {
                "type": "REQUEST_COMMUNICATION_CONTRACT",
                "encrypted_contract_request": sealed_request(
                    new, ephemeral, self.mediator, until_s
                ),
                "requestor_ephemeral_public_key": b64encode(ephemeral.public),
            }
            yield _signed(new, self.mediator.did, payload)


_COMMANDS: Final[dict[str, Callable[[_Asking], Iterator[bytes]]]] = {
    "message to an identity not in memory": _Asking.messages,
    "message": _Asking.more_messages,
    "query": _Asking.queries,
    "registration": _Asking.registrations,
}


def _signed(
    by: Identity,
    to: str,
    payload: Mapping[str, object] | str,
    channel: Channel = Channel.DIRECT_AUTHENTICATED,
) -> bytes:
    now_ms, nonce = _SOURCES.now_ms(), _SOURCES.new_nonce()
    return signed_command(by, channel, to, payload, now_ms=now_ms, nonce=nonce)
