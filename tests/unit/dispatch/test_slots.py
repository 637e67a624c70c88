"""Slots that those who wait get in turn: each is passed on, however its holder ends."""

from __future__ import annotations

import asyncio

from http_edge.dispatch.slots import TurnSlots


class OneSlot:
    """Those who take the one slot, in the order in which they got it."""

    def __init__(self) -> None:
        self.slots = TurnSlots(1)
        self.served: list[str] = []

    async def serve(self, name: str) -> None:
        async with self.slots.slot(name, 1.0):
            self.served.append(name)

    async def waiting(self, *names: str) -> list[asyncio.Task[None]]:
        tasks = [asyncio.create_task(self.serve(name)) for name in names]
        await asyncio.sleep(0)
        return tasks


async def test_a_slot_is_passed_over_who_has_stopped_waiting() -> None:
    pool = OneSlot()
    async with asyncio.timeout(10):
        async with pool.slots.slot("first", 1.0):
            second, third = await pool.waiting("second", "third")
            second.cancel()
            await asyncio.wait([second])
        await third
    assert pool.served == ["third"]


async def test_a_slot_of_who_is_cancelled_as_its_turn_begins_goes_to_the_next() -> None:
    pool = OneSlot()
    async with pool.slots.slot("first", 1.0):
        second, third = await pool.waiting("second", "third")
    second.cancel()  # it has the slot already, and has not run since
    async with asyncio.timeout(10):
        await third
        assert (second.cancelled(), pool.served) == (True, ["third"])
        async with pool.slots.slot("another", 1.0):
            (last,) = await pool.waiting("last")
            last.cancel()
            await asyncio.wait([last])
        await pool.serve("again")
    assert pool.served == ["third", "again"]
