"""One attack measured: a mediator, the honest pair alone, then the same beside the attack."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Final

import msgspec

from http_edge.cli.running_mediator import ask
from http_edge.server.exits import Stop
from tests.attacks.attack import Attack
from tests.attacks.attacker import Attacker, Job, prepared
from tests.attacks.disk import DiskWatch
from tests.attacks.figures import Row
from tests.attacks.honest import HonestPair, endpoint_pair, live_pair, message_pair
from tests.attacks.target import Options
from tests.bench.processes import forget_peak, peak_memory_bytes
from tests.bench.server import UNLIMITED
from tests.cluster.server import EDGE, HOST, LINGERING, MEDIATOR_DID, Server

_WARM_UP_S: Final = 2.0
_GATHERS_S: Final = 1.0
"""The attack is under way for so long before the honest pair is measured beside it."""
_FIRST_ADDRESS: Final = 2
_STATUS_S_MAX: Final = 10.0
_PAIRS: Final = {"messages": message_pair, "live": live_pair, "endpoint": endpoint_pair}


class AttackedServer(Server):
    """``poste serve`` with its default settings, on loopback."""

    defaults: Mapping[str, str] = {}

    def __init__(self, data_dir: Path, attack: Attack) -> None:
        super().__init__(data_dir, **{**(UNLIMITED if attack.long_ago else {}), **attack.settings})
        self._measured_settings = {"did": MEDIATOR_DID, **attack.settings}
        if attack.descriptors is not None:
            self.prefix = ("prlimit", f"--nofile={attack.descriptors}:{attack.descriptors}")

    def begin_anew(self) -> None:
        """Stop, and start on the same log with the settings that are measured."""
        self.terminate()
        self.wait_until_gone(but=LINGERING)
        self._settings = dict(self._measured_settings)
        self.start()

    def forget_peaks(self) -> None:
        """Let the peaks count from now."""
        for pid, _ in self.processes():
            forget_peak(pid)

    def peak_bytes(self, title: str) -> int:
        """The highest peak of the processes with this title."""
        return max(map(peak_memory_bytes, self.pids(title)), default=0)

    def status(self) -> None:
        """Ask how it is, as its operator. Raises: Stop: it does not answer."""
        address, token = self.operators()
        ask("GET", address, "/status", token=token, seconds_max=_STATUS_S_MAX)

    def disk(self) -> DiskWatch:
        """A watch of the disk with the log."""
        return DiskWatch(self.data_dir)

    def stored_bytes(self) -> int:
        """The lengths of all values in all tables of the log, without what indexes add."""
        uri = f"file:{self.data_dir / 'log.db'}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True)) as database:
            tables = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            return sum(_bytes_in(database, name) for (name,) in tables.fetchall())


class RunningMediator:
    """A mediator that runs already: nothing is known of its processes and of its log."""

    def __init__(self, url: str) -> None:
        self.url = url

    def begin_anew(self) -> None:
        """It goes on as it is."""

    def forget_peaks(self) -> None:
        """See ``AttackedServer``."""

    def peak_bytes(self, title: str) -> int:
        """See ``AttackedServer``."""
        return 0

    def status(self) -> None:
        """See ``AttackedServer``."""

    def disk(self) -> DiskWatch:
        """A watch of the disk for temporary files: where its log is, is not known."""
        return DiskWatch(Path(tempfile.gettempdir()))

    def stored_bytes(self) -> int:
        """See ``AttackedServer``."""
        return 0


async def measure(attack: Attack, options: Options, url: str | None) -> Row:
    """Measure an attack on a mediator of its own, or on the one at ``url``.

    Raises:
        AttackFailed: its program has a fault.
        AssertionError, ClientError, WalletError: no mediator started, or it refused honest clients.
    """
    async with AsyncExitStack() as stack:
        server: AttackedServer | RunningMediator
        if url is None:
            server = await stack.enter_async_context(_started(attack))
        else:
            server = RunningMediator(url)
        seconds = options.seconds + _GATHERS_S
        attacker, honest = await _both(stack, attack, server, options)
        # A collection of all that stands here would be felt as if the mediator were slow.
        gc.collect()
        gc.freeze()
        await honest.run(_WARM_UP_S)
        before_bytes = server.stored_bytes()
        with server.disk() as disk_alone:
            alone = await honest.run(options.seconds)
        between_bytes = server.stored_bytes()
        server.forget_peaks()
        attacker.begin()
        await asyncio.sleep(_GATHERS_S)
        with server.disk() as disk_beside:
            beside, refused = await asyncio.gather(
                honest.run(options.seconds), _operators_refused(server, options.seconds / 2)
            )
        beside.refused.update(refused)
        did = await attacker.result()
        after_bytes = server.stored_bytes()
        return Row.of(
            attack,
            alone,
            beside,
            did,
            edge_bytes=server.peak_bytes(EDGE),
            host_bytes=server.peak_bytes(HOST),
            disk_p99_ms=max(disk_alone.p99_ms, disk_beside.p99_ms),
            log_bytes=max(0, after_bytes - between_bytes - (between_bytes - before_bytes)),
            seconds=seconds,
        )


async def _both(
    stack: AsyncExitStack,
    attack: Attack,
    server: AttackedServer | RunningMediator,
    options: Options,
) -> tuple[Attacker, HonestPair]:
    """An attack that has prepared itself, and the pair, which it knows unless it was there first.

    Raises:
        AttackFailed, ClientError, WalletError: as ``measure``.
    """
    sources = [f"127.0.0.{_FIRST_ADDRESS + number}" for number in range(attack.addresses)]
    wanted = msgspec.structs.replace(options, seconds=options.seconds + _GATHERS_S)
    pair = _PAIRS[attack.pair]
    if attack.long_ago:
        job = Job(attack.name, server.url, sources, wanted)
        attacker = await stack.enter_async_context(prepared(job))
        await asyncio.to_thread(server.begin_anew)
        return attacker, await stack.enter_async_context(pair(server.url))
    honest = await stack.enter_async_context(pair(server.url))
    wanted = msgspec.structs.replace(wanted, known=honest.known)
    job = Job(attack.name, server.url, sources, wanted)
    return await stack.enter_async_context(prepared(job)), honest


async def _operators_refused(
    server: AttackedServer | RunningMediator, after_s: float
) -> dict[str, int]:
    """What an operator misses who looks after the mediator within an attack."""
    await asyncio.sleep(after_s)
    try:
        await asyncio.to_thread(server.status)
    except Stop as stopped:
        return {f"operator: {stopped.message}": 1}
    return {}


@asynccontextmanager
async def _started(attack: Attack) -> AsyncIterator[AttackedServer]:
    with tempfile.TemporaryDirectory(prefix="poste-attack-") as folder:
        server = AttackedServer(Path(folder) / "data", attack)
        try:
            await asyncio.to_thread(server.__enter__)
            yield server
        finally:
            await asyncio.to_thread(server.__exit__, None, None, None)


def _bytes_in(database: sqlite3.Connection, table: str) -> int:
    columns = [row[1] for row in database.execute(f'PRAGMA table_info("{table}")')]
    lengths = " + ".join(f'COALESCE(LENGTH("{name}"), 0)' for name in columns)
    (found,) = database.execute(f'SELECT SUM({lengths}) FROM "{table}"').fetchone()
    return int(found or 0)
