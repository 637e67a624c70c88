"""The delivery workers of one edge: one for each agent with messages to deliver, up to a bound.

A worker starts when messages wait for its agent and ends when none is left. If there is no room for
a worker, the sweep through the queues finds its agent again (``found_waiting``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from contextvars import Context

from actors.host.tasks import Tasks
from http_edge.didcomm.outbound.worker import DeliveryQueue, DeliveryWorker

_LOG = logging.getLogger(__name__)


class DeliveryWorkers:
    """Delivers waiting messages to agents that have an endpoint; one for each edge process."""

    def __init__(self, queue: DeliveryQueue) -> None:
        self._queue = queue
        self._agents: dict[str, DeliveryWorker] = {}
        self._tasks = Tasks()
        self._closing = False

    def wake(self, did: str) -> None:
        """Start or wake the worker of agent ``did``, who may have messages. Never waits.

        If there are too many workers, one that waits for its queries or its next try is stopped, or
        one that waits for a place and whose endpoint has not answered quickly.
        """
        worker = self._agents.get(did)
        if worker is not None:
            worker.wake()
        elif self._has_room() or self._stop_one_that_waits():
            self._start(did)

    def sender_seen(self, did: str) -> None:
        """Try the endpoint of an agent at once, if it has a worker: a message of it came in."""
        worker = self._agents.get(did)
        if worker is not None:
            worker.try_again()

    def found_waiting(self, dids: Iterable[str]) -> None:
        """Start or wake workers for agents with waiting messages; stop no other for them."""
        for did in dids:
            if did in self._agents:
                self._agents[did].wake()
            elif self._has_room():
                self._start(did)

    def figures(self) -> dict[str, int]:
        """Return counts of delivered messages and failed tries since the start, and of workers."""
        counts = self._queue.counts
        return {
            "delivered": counts["delivered"],
            "failed": counts["failed"],
            "agents": len(self._agents),
        }

    async def close(self, seconds_max: float) -> None:
        """Complete the deliveries under way, begin no others, and end.

        A worker that only waits, also for a place or a document, is cancelled at once. A delivery
        that takes longer than ``seconds_max`` is cancelled: its message stays queued and is
        delivered again.
        """
        self._closing = True
        for worker in self._agents.values():
            worker.end()
        for waiting in self._queue.waiting.values():
            waiting.cancel()
        tasks = set(self._tasks)
        try:
            if tasks:
                await asyncio.wait(tasks, timeout=seconds_max)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _has_room(self) -> bool:
        return len(self._agents) < self._queue.settings.agents_max

    def _stop_one_that_waits(self) -> bool:
        waiting = self._queue.waiting
        worker = next(iter(waiting), None)
        if worker is None:
            return False
        waiting.pop(worker).cancel()
        self._agents.pop(worker.did, None)
        return True

    def _start(self, did: str) -> None:
        if self._closing or not self._queue.settings.enabled:
            return
        worker = self._agents[did] = DeliveryWorker(did, self._queue)
        _ = self._tasks.run(self._run(did, worker), Context())

    async def _run(self, did: str, worker: DeliveryWorker) -> None:
        try:
            await worker.run()
        except Exception:  # noqa: BLE001 - one agent's failure is not another's
            _LOG.exception("a delivery worker failed")
        finally:
            # In one step with the end of the worker, so that no ended worker can be woken.
            if self._agents.get(did) is worker:
                del self._agents[did]
