"""Bounds of the edge that one client must not use up for all, and messages that go in circles."""

from __future__ import annotations

import asyncio

import pytest

from http_edge.didcomm.mediation import pseudonym
from http_edge.strict_json import CONTAINERS_MAX, JsonRefused, parse
from tests.edge.didcomm.town import Bob, Town
from tests.edge.mediator import KEYS, WAIT_S


async def test_a_message_that_this_mediator_sent_out_is_not_taken_in_again(town: Town) -> None:
    url = town.mediator.url("/didcomm")
    for via in (f"1.1 {pseudonym(KEYS)}", f"1.1 another, 1.1 {pseudonym(KEYS)}"):
        for ask in (town.mediator.http.post, town.mediator.http.get):
            async with ask(url, headers={"Via": via}) as answer:
                assert (answer.status, await answer.json()) == (409, {"error": "message-loop"})
    async with town.mediator.http.post(url, headers={"Via": "1.1 another"}, data=b"x") as answer:
        assert answer.status == 400


@pytest.mark.parametrize("settings", [{"limits": {"commands_in_flight_max": 1}}])
async def test_who_waits_for_messages_takes_nobodys_place(town: Town, bob: Bob) -> None:
    polling = asyncio.create_task(bob.wallet.noop(delay_ms=20_000))
    (edge,) = town.mediator.edges
    async with asyncio.timeout(WAIT_S):
        # Nothing tells that a request began to wait.
        while not (len(edge._hub) and edge._surface.in_flight.has_room(0)):  # noqa: ASYNC110
            await asyncio.sleep(0)
        await town.write(bob, "hello")
        assert await polling


async def test_an_edge_that_started_anew_has_lost_its_sessions(town: Town, bob: Bob) -> None:
    host = town.mediator.hosts.running["host-0"]
    async with bob.wallet.live():
        host.heartbeat("edge-0", 1, "first")
        assert host.is_held
        host.heartbeat("edge-0", 0, "second")
        host.stats()  # after what waits on the writer's thread
        assert not host.is_held


def test_a_text_of_very_many_parts_is_not_read() -> None:
    assert parse(b"[" + b",".join([b"[]"] * (CONTAINERS_MAX - 1)) + b"]") == [[]] * (
        CONTAINERS_MAX - 1
    )
    with pytest.raises(JsonRefused):
        parse(b"[" + b",".join([b"[]"] * CONTAINERS_MAX) + b"]")
