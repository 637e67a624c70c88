"""The courier of one edge: which agents have something on its way, and no more than so many.

It is told of agents and forgets them when nothing is left; what it does not keep in mind is found
again by whoever looks through the queues (``found_waiting``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from contextvars import Context

from http_edge.outbound.rounds import Office, Rounds

_LOG = logging.getLogger(__name__)


class Courier:
    """Delivers what waits for agents that have an endpoint; one for each edge process."""

    def __init__(self, office: Office) -> None:
        """A courier without work."""
        self._office = office
        self._agents: dict[str, Rounds] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False

    def wake(self, did: str) -> None:
        """There may be something for the agent ``did``. Never waits.

        When too many agents are in mind, one that is waiting for its next try is forgotten.
        """
        rounds = self._agents.get(did)
        if rounds is not None:
            rounds.wake()
        elif self._has_room() or self._forget_one_asleep():
            self._start(did)

    def heard_from(self, did: str) -> None:
        """A message of the agent came in: if it is in mind, its endpoint is tried at once."""
        rounds = self._agents.get(did)
        if rounds is not None:
            rounds.try_again()

    def found_waiting(self, dids: Iterable[str]) -> None:
        """Messages wait for these agents; nobody is forgotten in favour of them."""
        for did in dids:
            if did in self._agents:
                self._agents[did].wake()
            elif self._has_room():
                self._start(did)

    def figures(self) -> dict[str, int]:
        """Messages delivered and tries failed since the start, and agents in mind."""
        counts = self._office.counts
        return {
            "delivered": counts["delivered"],
            "failed": counts["failed"],
            "agents": len(self._agents),
        }

    async def close(self) -> None:
        """Let the messages that are on their way arrive, begin no other, and end."""
        self._closing = True
        for rounds in self._agents.values():
            rounds.end()
        tasks = set(self._tasks)
        try:
            if tasks:
                await asyncio.wait(tasks, timeout=self._office.settings.timeout_s)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _has_room(self) -> bool:
        return len(self._agents) < self._office.settings.agents_max

    def _forget_one_asleep(self) -> bool:
        rounds = next(iter(self._office.asleep), None)
        if rounds is None:
            return False
        del self._office.asleep[rounds]
        self._agents.pop(rounds.did, None)
        rounds.end()
        return True

    def _start(self, did: str) -> None:
        if self._closing or not self._office.settings.enabled:
            return
        rounds = self._agents[did] = Rounds(did, self._office)
        task = asyncio.create_task(self._run(did, rounds), context=Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, did: str, rounds: Rounds) -> None:
        try:
            await rounds.run()
        except Exception:  # noqa: BLE001 - one agent's failure is not another's
            _LOG.exception("outbound delivery broke off")
        finally:
            # In one step with the end of the rounds: nobody can wake what has ended.
            if self._agents.get(did) is rounds:
                del self._agents[did]
