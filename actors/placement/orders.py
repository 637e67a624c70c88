"""Orders to dedicate identities, each kept until it is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

import msgspec

from actors.core.commands import DedicationReason
from actors.placement.port import Placed

ORDER_S_MAX: Final = 30.0
"""An order that takes longer is answered as not carried out."""


class _Order(msgspec.Struct):
    by: DedicationReason
    since_s: float
    done: asyncio.Future[Placed]


class DedicationOrders:
    """The orders under way, one for each identity: by operators, by settings or by load."""

    def __init__(self) -> None:
        self._orders: dict[str, _Order] = {}
        self._is_over = False

    def __contains__(self, did: object) -> bool:
        return did in self._orders

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._orders))

    def take(self, did: str, by: DedicationReason, now_s: float) -> asyncio.Future[Placed]:
        """Take an order; return a future for its answer, which comes when it is done or overdue."""
        done: asyncio.Future[Placed] = asyncio.get_running_loop().create_future()
        self._orders[did] = _Order(by, now_s, done)
        if self._is_over:
            self.give_up()
        return done

    def by(self, did: str) -> DedicationReason | None:
        """The reason of the order for an identity; None if there is no order any more."""
        order = self._orders.get(did)
        return None if order is None else order.by

    def answer(self, did: str, placed: Placed) -> None:
        """Answer the order for an identity, if there is one."""
        order = self._orders.pop(did, None)
        if order is not None and not order.done.done():
            order.done.set_result(placed)

    def give_up_overdue(self, now_s: float) -> None:
        """Answer the orders that have taken too long."""
        for did, order in list(self._orders.items()):
            if now_s - order.since_s > ORDER_S_MAX:
                self.answer(did, Placed.DID_NOT_ANSWER)

    def give_up(self) -> None:
        """Answer all orders, later ones at once: no look at the hosts will answer any more."""
        self._is_over = True
        for did in self:
            self.answer(did, Placed.DID_NOT_ANSWER)
