"""Commands that were refused and changed nothing are in the log: counted, and of whom."""

from __future__ import annotations

import asyncio
from typing import Final

import aiohttp
import pytest

from tests.edge.identities import Identity, Json
from tests.edge.mediator import DAY_S, LAYOUTS, WAIT_S, HandClock, Mediator

QUERY: Final = {"type": "QUERY_PENDING_EVENTS"}
NAME: Final = "QUERY_PENDING_EVENTS"
SOON: Final = {"audit": {"refusals_period_s": 0.02}}


async def recorded(mediator: Mediator) -> list[tuple[str, str, str, int]]:
    """What is in the log once the mediator has stopped: command, reason, sender, count."""
    await mediator.stop()
    found = [(e.command, e.reason, e.sender_did, e.count) for e in mediator.refused()]
    await mediator.start()
    return found


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_a_replay_and_a_bad_signature_are_recorded_and_name_only_who_signed(
    mediator: Mediator, alice: Identity, bob: Identity, clock: HandClock
) -> None:
    await mediator.register(alice)
    command = mediator.command(alice, QUERY)
    assert (await mediator.post(command)).status == 200
    for _ in range(3):
        clock.advance(1)
        assert (await mediator.post(command)).refusal == (401, "DUPLICATE_NONCE")
    forged = {**mediator.command(alice, QUERY), "signature": bob.sign("another thing")}
    assert (await mediator.post(forged)).refusal == (401, "INVALID_SIGNATURE")
    assert (await mediator.post(forged)).refusal == (401, "DUPLICATE_NONCE")
    stranger = Identity("stranger")
    assert (await mediator.send(stranger, QUERY)).refusal == (401, "UNAUTHORIZED_COMMAND")
    await mediator.stop()
    found = {(e.command, e.reason, e.sender_did): e for e in mediator.refused()}
    assert {key: entry.count for key, entry in found.items()} == {
        (NAME, "DUPLICATE_NONCE", alice.did): 3,
        (NAME, "DUPLICATE_NONCE", ""): 1,
        (NAME, "INVALID_SIGNATURE", ""): 1,
        (NAME, "UNAUTHORIZED_COMMAND", stranger.did): 1,
    }
    replays = found[NAME, "DUPLICATE_NONCE", alice.did]
    assert (replays.first_ms, replays.last_ms) == (clock.now_ms - 2_000, clock.now_ms)
    assert {entry.protocol for entry in found.values()} == {"decentrl"}
    await mediator.start()


async def test_no_sender_is_named_whose_signature_was_not_found_to_hold(
    mediator: Mediator, alice: Identity
) -> None:
    await mediator.register(alice)
    window_ms = mediator.settings.protocol.timestamp_window_ms
    early = mediator.clock.now_ms - window_ms - 1
    await mediator.send(alice, QUERY, timestamp=early)
    await mediator.send(alice, QUERY, sender_signing_key_id="another")
    await mediator.send(alice, QUERY, sender_did="did:decentrl:unknown")
    await mediator.post(b"no command")
    await mediator.post({"header": {"sender_did": alice.did}})
    assert await recorded(mediator) == [
        ("", "INVALID_COMMAND", "", 2),
        (NAME, "SENDER_NOT_FOUND", "", 1),
        (NAME, "SENDER_SIGNING_KEY_NOT_FOUND", "", 1),
        (NAME, "TIMESTAMP_OUT_OF_RANGE", "", 1),
    ]


async def test_nothing_is_recorded_that_a_sender_made_up(
    mediator: Mediator, alice: Identity
) -> None:
    await mediator.register(alice)
    await mediator.do(alice, "MADE UP BY ALICE")
    await mediator.send(alice, {"type": ["QUERY_EVENTS"]})
    await mediator.send(alice, QUERY, channel="MADE UP")
    assert await recorded(mediator) == [
        ("", "INVALID_COMMAND", "", 1),
        ("", "INVALID_COMMAND", alice.did, 2),
    ]


@pytest.mark.parametrize("settings", [{"rates": {"per_sender_per_s": 1, "burst_s": 1}}])
async def test_what_identities_refuse_is_recorded_too(
    mediator: Mediator, alice: Identity, bob: Identity, carol: Identity
) -> None:
    await mediator.register(alice, bob, carol)
    mediator.clock.advance(1)
    refusal = (404, "COMMUNICATION_CONTRACT_NOT_FOUND")
    assert (await mediator.write(alice, bob, "hi")).refusal == refusal
    assert (await mediator.write(alice, bob, "hi")).refusal == (429, "RATE_LIMITED")
    assert await recorded(mediator) == [
        ("TWO_WAY_PRIVATE", refusal[1], alice.did, 1),
        ("TWO_WAY_PRIVATE", "RATE_LIMITED", alice.did, 1),
    ]


async def test_a_command_whose_outcome_is_unknown_is_no_refusal(
    mediator: Mediator, alice: Identity
) -> None:
    await mediator.register(alice)
    mediator.hosts.cut("host-0")
    assert (await mediator.send(alice, QUERY)).refusal == (503, "TEMPORARILY_UNAVAILABLE")
    mediator.hosts.mend("host-0")
    assert await recorded(mediator) == []


