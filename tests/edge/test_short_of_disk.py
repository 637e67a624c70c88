"""A disk that is nearly full, as clients and operators see it."""

from __future__ import annotations

import asyncio

import pytest

from tests.edge.conftest import Disk
from tests.edge.identities import Identity
from tests.edge.mediator import LAYOUTS, SUCCESS, HandClock, Mediator
from tests.edge.test_saved_events import event, save

ACKNOWLEDGE = "ACKNOWLEDGE_PENDING_EVENTS"


@pytest.fixture(autouse=True)
def _disk_first(disk: Disk) -> None:
    """The disk stands before the mediator does."""


@pytest.mark.usefixtures("friends")
async def test_a_short_disk_is_said_and_takes_what_frees_some(
    disk: Disk, mediator: Mediator, clock: HandClock, alice: Identity, bob: Identity
) -> None:
    message = await mediator.delivered(alice, bob, "one")
    disk.free_bytes = 0
    clock.advance(2)
    refused = await mediator.write(alice, bob, "two")
    assert refused.refusal == (503, "INSUFFICIENT_STORAGE")
    assert refused.json["detail"].startswith("mediator: ")
    assert refused.headers["Retry-After"] == "60"
    assert await mediator.waiting(bob) == ["one"]
    await mediator.do(bob, ACKNOWLEDGE, event_ids=[message])
    health = await mediator.get("/health")
    assert health.status == 503
    (host,) = (await mediator.operate("/status")).json["hosts"]
    assert host["short_of_disk"] is True
    assert (await mediator.get("/readyz")).status == 200
    disk.free_bytes = disk.total_bytes
    clock.advance(2)
    assert (await mediator.write(alice, bob, "two")).status == 200
    assert (await mediator.get("/health")).status == 200


async def test_an_update_of_tags_is_refused_for_the_disk_before_it_is_begun_or_not_at_all(
    disk: Disk, mediator: Mediator, clock: HandClock, alice: Identity, bob: Identity
) -> None:
    await mediator.register(alice)
    await save(mediator, alice, *[event(bob, alice, "x", n) for n in range(40)])
    page = {"page": 0, "page_size": 40}
    ids = [one["id"] for one in await mediator.records(alice, "QUERY_EVENTS", pagination=page)]
    update = {
        "type": "UPDATE_EVENT_TAGS",
        "events": [{"event_id": event_id, "encrypted_tags": ["new"]} for event_id in ids],
    }
    second_part = mediator.hosts.hold(ids[20].encode())
    updating = asyncio.create_task(mediator.post(mediator.command(alice, update)))
    await second_part.arrived.wait()
    disk.free_bytes = 0
    clock.advance(2)
    second_part.released.set()
    assert (await updating).json == SUCCESS
    where = {"encrypted_tags": ["new"]}
    found = await mediator.do(alice, "QUERY_EVENTS", filter=where)
    assert found.payload["pagination"]["total"] == 40
    refused = await mediator.post(mediator.command(alice, update))
    assert refused.refusal == (503, "INSUFFICIENT_STORAGE")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.usefixtures("friends")
async def test_what_is_refused_for_the_disk_may_be_sent_again_as_it_is(
    disk: Disk, mediator: Mediator, clock: HandClock, alice: Identity, bob: Identity
) -> None:
    disk.free_bytes = 0
    clock.advance(2)
    saved = {"type": "SAVE_EVENTS", "events": [event(alice, bob, "x")]}
    message = mediator.command(alice, "two", to=bob, channel="TWO_WAY_PRIVATE")
    commands = [message, mediator.command(alice, saved)]
    for command in commands:
        assert (await mediator.post(command)).refusal == (503, "INSUFFICIENT_STORAGE")
    disk.free_bytes = disk.total_bytes
    clock.advance(2)
    for command in commands:
        assert (await mediator.post(command)).status == 200
    assert await mediator.waiting(bob) == ["two"]
