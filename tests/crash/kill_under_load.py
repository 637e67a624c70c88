"""Clients write and read while processes of the mediator are killed at random times.

``python -m tests.crash.kill_under_load --kills 200 --seed 7`` runs for long. The time of a kill
is a number of further acknowledgements, so every kill hits a mediator that was at work again.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final, Protocol

from eventstore.log.event_log import EventLog
from eventstore.log.faults import Finding
from eventstore.log.verify import verify
from http_edge.clients.decentrl import (
    Account,
    ClientError,
    CommandRefused,
    MediatorClient,
    MediatorUnreachable,
    OutcomeUnknown,
)
from tests.cluster.accounts import befriend, client, message, newcomer, until
from tests.cluster.server import EDGE, HOST, Server, send
from tests.crash.ledger import Delivery, Ledger, LedgerResult, Outcome, check
from tests.crash.rounds import in_rounds

WRITERS: Final = 8
READERS: Final = 3
FURTHER_ACKS: Final = (50, 250)
REPLAYS_AT_ONCE: Final = 16
REPLAYABLE_S: Final = 270
"""Less than the 300 s in which a command's timestamp is believed."""
_PAGE: Final = 50
_TEXT_BYTES_MAX: Final = 2_000
_PAUSE_S: Final = 0.2
"""Before a client tries again what was not answered: what starts anew needs the machine more."""
_IDLE_S: Final = 0.02
"""Before a reader that found nothing asks again, for the same reason."""
_SILENT_S_MAX: Final = 120.0
"""Without an acknowledgement: a mediator that was killed is slow to start on a busy machine."""


class Target(Enum):
    """What is killed."""

    EDGE = "edge"
    HOST = "host"
    EVERYTHING = "everything"