@pytest.mark.parametrize(
    "settings", [{"limits": {"body_bytes_max": 65_536, "body_read_s_max": 0.05}}]
)
async def test_what_is_refused_unread_is_recorded_without_a_sender(mediator: Mediator) -> None:
    assert (await mediator.post(b"x" * 65_537)).status == 413
    assert (await mediator.post(b"{}", headers={"Content-Encoding": "gzip"})).status == 415
    assert (await mediator.get("/public/no-did")).status == 400
    reader, writer = await asyncio.open_connection("127.0.0.1", mediator.ports[0])
    writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n")
    assert b" 408 " in await asyncio.wait_for(reader.readline(), WAIT_S)
    writer.close()
    assert await recorded(mediator) == [
        ("", "BODY_ENCODED", "", 1),
        ("", "BODY_TIMEOUT", "", 1),
        ("", "BODY_TOO_LARGE", "", 1),
        ("", "INVALID_COMMAND", "", 1),
    ]


@pytest.mark.parametrize("settings", [{"rates": {"per_address_per_s": 1, "burst_s": 1}}])
async def test_an_address_that_asks_too_often_is_recorded(mediator: Mediator) -> None:
    assert [(await mediator.get("/")).status for _ in range(3)] == [200, 429, 429]
    assert await recorded(mediator) == [("", "RATE_LIMITED", "", 2)]


async def test_sockets_that_are_not_let_in_are_recorded(
    mediator: Mediator, alice: Identity, bob: Identity
) -> None:
    await mediator.register(alice)
    forged = {**mediator.authenticate(alice), "signature": bob.sign("another thing")}
    for message in (forged, mediator.authenticate(bob), "no message"):
        async with mediator.upgrade() as socket:
            await socket.say(message)
            assert (await socket.hear())["type"] == "AUTH_FAILED"
    async with mediator.upgrade() as socket:
        await socket.raw.close()  # went away: no client was refused
    async with mediator.socket(alice) as socket:
        for _ in range(100):
            await socket.say("{}")
        assert (await socket.raw.receive(WAIT_S)).type is aiohttp.WSMsgType.CLOSE
    assert await recorded(mediator) == [
        ("", "RATE_LIMITED", alice.did, 1),
        ("AUTHENTICATE", "INVALID_MESSAGE", "", 1),
        ("AUTHENTICATE", "INVALID_SIGNATURE", "", 1),
        ("AUTHENTICATE", "NOT_REGISTERED", bob.did, 1),
    ]


@pytest.mark.parametrize("settings", [SOON])
async def test_counts_are_recorded_once_in_a_period_and_nothing_when_nothing_was_refused(
    mediator: Mediator,
) -> None:
    for already in (0, 1):
        on_its_way = mediator.hosts.hold(b"CountRefusals")
        await mediator.post(b"no command")
        await asyncio.wait_for(on_its_way.arrived.wait(), WAIT_S)
        assert mediator.facts() == ["refusals-counted.1"] * already
        on_its_way.released.set()
    await mediator.restart()
    assert mediator.facts() == ["refusals-counted.1"] * 2
    assert [entry.count for entry in mediator.refused()] == [2]


@pytest.mark.parametrize("settings", [{"audit": {"refusals_period_s": 0}}])
async def test_a_record_that_is_switched_off_is_not_made(mediator: Mediator) -> None:
    assert (await mediator.post(b"no command")).status == 400
    assert await recorded(mediator) == []


@pytest.mark.parametrize(
    "settings", [{"edges": 2, "audit": {"refusals_entries_max": 16}, "limits": {"drain_s_max": 5}}]
)
async def test_a_flood_of_refusals_is_one_small_event_for_each_edge(
    mediator: Mediator, settings: Json
) -> None:
    flood = [Identity(f"sender {number}") for number in range(40)]
    for edge in range(2):
        for identity in flood:
            await mediator.send(identity, QUERY, edge=edge)
            await mediator.post(b"no command", edge=edge)
    await mediator.stop()
    assert mediator.facts() == ["refusals-counted.1"] * settings["edges"]
    found = mediator.refused()
    assert sum(entry.count for entry in found) == 4 * len(flood)
    assert len([entry for entry in found if entry.sender_did]) == 8
    await mediator.start()


async def test_the_status_says_how_much_was_refused(mediator: Mediator) -> None:
    for _ in range(3):
        await mediator.post(b"no command")
    assert (await mediator.operate("/status")).json["refusals_of_this_edge"] == 3


async def test_a_client_that_keeps_to_the_rules_is_not_in_the_record(
    mediator: Mediator, alice: Identity, bob: Identity
) -> None:
    await mediator.register(alice, bob, lifetime_s=DAY_S)
    await mediator.befriend(bob, alice)
    await mediator.delivered(alice, bob, "hi")
    assert await mediator.waiting(bob) == ["hi"]
    assert await recorded(mediator) == []
