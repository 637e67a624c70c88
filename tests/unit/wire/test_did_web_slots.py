"""Slots for the fetches of documents: no host, no client and no name service takes them all."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from http_edge.dids.document import Fetch
from http_edge.dids.fetched import Caller, FetchedDids, WebLimits
from http_edge.dids.web import METHODS
from tests.unit.wire.test_did_web import HeldNames


@pytest.mark.parametrize("did", ["did:key:z6Mk", "did:webvh:x:y.example", "did:web:", "no DID", ""])
async def test_what_is_of_no_method_that_is_fetched_is_not_looked_up(did: str) -> None:
    names = HeldNames()
    web_dids = FetchedDids(METHODS, lookup=names)
    assert web_dids.known(did) is None
    assert await web_dids.resolve_in_turn(did) is None
    assert not names.queried.is_set()


async def test_more_fetches_than_the_limit_are_not_started() -> None:
    names = HeldNames()
    web_dids = FetchedDids(METHODS, WebLimits(fetches_max=1), lookup=names)
    first = asyncio.create_task(web_dids.resolve("did:web:first.example"))
    await names.queried.wait()
    assert await web_dids.resolve("did:web:second.example") is None
    assert web_dids.known("did:web:second.example") is Fetch.NEEDED
    names.released.set()
    assert await first is None
    assert await web_dids.resolve("did:web:second.example") is None
    assert web_dids.known("did:web:second.example") is None


async def test_one_host_does_not_take_all_slots() -> None:
    names = HeldNames()
    web_dids = FetchedDids(METHODS, WebLimits(fetches_per_host_max=1), lookup=names)
    first = asyncio.create_task(web_dids.resolve("did:web:slow.example:one"))
    await names.queried.wait()
    assert await web_dids.resolve("did:web:slow.example:two") is None
    assert web_dids.known("did:web:slow.example:two") is Fetch.NEEDED
    other = asyncio.create_task(web_dids.resolve("did:web:other.example"))
    names.released.set()
    assert (await first, await other) == (None, None)
    assert web_dids.known("did:web:other.example") is None, "it was asked for"


async def test_one_client_address_does_not_take_all_slots() -> None:
    names, address = HeldNames(), "stranger"
    web_dids = FetchedDids(
        METHODS,
        WebLimits(fetches_max=2),
        caller=Caller(address=lambda: address),
        lookup=names,
    )
    first = asyncio.create_task(web_dids.resolve("did:web:first.example"))
    await names.queried.wait()
    assert await web_dids.resolve("did:web:second.example") is None
    assert web_dids.known("did:web:second.example") is Fetch.NEEDED
    address = "other"
    other = asyncio.create_task(web_dids.resolve("did:web:other.example"))
    names.released.set()
    assert (await first, await other) == (None, None)
    assert web_dids.known("did:web:other.example") is None, "it was asked for"


@pytest.mark.parametrize("strangers", [4, 8])
async def test_client_addresses_that_take_all_they_can_leave_slots_for_another_one(
    strangers: int,
) -> None:
    names, address, looked_up = HeldNames(), "", list[str]()

    async def lookup(host: str, port: int) -> Sequence[str]:
        looked_up.append(host)
        return await names(host, port)

    caller = Caller(address=lambda: address)
    web_dids, fetches = FetchedDids(METHODS, caller=caller, lookup=lookup), list[Any]()
    for number in range(strangers * WebLimits().fetches_max):
        address = f"stranger {number // WebLimits().fetches_max}"
        fetches.append(asyncio.create_task(web_dids.resolve(f"did:web:slow{number}.example")))
        await asyncio.sleep(0)
    address = "other"
    fetches.append(asyncio.create_task(web_dids.resolve("did:web:other.example")))
    for _ in range(3):  # the fetch waits for nothing but its look-up
        await asyncio.sleep(0)
    assert looked_up[-1] == "other.example"
    names.released.set()
    await asyncio.gather(*fetches)


async def test_who_waits_in_turn_is_not_refused_and_comes_before_who_comes_later() -> None:
    names, looked_up = HeldNames(), list[str]()

    async def lookup(host: str, port: int) -> Sequence[str]:
        looked_up.append(host)
        return await names(host, port)

    web_dids = FetchedDids(
        METHODS,
        WebLimits(fetches_max=1),
        caller=Caller(address=lambda: ""),
        lookup=lookup,
    )
    hosts = [f"{name}.example" for name in ("first", "second", "third", "fourth")]
    fetches = [asyncio.create_task(web_dids.resolve_in_turn(f"did:web:{host}")) for host in hosts]
    await names.queried.wait()
    names.released.set()
    assert await asyncio.gather(*fetches) == [None] * 4
    assert looked_up == hosts


async def test_who_waits_in_turn_is_not_refused_when_others_hold_all_slots() -> None:
    names, address = HeldNames(), "stranger"
    web_dids = FetchedDids(
        METHODS, WebLimits(fetches_max=1), caller=Caller(address=lambda: address), lookup=names
    )
    first = asyncio.create_task(web_dids.resolve("did:web:first.example"))
    await names.queried.wait()
    address = ""
    own = asyncio.create_task(web_dids.resolve_in_turn("did:web:own.example"))
    await asyncio.sleep(0)
    names.released.set()
    assert (await first, await own) == (None, None)
    assert web_dids.known("did:web:own.example") is None, "it was asked for"


async def test_a_look_up_holds_its_slot_until_the_name_service_has_answered() -> None:
    """The thread that waits for it cannot be stopped, and there are as many as slots."""
    names = HeldNames()
    web_dids = FetchedDids(METHODS, WebLimits(timeout_s=0.05, fetches_max=1), lookup=names)
    first, second = "did:web:first.example", "did:web:second.example"
    assert await web_dids.resolve(first) is None
    assert web_dids.known(first) is Fetch.FAILED, "it was given up"
    assert await web_dids.resolve(second) is None
    assert web_dids.known(second) is Fetch.NEEDED
    names.released.set()
    while web_dids.known(second) is Fetch.NEEDED:
        assert await web_dids.resolve(second) is None
        await asyncio.sleep(0)
    assert web_dids.known(second) is None, "it was asked for"
    await web_dids.close()


async def test_a_look_up_that_fails_after_the_time_limit_writes_nothing_to_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Any stranger can name a host whose name service is slow."""
    names = HeldNames()
    web_dids = FetchedDids(METHODS, WebLimits(timeout_s=0.05, fetches_max=1), lookup=names)
    assert await web_dids.resolve("did:web:slow.example") is None
    names.released.set()
    while web_dids.known("did:web:other.example") is Fetch.NEEDED:  # until the slot is free
        assert await web_dids.resolve("did:web:other.example") is None
        await asyncio.sleep(0)
    gc.collect()  # an unseen exception is logged when its task is collected
    assert [line for line in caplog.records if line.levelno >= logging.WARNING] == []


async def test_no_look_up_waits_for_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    held, answered, slots = threading.Event(), threading.Event(), 31

    def query(host: str, *_: object, **__: object) -> None:
        if host == "honest.example":
            answered.set()
        else:
            held.wait(30)
        raise OSError("Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", query)
    web_dids = FetchedDids(METHODS, WebLimits(timeout_s=5))
    slow = [web_dids.resolve(f"did:web:s{number}.example") for number in range(slots)]
    strangers = [asyncio.create_task(each) for each in slow]
    try:
        await asyncio.sleep(0)
        assert await web_dids.resolve("did:web:honest.example") is None
        assert answered.is_set()
    finally:
        held.set()
        await asyncio.gather(*strangers)
    await web_dids.close()
