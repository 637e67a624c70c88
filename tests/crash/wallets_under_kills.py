"""Wallets of every generation pick up while processes of the mediator are killed.

``python -m tests.crash.wallets_under_kills --kills 200 --seed 7`` runs for long. The time of a
kill is a number of further forwards that were accepted, so every kill hits a mediator that
works again.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp

from eventstore.log.faults import Finding
from eventstore.log.verify import verify
from http_edge.clients.didcomm import (
    Wallet,
    WalletError,
    fetch_invitation,
    fetch_invitation_2,
)
from http_edge.didcomm.envelopes.keys import KeyPair
from tests.cluster.server import Server
from tests.crash.kill_under_load import Mediator, chosen, kill
from tests.crash.pickers import GENERATIONS, ByAll, ByPickup2, ByTwoDevices, Picker
from tests.crash.pickup_ledger import (
    Fate,
    Kept,
    PickupLedger,
    PickupResult,
    check_pickup,
    kept_in,
)
from tests.crash.registrar import Registrar
from tests.crash.rounds import in_rounds
from tests.crash.wallet_load import PAUSE_S, Mailbox, WalletLoad

SENDERS: Final = 6
KEYS_PER_WALLET: Final = 2
FURTHER_FORWARDS: Final = (30, 150)
LEASE_S: Final = 3.0
SETTINGS: Final = {
    "didcomm.lease_s": f"{LEASE_S}",
    # One wallet is all wallets here.
    "didcomm.socket_messages_per_s_max": "10000",
}
_SERVED_S_MAX: Final = 60.0


@dataclass(frozen=True, slots=True)
class PickupOutcomes:
    """What a run came to."""

    kills: Counter[str]
    accepted: int
    unknown: int
    offered: int
    repeated: int
    acknowledged: int
    keys: int
    broken: list[str]
    findings: list[Finding]
    result: PickupResult
    seconds: float

    @property
    def is_clean(self) -> bool:
        """Was every promise kept?"""
        return self.result.is_clean and not self.findings and not self.broken

    def __str__(self) -> str:
        killed = ", ".join(f"{name} {count}" for name, count in self.kills.items())
        return (
            f"{self.kills.total()} kills ({killed}) in {self.seconds:.0f} s,"
            f" {self.accepted} accepted, {self.unknown} unknown, {self.offered} offered,"
            f" {self.repeated} of them again, {self.acknowledged} acknowledged; {self.result};"
            f" {self.keys} keys, {len(self.broken)} promises about keys, rules and connections"
            f" broken {self.broken or ''}; {len(self.findings)} findings in the log"
        )


@dataclass(frozen=True, slots=True)
class WalletsOfRun:
    """All wallets of a run."""

    load: WalletLoad
    pickers: Sequence[Picker]
    registrar: Registrar

    async def work(self, faults: Callable[[], Awaitable[None]]) -> None:
        """All wallets work while these faults happen."""
        mailboxes = [box for picker in self.pickers for box in picker.mailboxes]
        names = [f"sender-{number}" for number in range(SENDERS)]
        turns = in_rounds(self.load.chance, mailboxes)
        working = [asyncio.create_task(self.load.write(name, mailboxes, turns)) for name in names]
        working += [asyncio.create_task(picker.work(self.load)) for picker in self.pickers]
        working.append(asyncio.create_task(self.registrar.work(self.load)))
        try:
            await faults()
        finally:
            self.load.stopping = True
            await asyncio.gather(*working)

    async def settle(self) -> None:
        """Drain every queue, and check what has to hold. Raises: WalletError."""
        async with asyncio.timeout(_SERVED_S_MAX):
            while True:
                if await self._is_served():
                    break
                await asyncio.sleep(PAUSE_S)
        for picker in self.pickers:
            await picker.drain(self.load)
        registrar = self.registrar
        await registrar.check(self.load.ledger.kills)
        owned = list(registrar.owned.values())
        owner = ByPickup2("registrar", registrar.owner, owned)
        for number, recipient in enumerate(owned):
            to = [Mailbox(owner.name, recipient)]
            await self.load.send("all wallets", KeyPair.new(), f"to key {number}", to)
        await owner.drain(self.load)

    async def _is_served(self) -> bool:
        try:
            for picker in self.pickers:
                await picker.wallet.status()
        except WalletError:
            return False
        return True


async def run(server: Server, kills: int, seed: int) -> PickupOutcomes:
    """Load, kills, and the reckoning; the server runs already, with ``SETTINGS``."""
    chance = random.Random(seed)  # noqa: S311 - repeatable
    targets = chosen(chance, kills)

    async def kill_all(network: WalletsOfRun) -> None:
        load = network.load
        for target in targets:
            await load.more(chance.randrange(*FURTHER_FORWARDS))
            load.ledger.kills += 1
            await kill(server, target, chance)

    return await endure(server, kill_all, Counter(target.value for target in targets), chance)


async def endure(
    mediator: Mediator,
    faults: Callable[[WalletsOfRun], Awaitable[None]],
    counts: Counter[str],
    chance: random.Random,
    *,
    pause_s: float = 0.0,
    unknown_may_come_late: bool = False,
) -> PickupOutcomes:
    """Load, faults, and the reckoning; ``counts`` says how many of which kind they are."""
    started = time.monotonic()
    ledger = PickupLedger(LEASE_S, unknown_may_come_late=unknown_may_come_late)
    async with aiohttp.ClientSession() as session:
        newer = await fetch_invitation_2(session, f"{mediator.url}/invitation")
        load = WalletLoad(session, ledger, chance, newer.did, pause_s=pause_s)
        network = await _settlers(mediator, load)
        await network.work(lambda: faults(network))
        await network.settle()
    findings: list[Finding] = []
    kept: list[Kept] = []
    for log in mediator.logs():
        with closing(log):
            findings += [found for found in verify(log) if isinstance(found, Finding)]
            kept += kept_in(log)
    return PickupOutcomes(
        kills=counts,
        accepted=ledger.count(Fate.ACCEPTED),
        unknown=ledger.count(Fate.UNKNOWN),
        offered=len(ledger.offers),
        repeated=ledger.repeated(),
        acknowledged=len(ledger.removed),
        keys=len(network.registrar.owned),
        broken=network.registrar.broken,
        findings=findings,
        result=check_pickup(ledger, kept),
        seconds=time.monotonic() - started,
    )


async def _settlers(server: Mediator, load: WalletLoad) -> WalletsOfRun:
    """One wallet for each generation, one that uses all of them, and who changes keylists."""
    invitation = await fetch_invitation(load.session, f"{server.url}/invitation")
    pickers: list[Picker] = []
    kinds: tuple[type[Picker], ...] = (*GENERATIONS, ByAll, ByTwoDevices)
    for generation in kinds:
        wallet = await Wallet.connect(invitation, session=load.session)
        recipients = [await wallet.new_recipient() for _ in range(KEYS_PER_WALLET)]
        pickers.append(generation(generation.__name__, wallet, recipients))
    owner = await Wallet.connect(invitation, session=load.session)
    stranger = await Wallet.connect(invitation, session=load.session)
    await stranger.request_mediation()
    granted, status = await owner.request_mediation(), await owner.queue_status()
    limits = [status.message_count_limit]
    registrar = Registrar(owner, stranger, granted, invitation, limits)
    return WalletsOfRun(load, pickers, registrar)


def main() -> None:
    """Run with the arguments of the command line; exit code 1 when a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    arguments = parser.parse_args()
    settings = SETTINGS | dict(assignment.split("=", 1) for assignment in arguments.set)
    with (
        tempfile.TemporaryDirectory() as directory,
        Server(Path(directory) / "data", **settings) as server,
    ):
        outcomes = asyncio.run(run(server, arguments.kills, arguments.seed))
    sys.stdout.write(f"{outcomes}\n")
    sys.exit(0 if outcomes.is_clean else 1)


if __name__ == "__main__":
    main()
