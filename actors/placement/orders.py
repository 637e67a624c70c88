"""Orders to dedicate identities, each until it is answered, and the steps that carry them out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final, TypeVar

import msgspec

from actors.core.commands import DedicationReason
from actors.placement.port import Placed

ORDER_S_MAX: Final = 30.0
"""An order that is not carried out by then is answered as one that did not come to its end."""
_T = TypeVar("_T")


class _Order(msgspec.Struct):
    by: DedicationReason
    since_s: float
    done: asyncio.Future[Placed]


class DedicationOrders:
    """The orders of operators, of settings and of the load that are under way, one an identity."""

    def __init__(self) -> None:
        """There is none."""
        self._orders: dict[str, _Order] = {}

    def __contains__(self, did: object) -> bool:
        return did in self._orders

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._orders))

    def take(self, did: str, by: DedicationReason, now_s: float) -> asyncio.Future[Placed]:
        """Take an order; its answer comes when it is carried out or overdue."""
        done: asyncio.Future[Placed] = asyncio.get_running_loop().create_future()
        self._orders[did] = _Order(by, now_s, done)
        return done

    def by(self, did: str) -> DedicationReason:
        """Who ordered it."""
        return self._orders[did].by

    def answer(self, did: str, placed: Placed) -> None:
        """Answer the order for an identity, if there is one."""
        order = self._orders.pop(did, None)
        if order is not None and not order.done.done():
            order.done.set_result(placed)

    def give_up_overdue(self, now_s: float) -> None:
        """Answer those that took too long."""
        for did, order in list(self._orders.items()):
            if now_s - order.since_s > ORDER_S_MAX:
                self.answer(did, Placed.DID_NOT_ANSWER)


class Steps:
    """What is under way: one step at a time for each identity."""

    def __init__(self, *, begins: Callable[[], None], ended: Callable[[], None]) -> None:
        """None is; ``begins`` is called when one begins, and ``ended`` when it is over."""
        self._begins, self._ended = begins, ended
        self._moving: set[str] = set()
        self._tasks: set[asyncio.Task[Any]] = set()

    def __contains__(self, did: object) -> bool:
        return did in self._moving

    def dids(self) -> frozenset[str]:
        """The identities with a step under way."""
        return frozenset(self._moving)

    def begin(self, did: str, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        """Begin a step for an identity; until it is over nothing else is done with it."""
        self._moving.add(did)
        self._begins()

        async def step() -> _T:
            try:
                return await work
            finally:
                self._moving.discard(did)
                self._ended()

        return self.run(step())

    def run(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        """Begin what is a step for no identity."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Wait for what is under way."""
        while under_way := [*self._tasks]:
            await asyncio.gather(*under_way)
            # Their callbacks need a turn of the loop, which this does not give where all were done.
            self._tasks.difference_update(under_way)
