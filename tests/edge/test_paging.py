"""DCTRL-0004 section 9: one rule for the pages of all four queries."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
import threading
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import pytest

from eventstore.log.events import MessagesRemoved
from http_edge.clients.decentrl.records import Page, PendingEvent, drained, page_of
from http_edge.listener.address_charge import LARGE_ANSWERS_MAX
from http_edge.listener.body_reads import in_reading_thread
from tests.edge.identities import Identity, Json, contract_request
from tests.edge.mediator import WAIT_S, HandClock, Mediator

INVALID = (400, "INVALID_COMMAND")
QUERIES = [
    "QUERY_PENDING_COMMUNICATION_CONTRACT_REQUESTS",
    "QUERY_COMMUNICATION_CONTRACTS",
    "QUERY_PENDING_EVENTS",
    "QUERY_EVENTS",
]
TOTAL = 25


async def fill(mediator: Mediator, owner: Identity, other: Identity) -> None:
    """25 records of each kind."""
    await mediator.register(owner)
    events = [
        {
            "sender_did": owner.did,
            "recipient_did": other.did,
            "timestamp": number,
            "payload": str(number),
        }
        for number in range(TOTAL)
    ]
    await mediator.do(owner, "SAVE_EVENTS", events=events)
    for number in range(TOTAL):
        await mediator.befriend(owner, other, 100 + number)
        await mediator.delivered(other, owner, str(number))
        await mediator.send(other, contract_request(other, owner.pre_public, {}), to=owner)


async def page(mediator: Mediator, owner: Identity, kind: str, **pagination: Any) -> Json:
    payload = (await mediator.do(owner, kind, pagination=pagination)).payload
    assert payload["pagination"]["total"] == TOTAL
    (records,) = [member for name, member in payload.items() if name != "pagination"]
    return {"ids": [record["id"] for record in records], **payload["pagination"]}


@pytest.mark.parametrize("kind", QUERIES)
async def test_trap_51_pagination_and_filter_and_all_their_members_are_optional(
    mediator: Mediator, alice: Identity, bob: Identity, kind: str
) -> None:
    await mediator.register(alice)
    default = {"page": 0, "page_size": 10, "total": 0}
    requests: list[Json] = [
        {},
        {"pagination": None, "filter": None},
        {"pagination": {}, "filter": {}},
        {"pagination": {"page": None, "page_size": None}},
        {"pagination": {"page": 0.0, "page_size": 10.0}},
        {"pagination": {"unknown": "member"}, "filter": {"unknown": 1}},
    ]
    for members in requests:
        answer = await mediator.do(alice, kind, **members)
        assert answer.payload["pagination"] == default


@pytest.mark.parametrize(
    "pagination",
    [
        {"page": -1},
        {"page": 0.5},
        {"page": True},
        {"page": "0"},
        {"page": []},
        {"page": 2**53 - 1},
        {"page_size": 0},
        {"page_size": -1},
        {"page_size": 1.5},
        {"page_size": False},
        {"page_size": "10"},
        {"page_size": 1_001},
        [],
        "text",
        1,
    ],
)
async def test_trap_52_a_page_out_of_bounds_is_refused_and_never_clamped(
    mediator: Mediator, alice: Identity, pagination: Any
) -> None:
    await mediator.register(alice)
    for kind in QUERIES:
        answer = await mediator.do(alice, kind, pagination=pagination)
        assert answer.refusal == INVALID, kind


async def test_trap_54_pages_tile_the_records_in_order_with_the_exact_total(
    mediator: Mediator, alice: Identity, bob: Identity
) -> None:
    await fill(mediator, alice, bob)
    for kind in QUERIES:
        everything = await page(mediator, alice, kind, page=0, page_size=1_000)
        assert len(set(everything["ids"])) == TOTAL
        for size in (1, 10, 24, 25, 26):
            pages = -(-TOTAL // size)
            tiles = [
                await page(mediator, alice, kind, page=n, page_size=size) for n in range(pages)
            ]
            assert [i for tile in tiles for i in tile["ids"]] == everything["ids"]
            has_more = [(tile["page"] + 1) * tile["page_size"] < tile["total"] for tile in tiles]
            assert has_more == [True] * (pages - 1) + [False]
            beyond = await page(mediator, alice, kind, page=pages, page_size=size)
            assert beyond["ids"] == []


async def test_trap_53_who_acknowledges_page_0_finds_the_next_records_on_page_0(
    mediator: Mediator, alice: Identity, bob: Identity
) -> None:
    await mediator.register(alice)
    await mediator.befriend(alice, bob)
    texts = [str(number) for number in range(7)]
    for text in texts:
        await mediator.delivered(bob, alice, text)
    read: list[str] = []
    while records := await mediator.records(
        alice, "QUERY_PENDING_EVENTS", pagination={"page": 0, "page_size": 3}
    ):
        read += [record["payload"] for record in records]
        await mediator.do(
            alice, "ACKNOWLEDGE_PENDING_EVENTS", event_ids=[record["id"] for record in records]
        )
    assert read == texts


@pytest.mark.parametrize(
    "settings", [{"limits": {"page_size_max": 3, "page_size_default": 2, "ids_per_command_max": 3}}]
)
async def test_the_bounds_of_pages_and_ids_are_configurable(
    mediator: Mediator, alice: Identity
) -> None:
    await mediator.register(alice)
    answer = await mediator.do(alice, "QUERY_EVENTS")
    assert answer.payload["pagination"]["page_size"] == 2
    answer = await mediator.do(alice, "QUERY_EVENTS", pagination={"page_size": 4})
    assert answer.refusal == INVALID
    for count, status in ((3, 200), (4, 400)):
        ids = ["x"] * count
        answer = await mediator.do(alice, "ACKNOWLEDGE_PENDING_EVENTS", event_ids=ids)
        assert answer.status == status


@pytest.mark.parametrize("layout", ["two hosts"])
async def test_trap_71_ids_are_made_once_and_are_the_same_after_a_restart(
    mediator: Mediator, alice: Identity, bob: Identity
) -> None:
    await fill(mediator, alice, bob)
    before = {kind: await page(mediator, alice, kind, page_size=1_000) for kind in QUERIES}
    await mediator.restart()
    after = {kind: await page(mediator, alice, kind, page_size=1_000) for kind in QUERIES}
    assert after == before


@pytest.mark.usefixtures("friends")
async def test_a_large_page_of_messages_is_read_beside_the_commands_and_is_whole(
    mediator: Mediator, alice: Identity, bob: Identity
) -> None:
    ids = [await mediator.delivered(alice, bob, text * 600_000) for text in "abc"]
    query = {"pagination": {"page": 0, "page_size": 2}}
    page = (await mediator.do(bob, "QUERY_PENDING_EVENTS", **query)).payload
    assert page["pagination"] == {"page": 0, "page_size": 2, "total": 3}
    assert [(event["id"], event["payload"][:1]) for event in page["pending_events"]] == [
        (ids[0], "a"),
        (ids[1], "b"),
    ]
    assert {len(event["payload"]) for event in page["pending_events"]} == {600_000}
    assert {event["sender_did"] for event in page["pending_events"]} == {alice.did}


@pytest.mark.parametrize("kind", QUERIES[:3])
@pytest.mark.usefixtures("friends")
async def test_the_event_loop_writes_no_large_page(
    mediator: Mediator, alice: Identity, bob: Identity, kind: str
) -> None:
    """Each of more than 256 KiB, and small enough to be read with the command."""
    long = {"x": "y" * 15_000}
    for number in range(20):
        await mediator.delivered(alice, bob, "z" * 15_000)
        await mediator.befriend(bob, alice, 100 + number, **long)
        await mediator.send(alice, contract_request(alice, bob.pre_public, long), to=bob)
    held = threading.Event()
    working = asyncio.create_task(in_reading_thread(held.wait))
    try:
        asking = asyncio.create_task(mediator.do(bob, kind, pagination={"page_size": 20}))
        assert not (await asyncio.wait([asking], timeout=0.3))[0]
        for _ in range(2):
            few = await mediator.do(bob, kind, pagination={"page_size": 1})
            assert few.status == 200
    finally:
        held.set()
    answer = await asking
    assert len(answer.body) > 256 * 1024
    assert answer.payload["pagination"]["page_size"] == 20
    await working


@pytest.mark.parametrize("removed", [1, 10])
@pytest.mark.usefixtures("friends")
async def test_a_large_page_is_what_waits_when_it_is_read(
    mediator: Mediator, alice: Identity, bob: Identity, removed: int
) -> None:
    """Another device acknowledges messages of the page while it waits to be read."""
    ids = [await mediator.delivered(alice, bob, f"{n:x}" * 200_000) for n in range(12)]
    held = mediator.hosts.hold_pages()
    async with asyncio.timeout(WAIT_S):
        asking = asyncio.create_task(mediator.do(bob, "QUERY_PENDING_EVENTS"))
        await held.arrived.wait()
        await mediator.do(bob, "ACKNOWLEDGE_PENDING_EVENTS", event_ids=ids[:removed])
        held.released.set()
        page = (await asking).payload
    assert [event["id"] for event in page["pending_events"]] == ids[removed:][:10]
    assert page["pagination"]["total"] == 12 - removed


@pytest.mark.usefixtures("friends")
async def test_who_drains_a_queue_beside_another_device_takes_all_that_waits(
    mediator: Mediator, alice: Identity, bob: Identity
) -> None:
    ids = [await mediator.delivered(alice, bob, f"{n:x}" * 200_000) for n in range(12)]

    async def read(*, page: int, page_size: int) -> Page[PendingEvent]:
        pagination = {"page": page, "page_size": page_size}
        answer = await mediator.do(bob, "QUERY_PENDING_EVENTS", pagination=pagination)
        return page_of(answer.json, "pending_events", PendingEvent)

    async def acknowledge(ids: Sequence[str]) -> None:
        await mediator.do(bob, "ACKNOWLEDGE_PENDING_EVENTS", event_ids=list(ids))

    async def drain() -> list[str]:
        return [event.id async for event in drained(read, acknowledge, 10)]

    held = mediator.hosts.hold_pages()
    async with asyncio.timeout(WAIT_S):
        draining = asyncio.create_task(drain())
        await held.arrived.wait()
        await acknowledge(ids[:10])
        held.released.set()
        assert await draining == ids[10:]


@pytest.mark.usefixtures("friends")
async def test_a_large_page_that_changes_at_each_reading_is_temporarily_unavailable(
    mediator: Mediator, alice: Identity, bob: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [await mediator.delivered(alice, bob, f"{n:x}" * 400_000) for n in range(8)]
    passing = mediator.hosts.pass_through_pages

    async def removing() -> None:
        await passing()
        await mediator.do(bob, "ACKNOWLEDGE_PENDING_EVENTS", event_ids=[ids.pop(0)])

    monkeypatch.setattr(mediator.hosts, "pass_through_pages", removing)
    answer = await mediator.do(bob, "QUERY_PENDING_EVENTS")
    assert answer.refusal == (503, "TEMPORARILY_UNAVAILABLE")
    monkeypatch.undo()
    page = (await mediator.do(bob, "QUERY_PENDING_EVENTS")).payload
    assert [event["id"] for event in page["pending_events"]] == ids
    assert len(ids) == 5, "it was decided three times"


@pytest.mark.usefixtures("friends")
async def test_what_a_large_page_lacks_leaves_the_queue_and_the_rest_is_served(
    mediator: Mediator, alice: Identity, bob: Identity
) -> None:
    ids = [await mediator.delivered(alice, bob, text * 600_000) for text in "abc"]
    dsn = mediator.settings.log_dsn
    with closing(sqlite3.connect(dsn.removeprefix("sqlite:"))) as beside, beside:
        beside.execute("DELETE FROM contents WHERE position = (SELECT min(position) FROM contents)")
    for _ in range(2):
        page = (await mediator.do(bob, "QUERY_PENDING_EVENTS")).payload
        assert [event["id"] for event in page["pending_events"]] == ids[1:]
        assert page["pagination"]["total"] == 2
    assert sum(isinstance(event, MessagesRemoved) for event in mediator.events()) == 1


@pytest.mark.usefixtures("friends")
async def test_what_is_damaged_of_a_large_page_is_left_out_and_stays(
    mediator: Mediator, alice: Identity, bob: Identity
) -> None:
    ids = [await mediator.delivered(alice, bob, text * 600_000) for text in "abc"]
    dsn = mediator.settings.log_dsn
    with closing(sqlite3.connect(dsn.removeprefix("sqlite:"))) as beside, beside:
        beside.execute(
            "UPDATE contents SET content = substr(content, 2)"
            " WHERE position = (SELECT min(position) FROM contents)"
        )
    for _ in range(2):
        page = (await mediator.do(bob, "QUERY_PENDING_EVENTS")).payload
        assert [event["id"] for event in page["pending_events"]] == ids[1:]
        assert page["pagination"]["total"] == 3
    assert not any(isinstance(event, MessagesRemoved) for event in mediator.events())


@pytest.mark.parametrize("settings", [{"limits": {"page_bytes_max": 1_048_576}}])
@pytest.mark.usefixtures("friends")
async def test_a_page_of_messages_has_a_bound_in_bytes_and_is_not_cut_short(
    mediator: Mediator, alice: Identity, bob: Identity
) -> None:
    for text in "abc":
        await mediator.delivered(alice, bob, text * 600_000)
    kind, refused = "QUERY_PENDING_EVENTS", await mediator.do(bob, "QUERY_PENDING_EVENTS")
    assert refused.refusal == INVALID
    assert refused.json["detail"] == "page_size: the page is more than 1048576 bytes"
    for number, text in enumerate("abc"):
        page = await mediator.do(bob, kind, pagination={"page": number, "page_size": 1})
        (event,) = page.payload["pending_events"]
        assert event["payload"] == text * 600_000


@pytest.mark.parametrize("settings", [{"rates": {"per_address_per_s": 40, "burst_s": 10}}])
@pytest.mark.usefixtures("friends")
async def test_an_address_pays_for_large_pages_whatever_identity_they_are_for(
    mediator: Mediator, alice: Identity, bob: Identity, clock: HandClock
) -> None:
    """Of 400 tokens one of 600 KB takes 146, and one of 1.2 MB 293, even if asked at once."""
    await mediator.delivered(alice, bob, "x" * 600_000)
    clock.advance(60)
    pages = [(await mediator.do(bob, "QUERY_PENDING_EVENTS")).status for _ in range(4)]
    assert pages == [200] * 3 + [429]
    clock.advance(60)
    await mediator.delivered(alice, bob, "x" * 600_000)
    clock.advance(60)
    requests = [mediator.do(bob, "QUERY_PENDING_EVENTS") for _ in range(6)]
    answers = [answer.status for answer in await asyncio.gather(*requests)]
    assert answers.count(200) == 2


@pytest.mark.parametrize("settings", [{"rates": {"per_sender_per_s": 0}}])
@pytest.mark.usefixtures("friends")
async def test_what_waits_for_large_pages_of_one_address_takes_a_bounded_number_of_places(
    mediator: Mediator, alice: Identity, bob: Identity, clock: HandClock
) -> None:
    for text in "ab":
        await mediator.delivered(alice, bob, text * 600_000)
    clock.advance(60)
    edge = mediator.edges[0]
    turns = edge._listener._rates.page_turns
    read = turns.setdefault(("127.0.0.1", False), asyncio.Lock())
    async with read, asyncio.timeout(WAIT_S):
        asking = [
            asyncio.create_task(mediator.do(bob, "QUERY_PENDING_EVENTS"))
            for _ in range(LARGE_ANSWERS_MAX + 8)
        ]
        refused = [await one for one in itertools.islice(asyncio.as_completed(asking), 8)]
        assert [answer.status for answer in refused] == [429] * 8
        assert edge._in_flight.requests == LARGE_ANSWERS_MAX
    answers = [answer.status for answer in await asyncio.gather(*asking)]
    assert answers.count(200) == LARGE_ANSWERS_MAX


async def save_events(
    mediator: Mediator, owner: Identity, clock: HandClock, payloads: Sequence[str]
) -> None:
    """One with each command, which is paid for before the next one."""
    for payload in payloads:
        event = {"sender_did": owner.did, "recipient_did": owner.did, "timestamp": 1}
        saved = await mediator.do(owner, "SAVE_EVENTS", events=[event | {"payload": payload}])
        assert saved.status == 200
        clock.advance(120)


@pytest.mark.parametrize("settings", [{"rates": {"per_sender_per_s": 1, "burst_s": 60}}])
async def test_a_sender_is_charged_for_all_events_that_match_its_query(
    mediator: Mediator, alice: Identity, clock: HandClock
) -> None:
    """They are counted for the total, and those of several tags merged, however few are shown."""
    await mediator.register(alice)
    tags = [f"tag {number}" for number in range(16)]
    event = {"sender_did": alice.did, "recipient_did": alice.did, "timestamp": 1, "payload": "x"}
    for _ in range(100):
        events = [event | {"encrypted_tags": tags}] * 3
        assert (await mediator.do(alice, "SAVE_EVENTS", events=events)).status == 200
        clock.advance(60)
    page = {"filter": {"encrypted_tags": tags}, "pagination": {"page": 0, "page_size": 1}}
    read = [(await mediator.do(alice, "QUERY_EVENTS", **page)).status for _ in range(3)]
    assert read == [200] * 2 + [429]


@pytest.mark.parametrize(
    "settings",
    [
        {"limits": {"page_bytes_max": 1_048_576}, "rates": rates}
        for rates in (
            {"per_sender_per_s": 1, "burst_s": 120},
            {"per_address_per_s": 40, "burst_s": 10},  # of these 400 tokens 1 MiB takes 256
        )
    ],
)
async def test_events_that_are_read_and_too_many_for_a_page_are_paid_for(
    mediator: Mediator, alice: Identity, clock: HandClock
) -> None:
    await mediator.register(alice)
    await save_events(mediator, alice, clock, ["x" * 120_000] * 9)
    read = [(await mediator.do(alice, "QUERY_EVENTS")).status for _ in range(3)]
    assert read == [400, 400, 429]


@pytest.mark.parametrize("settings", [{"rates": {"per_address_per_s": 40, "burst_s": 10}}])
async def test_an_address_pays_for_large_pages_of_events_even_if_they_are_asked_for_at_once(
    mediator: Mediator, alice: Identity, clock: HandClock
) -> None:
    """Of 400 tokens one of 600 KB takes 146."""
    await mediator.register(alice)
    await save_events(mediator, alice, clock, ["x" * 60_000] * 10)
    requests = [mediator.do(alice, "QUERY_EVENTS") for _ in range(12)]
    answers = [answer.status for answer in await asyncio.gather(*requests)]
    assert answers.count(200) == 3
    assert answers.count(429) == 9


@pytest.mark.parametrize("settings", [{"rates": {"per_address_per_s": 40, "burst_s": 10}}])
async def test_an_address_pays_for_a_page_of_events_as_long_as_it_is_when_written(
    mediator: Mediator, alice: Identity, clock: HandClock
) -> None:
    """One control character takes six bytes in JSON."""
    await mediator.register(alice)
    await save_events(mediator, alice, clock, ["\x01" * 10_000] * 10)
    read = [(await mediator.do(alice, "QUERY_EVENTS")).status for _ in range(4)]
    assert read == [200] * 3 + [429]


@pytest.mark.parametrize(
    "settings", [{"rates": {"per_address_per_s": 10, "burst_s": 1, "per_sender_per_s": 0}}]
)
async def test_an_address_pays_for_a_page_that_is_short_only_until_it_is_written(
    mediator: Mediator, alice: Identity, clock: HandClock
) -> None:
    """Of 10 tokens each answer of 7.3 KB takes 1.8 and its request one."""
    await mediator.register(alice)
    clock.advance(60)
    event = {"sender_did": alice.did, "recipient_did": alice.did, "timestamp": 1}
    payload = "x" * 3_000 + "\x01" * 700
    saved = await mediator.do(alice, "SAVE_EVENTS", events=[event | {"payload": payload}])
    assert saved.status == 200
    clock.advance(60)
    read = [(await mediator.do(alice, "QUERY_EVENTS")).status for _ in range(5)]
    assert read == [200] * 4 + [429]
