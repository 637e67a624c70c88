"""The delivery workers of one edge: one for each agent with messages to deliver, up to a bound.

A worker starts when messages wait for its agent and ends when none is left. If there is no room for
a worker, or it was stopped for another, a sweep through the queues finds its agent (``sweep``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from typing import Final, TypeAlias

from actors.host.tasks import Tasks
from eventstore.log.event_log import WaitingQueue
from http_edge.didcomm.outbound.worker import DeliveryQueue, DeliveryWorker

_LOG = logging.getLogger(__name__)
_SHARE: Final = 100
"""A sweep stops one in so many workers at most for the agents that it found, whatever they wait
for: there are slots for some deliveries to slow endpoints, and it may be a slot."""
_FAILED_SHARE: Final = 10
"""But one in so many if these have failed, so that ten times as many agents as workers have a try
within a quarter of an hour. A new worker tries once, then after the longest pause: each try at an
endpoint that fails is rows in the log."""
FindQueues: TypeAlias = Callable[[int, WaitingQueue | None], Awaitable[Sequence[WaitingQueue]]]
"""Returns up to so many queues with messages for endpoints, oldest first, after one of them."""


class DeliveryWorkers:
    """Delivers waiting messages to agents that have an endpoint; one for each edge process."""

    def __init__(self, queue: DeliveryQueue) -> None:
        self._queue = queue
        self._agents: dict[str, DeliveryWorker] = {}
        self._tasks = Tasks()
        self._closing = False
        self._after: WaitingQueue | None = None
        self._until_ms = 0
        """Where the next sweep goes on, and when its round of sweeps began."""

    def wake(self, did: str) -> None:
        """Start or wake the worker of agent ``did``, who may have messages. Never waits.

        If there are too many workers, one that waits for its queries or its next try is stopped, or
        one that waits for a slot and whose endpoint has not answered quickly.
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

    async def sweep(self, find: FindQueues) -> None:
        """Start or wake workers for the next agents of all whose messages wait.

        It goes on after the last one that the sweep before reached. A round of sweeps ends with
        what came after its begin, so that the oldest come again however many new ones there are.
        """
        limit, now_ms = self._queue.settings.agents_max, self._queue.clock()
        if self._after is None or now_ms < self._until_ms:  # it began by a clock that was ahead
            self._until_ms = now_ms
        found = await find(limit, self._after)
        reached = self.found_waiting([queue.did for queue in found])
        last = found[reached - 1] if reached else self._after
        # Times still to come are by a clock that was ahead: such messages may be from before.
        is_over = last is not None and self._until_ms < last.oldest_at_ms <= self._queue.clock()
        self._after = None if is_over or reached == len(found) < limit else last

    def found_waiting(self, dids: Sequence[str]) -> int:
        """Start or wake workers for agents with waiting messages, in order; return for how many.

        If there are too many workers, a share of them is stopped for these, as in ``wake``:
        failed ones alone if they are more than one in ``_SHARE``, else whichever have waited for
        longest; none while workers wait for their queries: these have not begun yet.
        """
        stoppable = iter(() if self._queue.querying.locked() else self._stoppable())
        workers = [self._agents.get(did) for did in dids]  # one that is stopped here stays so
        for reached, (did, worker) in enumerate(zip(dids, workers, strict=True)):
            if worker is not None:
                worker.wake()
            elif self._has_room():
                self._start(did)
            elif (stopped := next(stoppable, None)) is not None:
                self._stop(stopped)
                self._start(did, is_in_turn=True)
            else:
                return reached
        return len(dids)

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

        A worker that only waits, also for a slot or a document, is cancelled at once. A delivery
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

    def _stoppable(self) -> Sequence[DeliveryWorker]:
        """The workers that a sweep may stop, those that have waited for longest first.

        More than one in ``_SHARE`` only if all of these have failed.
        """
        waiting, agents_max = self._queue.waiting, self._queue.settings.agents_max
        share, failed_share = (max(1, agents_max // each) for each in (_SHARE, _FAILED_SHARE))
        failed = [worker for worker in waiting if worker.has_failed][:failed_share]
        return failed if len(failed) > share else [*waiting][:share]

    def _stop_one_that_waits(self) -> bool:
        worker = next(iter(self._queue.waiting), None)
        if worker is not None:
            self._stop(worker)
        return worker is not None

    def _stop(self, worker: DeliveryWorker) -> None:
        self._queue.waiting.pop(worker).cancel()
        self._agents.pop(worker.did, None)

    def _start(self, did: str, *, is_in_turn: bool = False) -> None:
        if self._closing or not self._queue.settings.enabled:
            return
        worker = self._agents[did] = DeliveryWorker(did, self._queue, is_in_turn=is_in_turn)
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