WEIGHTS: Final = {Target.EDGE: 9, Target.HOST: 9, Target.EVERYTHING: 2}


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What a run came to."""

    kills: dict[str, int]
    accepted: int
    unknown: int
    delivered: int
    removed: int
    replayed: int
    replays_accepted: list[str]
    findings: list[Finding]
    result: LedgerResult
    seconds: float

    @property
    def is_clean(self) -> bool:
        """Was every promise kept?"""
        return self.result.is_clean and not self.findings and not self.replays_accepted

    def __str__(self) -> str:
        killed = ", ".join(f"{name} {count}" for name, count in self.kills.items())
        wrong = self.result
        return (
            f"{sum(self.kills.values())} kills ({killed}) in {self.seconds:.0f} s,"
            f" {self.accepted} accepted, {self.unknown} unknown, {self.delivered} delivered,"
            f" {self.removed} removed; lost {wrong.lost or 0}, duplicated {len(wrong.duplicated)},"
            f" undone {len(wrong.undone)}, disordered {len(wrong.disordered)}"
            f" ({wrong.late} unknown late), vanished {len(wrong.vanished)},"
            f" strange {len(wrong.strange)}; {self.replayed} replays,"
            f" {len(self.replays_accepted)} accepted; {len(self.findings)} findings in the log"
        )


class Mediator(Protocol):
    """The accounts under load."""

    @property
    def url(self) -> str:
        """Where clients reach it."""

    def logs(self) -> Sequence[EventLog]:
        """The databases of its log, opened beside it."""


@dataclass(slots=True)
class Load:
    """The clients of one run, and what they know.

    ``pause_s`` is how long a writer rests between two messages, and a reader that found nothing.
    ``accepted_at`` has, of each pair
    of a sender and a recipient, when the last message was sent that was accepted.
    """

    server: Mediator
    chance: random.Random
    ledger: Ledger = field(default_factory=Ledger)
    bodies: list[tuple[float, bytes]] = field(default_factory=list)
    progress: asyncio.Event = field(default_factory=asyncio.Event)
    accepted_at: dict[tuple[str, str], float] = field(default_factory=dict)
    pause_s: float = 0.0
    stopping: bool = False
    readers: list[Account] = field(default_factory=list)
    writers: list[Account] = field(default_factory=list)

    async def write(self, writer: Account, readers: Sequence[Account]) -> None:
        """Send one message after the other; each intent is noted before it is sent."""
        did = writer.identity.did
        for number, reader in enumerate(in_rounds(self.chance, readers)):
            if self.stopping:
                return
            filler = "x" * self.chance.randrange(_TEXT_BYTES_MAX)
            text = f"{number} of {did} {filler}"
            attempt = self.ledger.intend(did, reader.identity.did, text)
            body, sent_at = message(writer, reader, text), time.monotonic()
            try:
                await writer.mediator.transport.post(body)
            except MediatorUnreachable:
                attempt.outcome = Outcome.UNSENT
                await asyncio.sleep(max(self.pause_s, _PAUSE_S))
            except OutcomeUnknown:
                await asyncio.sleep(max(self.pause_s, _PAUSE_S))
            else:
                attempt.outcome = Outcome.ACCEPTED
                self.bodies.append((time.monotonic(), body))
                self.accepted_at[did, reader.identity.did] = sent_at
                self.progress.set()
                await asyncio.sleep(self.pause_s)

    async def read(self, reader: Account) -> None:
        """Take what waits and acknowledge it, some of it later."""
        while not self.stopping:
            try:
                if not await self.take_page(reader):
                    await asyncio.sleep(max(self.pause_s, _IDLE_S))
            except (MediatorUnreachable, OutcomeUnknown):
                await asyncio.sleep(_PAUSE_S)

    async def take_page(self, reader: Account) -> bool:
        """One page of what waits, and the acknowledgement of some of it: was there any?"""
        did = reader.identity.did
        page = await reader.query_pending_events(page_size=_PAGE)
        for event in page.items:
            self.ledger.deliver(Delivery(did, event.sender_did, event.id, event.payload))
        ids = [event.id for event in page.items if self.stopping or self.chance.random() < 0.8]
        if ids:
            self.ledger.acknowledge(ids)
            await reader.acknowledge_pending_events(ids)
            self.ledger.remove(ids)
        return bool(page.items)

    async def further(self) -> None:
        """Wait for a random number of further acknowledgements."""
        await self.accepted(self.chance.randrange(*FURTHER_ACKS))

    async def accepted(self, more: int) -> None:
        """Wait until so many more were acknowledged. Raises: TimeoutError: for long none was."""
        due = len(self.bodies) + more
        while len(self.bodies) < due:
            self.progress.clear()
            async with asyncio.timeout(_SILENT_S_MAX):
                await self.progress.wait()

    async def drain(self, reader: Account) -> None:
        """Take all that waits, until nothing was there twice; what comes back ends it too."""
        empty = 0
        while empty < 2 and not self.ledger.undone:
            empty = 0 if await self.take_page(reader) else empty + 1

    async def replay(self, mediator: MediatorClient) -> tuple[int, list[str]]:
        """Send every accepted command again: how many, and what was said but DUPLICATE_NONCE."""
        since = time.monotonic() - REPLAYABLE_S
        bodies = [body for at, body in self.bodies if at > since]
        waiting, wrong = iter(bodies), list[str]()

        async def send_again() -> None:
            for body in waiting:
                try:
                    answer = str(await mediator.transport.post(body))
                except ClientError as error:
                    answer = error.code if isinstance(error, CommandRefused) else str(error)
                if answer != "DUPLICATE_NONCE":
                    wrong.append(answer)

        await asyncio.gather(*(send_again() for _ in range(REPLAYS_AT_ONCE)))
        return len(bodies), wrong


async def kill(server: Server, target: Target, chance: random.Random) -> None:
    """Kill, and start again what does not start by itself."""
    if target is Target.EVERYTHING:
        server.kill_everything()
        await asyncio.to_thread(server.start)
    else:
        title = EDGE if target is Target.EDGE else HOST
        send(chance.choice(server.pids(title)), signal.SIGKILL)


def chosen(chance: random.Random, kills: int) -> list[Target]:
    """What is killed, one after the other; of three kills each has another target.

    Everything comes last: then a mediator is asked that knows nothing but the log.
    """
    targets = [Target.EDGE, Target.HOST]
    targets += chance.choices(list(WEIGHTS), list(WEIGHTS.values()), k=max(0, kills - 3))
    chance.shuffle(targets)
    return [*targets[: kills - 1], Target.EVERYTHING]


async def run(server: Server, kills: int, seed: int) -> Outcomes:
    """Load, kills, and the reckoning; the server runs already."""
    chance = random.Random(seed)  # noqa: S311 - repeatable
    targets = chosen(chance, kills)

    async def kill_all(load: Load) -> None:
        for target in targets:
            await load.further()
            await kill(server, target, chance)

    counts = {target.value: targets.count(target) for target in Target}
    return await endure(Load(server, chance), kill_all, counts)


async def endure(
    load: Load, faults: Callable[[Load], Awaitable[None]], counts: dict[str, int]
) -> Outcomes:
    """Load, faults, and the reckoning; ``counts`` says how many of which kind they are."""
    started = time.monotonic()
    async with AsyncExitStack() as opened:
        mediator = await opened.enter_async_context(client(load.server.url))
        load.readers += [await newcomer(mediator, f"reader-{n}") for n in range(READERS)]
        load.writers += [await newcomer(mediator, f"writer-{n}") for n in range(WRITERS)]
        readers, writers = load.readers, load.writers[:]
        for writer, reader in itertools.product(writers, readers):
            await befriend(writer, reader)
        working = [asyncio.create_task(load.write(writer, readers)) for writer in writers]
        working += [asyncio.create_task(load.read(reader)) for reader in readers]
        try:
            await faults(load)
        finally:
            load.stopping = True
            await asyncio.gather(*working)
        await until(lambda: _answers(readers))
        for reader in readers:
            await load.drain(reader)
        replayed, replays_accepted = await load.replay(mediator)
    findings: list[Finding] = []
    for log in load.server.logs():
        with closing(log):
            findings += [found for found in verify(log) if isinstance(found, Finding)]
    ledger = load.ledger
    return Outcomes(
        kills=counts,
        accepted=ledger.count(Outcome.ACCEPTED),
        unknown=ledger.count(Outcome.UNKNOWN),
        delivered=len({delivery.event_id for delivery in ledger.deliveries}),
        removed=len(ledger.removed),
        replayed=replayed,
        replays_accepted=replays_accepted,
        findings=findings,
        result=check(ledger),
        seconds=time.monotonic() - started,
    )


async def _answers(readers: Sequence[Account]) -> bool:
    """Are all accounts served?"""
    for reader in readers:
        await reader.query_pending_events()
    return True


def main() -> None:
    """Run with the arguments of the command line; exit code 1 when a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    arguments = parser.parse_args()
    settings = dict(assignment.split("=", 1) for assignment in arguments.set)
    with (
        tempfile.TemporaryDirectory() as directory,
        Server(Path(directory) / "data", **settings) as server,
    ):
        outcomes = asyncio.run(run(server, arguments.kills, arguments.seed))
    sys.stdout.write(f"{outcomes}\n")
    sys.exit(0 if outcomes.is_clean else 1)


if __name__ == "__main__":
    main()
