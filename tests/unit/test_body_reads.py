"""Bodies that arrive together are read in one go, each for who brought it."""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar

import pytest

from http_edge.listener.address_charge import AddressCharge, AddressRates, charged_to
from http_edge.listener.body_reads import LARGE_BYTES, BodyReads, in_reading_thread
from http_edge.settings.settings import Rates

WHO: ContextVar[str] = ContextVar("who", default="")


async def test_all_that_arrived_in_one_turn_are_read_before_any_is_answered() -> None:
    reads, order = BodyReads(), list[str]()

    async def handle(name: str) -> None:
        order.append(f"{name} arrived")
        await reads.read(1, lambda: order.append(f"{name} read"))
        order.append(f"{name} answered")

    await asyncio.gather(*map(handle, "ab"))
    assert order == [f"{name} {what}" for what in ("arrived", "read", "answered") for name in "ab"]


async def test_bodies_that_take_long_let_the_event_loop_do_its_other_work_in_between() -> None:
    passed_s, order = [0.0], list[str]()
    reads = BodyReads(now_s=lambda: passed_s[0])

    def slow() -> None:
        passed_s[0] += 0.003
        order.append("read")

    bodies = [asyncio.ensure_future(reads.read(1, slow)) for _ in range(5)]
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_soon(order.append, "other work")
    await asyncio.gather(*bodies)
    assert order == ["read", "read", "other work", "read", "read", "read"]


async def test_a_body_that_fails_fails_for_who_brought_it_alone() -> None:
    reads = BodyReads()

    def broken() -> str:
        raise ValueError("broken")

    first, second = await asyncio.gather(
        reads.read(1, broken), reads.read(1, lambda: "fine"), return_exceptions=True
    )
    assert isinstance(first, ValueError)
    assert second == "fine"
    assert await reads.read(1, lambda: "later") == "later"


@pytest.mark.parametrize("size_bytes", [1, LARGE_BYTES + 1])
async def test_a_body_is_read_in_the_context_of_who_brought_it(size_bytes: int) -> None:
    reads = BodyReads()

    async def handle(name: str) -> str:
        WHO.set(name)
        return await reads.read(size_bytes, WHO.get)

    assert await asyncio.gather(*map(handle, "ab")) == ["a", "b"]


async def test_what_no_request_waits_for_any_more_is_not_read() -> None:
    reads, read = BodyReads(), list[str]()
    gone = asyncio.ensure_future(reads.read(1, lambda: read.append("gone")))
    stays = asyncio.ensure_future(reads.read(1, lambda: read.append("stays")))
    await asyncio.sleep(0)
    gone.cancel()
    await stays
    with pytest.raises(asyncio.CancelledError):
        await gone
    assert read == ["stays"]


async def test_a_large_body_is_read_beside_the_event_loop() -> None:
    reads, here = BodyReads(), threading.current_thread().name
    names = [await reads.read(size, lambda: threading.current_thread().name) for size in (1, 32)]
    assert names == [here, here]
    assert await reads.read(LARGE_BYTES + 1, lambda: threading.current_thread().name) != here


async def test_large_bodies_of_one_address_do_not_hold_up_those_of_others() -> None:
    """Of many that wait, another address waits for those at the thread, and one of each address."""
    rates, held, read = AddressRates(Rates(), 1), threading.Event(), list[str]()

    async def bring(address: str, size_bytes: int) -> None:
        def work() -> None:
            held.wait()
            read.append(address)

        charged_to(AddressCharge(rates, address, lambda: 0.0))
        await in_reading_thread(work, size_bytes)

    many = [asyncio.ensure_future(bring("many", 1_000_000)) for _ in range(10)]
    gone = asyncio.ensure_future(bring("gone", 40_000))
    await asyncio.sleep(0)
    honest = [asyncio.ensure_future(bring("honest", 40_000)) for _ in range(5)]
    await asyncio.sleep(0)
    gone.cancel()
    held.set()
    await asyncio.wait_for(asyncio.gather(*honest), 10)
    assert read[:3].count("many") == 3
    assert read[3:8] == ["honest"] * 5
    await asyncio.gather(*many)
    assert read[8:] == ["many"] * 7
