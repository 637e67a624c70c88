"""Kill -9 of edge, host or everything under load, again and again; then every promise is checked.

``python -m tests.crash.kill_under_load --kills 200`` runs longer than the tests do.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import aiohttp

from eventstore.verify import Finding, verify
from http_edge.client import Account, ClientError, Identity, MediatorClient
from tests.cluster.people import befriend, client, message, post, register
from tests.cluster.server import EDGE, HOST, MEDIATOR_DID, Server, send
from tests.crash.history import History

PAIRS: Final = 6
ACCEPTED_BETWEEN_KILLS: Final = 120
PAGE: Final = 50
RECOVERY_S_MAX: Final = 90.0
_PROBE_S: Final = 0.05
VICTIMS: Final = ("edge", "host", "everything", "host", "edge")


@dataclass
class Outcome:
    """What a run was like."""

    kills: dict[str, int] = field(default_factory=dict)
    accepted: int = 0
    unknown: int = 0
    removed: int = 0
    replayed: int = 0
    violations: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        kills = ", ".join(f"{n} of {victim}" for victim, n in sorted(self.kills.items()))
        return (
            f"kills: {kills}; accepted {self.accepted}, unknown {self.unknown},"
            f" removed {self.removed}, replayed {self.replayed},"
            f" violations {len(self.violations)}"
        )


class Load:
    """Writers and readers at a mediator that is being killed."""

    def __init__(self, server: Server, seed: int) -> None:
        self._server = server
        self._random = random.Random(seed)  # noqa: S311 - a schedule, not a secret
        self._histories = [History() for _ in range(PAIRS)]
        self._up = asyncio.Event()
        self._up.set()
        self._progress = asyncio.Condition()
        self._stopping = False
        self._outcome = Outcome()

    async def run(self, kills: int) -> Outcome:
        """Load, kill, drain, check."""
        async with client(self._server.url) as mediator:
            pairs = [await self._pair(mediator, number) for number in range(PAIRS)]
            work = [
                asyncio.create_task(task)
                for (writer, reader), history in zip(pairs, self._histories, strict=True)
                for task in (self._write(writer, reader, history), self._read(reader, history))
            ]
            for number in range(kills):
                await self._accepted(ACCEPTED_BETWEEN_KILLS)
                await self._kill(VICTIMS[number % len(VICTIMS)])
            await self._accepted(ACCEPTED_BETWEEN_KILLS)
            self._stopping = True
            await asyncio.gather(*work)
            for (_, reader), history in zip(pairs, self._histories, strict=True):
                await self._drain(reader, history)
            await self._replay(mediator)
        return self._outcome

    def check(self) -> Outcome:
        """The outcome with all that does not hold of the histories and of the log."""
        outcome = self._outcome
        for history in self._histories:
            outcome.accepted += len(history.accepted)
            outcome.unknown += len(history.unknown)
            outcome.removed += len(history.removed)
            outcome.violations += history.check()
        log = self._server.log()
        try:
            outcome.violations += [
                str(found) for found in verify(log) if isinstance(found, Finding)
            ]
        finally:
            log.close()
        return outcome

    async def _pair(self, mediator: MediatorClient, number: int) -> tuple[Account, Account]:
        writer = await register(mediator.as_(Identity.create(f"writer-{number}", MEDIATOR_DID)))
        reader = await register(mediator.as_(Identity.create(f"reader-{number}", MEDIATOR_DID)))
        await befriend(writer, reader)
        return writer, reader

    async def _write(self, writer: Account, reader: Account, history: History) -> None:
        number = 0
        while not self._stopping:
            await self._up.wait()
            number += 1
            payload = f"{number} " + "x" * self._random.randrange(2_000)
            command = message(writer, reader, payload)
            history.sent[payload] = command
            try:
                status, answer = await post(writer.mediator, command)
            except (aiohttp.ClientError, ConnectionError):
                history.unknown.add(payload)
                await asyncio.sleep(_PROBE_S)
                continue
            if status == 200:
                history.accepted[answer["pendingEventId"]] = payload
                async with self._progress:
                    self._progress.notify_all()
            elif status == 503:
                history.unknown.add(payload)
                await asyncio.sleep(_PROBE_S)

    async def _read(self, reader: Account, history: History) -> None:
        while not self._stopping:
            await self._up.wait()
            with suppress(ClientError, aiohttp.ClientError):
                if not await self._read_page(reader, history):
                    await asyncio.sleep(_PROBE_S)
                continue
            await asyncio.sleep(_PROBE_S)

    async def _read_page(self, reader: Account, history: History) -> bool:
        """Receive a page and remove most of it; False when nothing waited."""
        removed_before = set(history.removed)
        page = await reader.query_pending_events(page_size=PAGE)
        history.saw_page(removed_before, [(event.id, event.payload) for event in page.items])
        taken = [event.id for event in page.items if self._random.random() < 0.8]
        if taken:
            await reader.acknowledge_pending_events(taken)
            history.removed.update(taken)
        return bool(page.items)

    async def _drain(self, reader: Account, history: History) -> None:
        """Take everything, until the queue is empty twice."""
        empty = 0
        while empty < 2:
            removed_before = set(history.removed)
            page = await reader.query_pending_events(page_size=1_000)
            history.saw_page(removed_before, [(event.id, event.payload) for event in page.items])
            ids = [event.id for event in page.items]
            if ids:
                await reader.acknowledge_pending_events(ids)
                history.removed.update(ids)
            empty = 0 if ids else empty + 1

    async def _replay(self, mediator: MediatorClient) -> None:
        """No command that was accepted is accepted again."""
        for history in self._histories:
            for payload in list(history.accepted.values())[-200:]:
                _, answer = await post(mediator, history.sent[payload])
                self._outcome.replayed += 1
                if answer.get("code") != "DUPLICATE_NONCE":
                    history.violations.append(f"a replay was answered {answer}")

    async def _accepted(self, more: int) -> None:
        """Wait until this many more messages were accepted."""
        goal = self._count() + more
        async with asyncio.timeout(RECOVERY_S_MAX), self._progress:
            await self._progress.wait_for(lambda: self._count() >= goal)

    def _count(self) -> int:
        return sum(len(history.accepted) for history in self._histories)

    async def _kill(self, victim: str) -> None:
        self._outcome.kills[victim] = self._outcome.kills.get(victim, 0) + 1
        if victim == "everything":
            self._up.clear()
            self._server.kill()
            await asyncio.to_thread(self._server.start)
            self._up.set()
            return
        for pid in self._server.pids(EDGE if victim == "edge" else HOST)[-1:]:
            send(pid, signal.SIGKILL)


def kill_under_load(data_dir: Path, kills: int, *, seed: int = 1, **settings: str) -> Outcome:
    """Run a server under load, kill parts of it, and check what clients saw."""
    with Server(data_dir, **settings) as server:
        return asyncio.run(_run(server, kills, seed))


async def _run(server: Server, kills: int, seed: int) -> Outcome:
    load = Load(server, seed)
    await load.run(kills)
    return await asyncio.to_thread(load.check)


def main(arguments: Sequence[str]) -> int:
    """The longer run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as directory:
        outcome = kill_under_load(Path(directory) / "data", options.kills, seed=options.seed)
    print(outcome)  # noqa: T201 - the result
    for violation in outcome.violations[:20]:
        print(violation)  # noqa: T201 - the result
    return 1 if outcome.violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
