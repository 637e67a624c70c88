"""Rates, caps and overload: every bound is an explicit answer, and one's bound is one's own."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import aiohttp
import pytest
import rfc8785

from actors.core.partitioning import Placement
from tests.edge.conftest import StartMediator
from tests.edge.identities import Identity, contract_request, signed_contract
from tests.edge.mediator import HandClock, Mediator

QUERY = {"type": "QUERY_PENDING_EVENTS"}
RATE_LIMITED = (429, "RATE_LIMITED")
UNAVAILABLE = (503, "TEMPORARILY_UNAVAILABLE")


@pytest.mark.parametrize("settings", [{"rates": {"per_address_per_s": 2, "burst_s": 2}}])
async def test_an_address_that_sends_too_often_gets_the_time_to_wait(
    mediator: Mediator, clock: HandClock
) -> None:
    statuses = [(await mediator.get("/")).status for _ in range(5)]
    assert statuses == [200] * 4 + [429]
    limited = await mediator.post(b"{}")
    assert limited.refusal == RATE_LIMITED
    assert limited.headers["Retry-After"] == "1"
    assert limited.headers["Access-Control-Allow-Origin"] == "*"
    clock.advance(1)
    assert (await mediator.get("/")).status == 200


@pytest.mark.parametrize(
    "settings", [{"rates": {"per_address_per_s": 1, "burst_s": 1, "limited_answer_s": 1}}]
)
async def test_a_refusal_for_its_rate_keeps_an_address_waiting_and_no_other(
    mediator: Mediator,
) -> None:
    assert (await mediator.get("/")).status == 200
    began_s = time.monotonic()
    pending = asyncio.create_task(mediator.get("/"))
    connector = aiohttp.TCPConnector(local_addr=("127.0.0.2", 0))
    async with (
        aiohttp.ClientSession(connector=connector) as other,
        other.get(mediator.url()) as answer,
    ):
        assert (answer.status, pending.done()) == (200, False)
    assert (await pending).refusal == RATE_LIMITED
    assert time.monotonic() - began_s >= 1


@pytest.mark.parametrize("settings", [{"rates": {"per_address_per_s": 10, "burst_s": 10}}])
async def test_an_address_that_proves_nothing_is_refused_sooner(
    mediator: Mediator, alice: Identity, clock: HandClock
) -> None:
    """Of 100 tokens an unproven command takes 17, one of 16 KiB 37, and a proven one its own.

    A registration costs as much as an unproven one, and so does a key that is not registered.
    """
    forged = {**mediator.command(alice, QUERY), "signature": "A" * 86}
    answers = [(await mediator.post(forged)).refusal for _ in range(7)]
    assert answers[0] == (401, "INVALID_SIGNATURE")
    assert answers[6] == RATE_LIMITED
    clock.advance(11)  # a second of it for what is owed
    long = [(await mediator.post(b"x" * 16_384)).refusal for _ in range(5)]
    assert (long[2], long[3]) == ((400, "INVALID_COMMAND"), RATE_LIMITED)
    clock.advance(14)
    made = [(await mediator.send(Identity(str(n)), QUERY)).refusal for n in range(7)]
    assert (made[0], made[6]) == ((401, "UNAUTHORIZED_COMMAND"), RATE_LIMITED)
    clock.advance(11)
    await mediator.register(alice)
    assert {(await mediator.send(alice, QUERY)).status for _ in range(80)} == {200}


REGISTERED = 3
"""What a registration costs: a command and the two signatures of its contract."""


@pytest.mark.parametrize(
    "settings", [{"rates": {"per_sender_per_s": 1, "burst_s": REGISTERED + 1}}]
)
async def test_a_sender_that_commands_too_often_waits_and_others_do_not(
    mediator: Mediator, alice: Identity, bob: Identity, clock: HandClock
) -> None:
    await mediator.register(alice, bob)
    command = mediator.command(alice, QUERY)
    assert (await mediator.send(alice, QUERY)).status == 200
    limited = await mediator.post(command)
    assert limited.refusal == RATE_LIMITED
    assert limited.headers["Retry-After"] == "1"
    assert (await mediator.send(bob, QUERY)).status == 200
    clock.advance(1)
    assert (await mediator.post(command)).status == 200  # its nonce was not used up


@pytest.mark.parametrize(
    "settings", [{"rates": {"per_sender_per_s": 1, "burst_s": REGISTERED + 1}}]
)
async def test_no_client_spends_anothers_rate_without_its_key(
    mediator: Mediator, alice: Identity
) -> None:
    await mediator.register(alice)
    for _ in range(10):
        forged = {**mediator.command(alice, QUERY), "signature": "AAAA"}
        assert (await mediator.post(forged)).refusal == (401, "INVALID_SIGNATURE")
    assert (await mediator.send(alice, QUERY)).status == 200


@pytest.mark.parametrize(
    "settings", [{"rates": {"per_sender_per_s": 1, "burst_s": REGISTERED + 2}}]
)
async def test_a_replay_costs_the_sender_no_token(mediator: Mediator, alice: Identity) -> None:
    await mediator.register(alice)
    command = mediator.command(alice, QUERY)
    assert (await mediator.post(command)).status == 200
    for _ in range(10):
        assert (await mediator.post(command)).refusal == (401, "DUPLICATE_NONCE")
    assert (await mediator.send(alice, QUERY)).status == 200


@pytest.mark.parametrize("settings", [{"rates": {"per_sender_per_s": 1, "burst_s": 60}}])
async def test_a_sender_is_charged_for_the_work_of_its_commands_not_for_their_number(
    mediator: Mediator, alice: Identity, bob: Identity, clock: HandClock
) -> None:
    await mediator.register(alice, bob)
    event = {"sender_did": alice.did, "recipient_did": alice.did, "timestamp": 1, "payload": "x"}
    tagged = {**event, "encrypted_tags": [f"tag {number}" for number in range(50)]}
    assert (await mediator.do(alice, "SAVE_EVENTS", events=[tagged])).status == 200
    limited = await mediator.do(alice, "SAVE_EVENTS", events=[tagged])
    assert limited.refusal == RATE_LIMITED
    assert 20 < int(limited.headers["Retry-After"]) <= 40
    assert (await mediator.do(alice, "SAVE_EVENTS", events=[event])).status == 200
    assert (await mediator.do(bob, "SAVE_EVENTS", events=[tagged])).status == 200
    clock.advance(60)
    assert (await mediator.do(alice, "SAVE_EVENTS", events=[tagged])).status == 200


@pytest.mark.parametrize("settings", [{"rates": {"per_sender_per_s": 1, "burst_s": 60}}])
async def test_a_sender_is_charged_for_the_bytes_of_the_events_that_it_reads(
    mediator: Mediator, alice: Identity, clock: HandClock
) -> None:
    await mediator.register(alice)
    event = {"sender_did": alice.did, "recipient_did": alice.did, "timestamp": 1}
    for payload in ("x", "x" * 60_000):
        saved = await mediator.do(alice, "SAVE_EVENTS", events=[event | {"payload": payload}])
        assert saved.status == 200
    clock.advance(60)
    page = {"filter": {}, "pagination": {"page": 0, "page_size": 2}}
    read = [(await mediator.do(alice, "QUERY_EVENTS", **page)).status for _ in range(12)]
    assert read == [200] * 9 + [429] * 3


@pytest.mark.parametrize("settings", [{"limits": {"contract_bytes_max": 4096}}])
async def test_a_contract_beyond_its_bound_is_refused(
    mediator: Mediator, alice: Identity, bob: Identity, clock: HandClock
) -> None:
    await mediator.register(bob)
    first = await mediator.send(alice, mediator.registration(alice, terms=""))
    registered_bytes = len(rfc8785.dumps(first.payload["signed_communication_contract"]))
    saved_bytes = len(rfc8785.dumps(signed_contract(alice, bob, clock.now_s + 60, terms="")))
    for size, status in ((4_096, 200), (4_097, 400)):
        registration = mediator.registration(alice, terms="x" * (size - registered_bytes))
        assert (await mediator.send(alice, registration)).status == status
        terms = "x" * (size - saved_bytes)
        signed = signed_contract(alice, bob, clock.now_s + 60, terms=terms)
        answer = await mediator.do(
            bob, "SAVE_COMMUNICATION_CONTRACT", signed_communication_contract=signed
        )
        assert answer.status == status


@pytest.mark.parametrize(
    "settings", [{"limits": {"saved_event_bytes_max": 1024, "contract_request_bytes_max": 4096}}]
)
async def test_a_saved_event_and_a_contract_request_have_bounds(
    mediator: Mediator, alice: Identity
) -> None:
    await mediator.register(alice)
    for size, status in ((1_024, 200), (1_025, 400)):
        event = {
            "sender_did": alice.did,
            "recipient_did": alice.did,
            "timestamp": 1,
            "payload": "x" * size,
        }
        assert (await mediator.do(alice, "SAVE_EVENTS", events=[event])).status == status
    for size, status in ((4_096, 200), (4_097, 400)):
        payload = {
            "type": "REQUEST_COMMUNICATION_CONTRACT",
            "encrypted_contract_request": "x" * size,
            "requestor_ephemeral_public_key": "x",
        }
        answer = await mediator.send(alice, payload, to=alice)
        assert answer.status == status


@pytest.mark.parametrize(
    "settings", [{"rates": {"public_reads_per_address_per_s": 1, "burst_s": 2}}]
)
async def test_public_reads_have_a_rate_of_their_own(mediator: Mediator, clock: HandClock) -> None:
    path = "/public/did:key:z1"
    assert [(await mediator.get(path)).status for _ in range(3)] == [200, 200, 429]
    assert (await mediator.get("/")).status == 200
    clock.advance(1)
    assert (await mediator.get(path)).status == 200


@pytest.mark.parametrize(
    "settings", [{"rates": {"sockets_auth_per_address_per_s": 1, "burst_s": 1}}]
)
async def test_upgrades_have_a_rate_of_their_own(mediator: Mediator) -> None:
    async with mediator.upgrade():
        answer = await mediator.get(
            "/ws",
            headers={
                "Connection": "Upgrade",
                "Upgrade": "websocket",
                "Sec-WebSocket-Version": "13",
                "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
            },
        )
    assert answer.refusal == RATE_LIMITED


@pytest.mark.parametrize(
    ("trusted", "forwarded", "statuses"),
    [
        ([], ["203.0.113.1", "203.0.113.2"], [200, 429]),
        (["10.0.0.0/8"], ["203.0.113.1", "203.0.113.2"], [200, 429]),
        (["127.0.0.0/8"], ["203.0.113.1", "203.0.113.2"], [200, 200]),
        (["127.0.0.0/8"], ["203.0.113.1", "203.0.113.1"], [200, 429]),
        (["127.0.0.0/8"], ["1.1.1.1, 203.0.113.1", "2.2.2.2, 203.0.113.1"], [200, 429]),
        (["127.0.0.0/8"], ["2001:db8::1", "2001:db8::ffff:1"], [200, 429]),
        (["127.0.0.0/8"], ["2001:db8::1", "2001:db8:0:1::1"], [200, 200]),
        (["127.0.0.0/8"], ["203.0.113.7:1024", "203.0.113.7:1025"], [200, 429]),
        (["127.0.0.0/8"], ["[2001:db8::1]:1024", "2001:db8::3%eth0"], [200, 429]),
        (["127.0.0.0/8"], ["::ffff:203.0.113.7", "203.0.113.7"], [200, 429]),
        (["127.0.0.0/8"], ["unknown", "203.0.113.7, _hidden", "x" * 300], [200, 429, 429]),
    ],
)
async def test_a_forwarded_address_is_believed_from_our_own_proxies_alone(
    start_mediator: StartMediator, trusted: list[str], forwarded: list[str], statuses: list[int]
) -> None:
    mediator = await start_mediator(
        rates={"per_address_per_s": 1, "burst_s": 1, "trusted_proxies": trusted}
    )
    answers = [await mediator.get("/", headers={"X-Forwarded-For": hop}) for hop in forwarded]
    assert [answer.status for answer in answers] == statuses


@pytest.mark.parametrize(
    "settings",
    [
        {
            "limits": {"nonces_per_shard_max": 1_000},
            "rates": {"per_address_per_s": 0, "per_sender_per_s": 0},
            "shards": 1,
        }
    ],
)
async def test_who_claims_all_the_nonces_it_can_leaves_room_for_others_and_none_is_forgotten(
    mediator: Mediator, alice: Identity, bob: Identity, clock: HandClock
) -> None:
    await mediator.register(alice)
    await mediator.register(bob)
    first = mediator.command(alice, QUERY)
    assert (await mediator.post(first)).status == 200

    async def flood(sender: Identity) -> Counter[int]:
        """Fill what one sender can, and a little more."""
        answers = [await mediator.send(sender, QUERY) for _ in range(1_000)]
        assert answers[-1].refusal == RATE_LIMITED
        return Counter(answer.status for answer in answers)

    # Half of the room is for all; of the rest one may have a quarter of what stays free.
    assert await flood(alice) == {200: 500 - 3 + 100, 429: 1_000 - 597}
    assert await flood(bob) == {200: 80, 429: 920}
    assert (await mediator.post(first)).refusal == (401, "DUPLICATE_NONCE")
    await mediator.register(Identity("carol"))
    clock.advance(700)
    await mediator.operate("/status")  # between commands the host sweeps out what has expired
    await mediator.register(alice)


@pytest.mark.parametrize(
    "settings",
    [
        {
            "limits": {"nonces_per_shard_max": 1_000, "unproven_nonces_max": 1_000},
            "rates": {"per_address_per_s": 0},
            "shards": 1,
        }
    ],
)
async def test_junk_in_a_victims_name_fills_neither_its_shard_nor_the_log(
    mediator: Mediator, alice: Identity
) -> None:
    await mediator.register(alice)
    first = mediator.command(alice, QUERY)
    assert (await mediator.post(first)).status == 200
    before = mediator.log_position()
    junk = [{**mediator.command(alice, QUERY), "signature": "A"} for _ in range(1_500)]
    for command in junk:
        assert (await mediator.post(command)).refusal == (401, "INVALID_SIGNATURE")
    assert mediator.log_position() == before
    assert (await mediator.post(junk[-1])).refusal == (401, "DUPLICATE_NONCE")
    assert (await mediator.post(first)).refusal == (401, "DUPLICATE_NONCE")
    assert (await mediator.send(alice, QUERY)).status == 200


async def test_signed_commands_of_unknown_senders_leave_nothing_in_the_log(
    mediator: Mediator, alice: Identity, bob: Identity
) -> None:
    await mediator.register(bob)
    before = mediator.log_position()
    said = {"requestor_did": alice.did, "recipient_did": "did:x:another"}
    contract = {"communication_contract": said}
    answer = {
        "type": "COMMUNICATION_CONTRACT_RESPONSE",
        "signed_communication_contract": contract,
    }
    for command, refusal in (
        (mediator.command(alice, QUERY), (401, "UNAUTHORIZED_COMMAND")),
        (mediator.command(alice, answer, to=bob), (404, "RECIPIENT_NOT_REGISTERED")),
    ):
        assert (await mediator.post(command)).refusal == refusal
        assert (await mediator.post(command)).refusal == (401, "DUPLICATE_NONCE")
    assert mediator.log_position() == before


@pytest.mark.parametrize(
    "settings", [{"limits": {"contract_requests_max": 1, "queue_sender_share_max": 1}}]
)
@pytest.mark.parametrize("layout", ["one host"])
async def test_strangers_that_another_identity_refuses_leave_nothing_in_the_log(
    mediator: Mediator, alice: Identity, bob: Identity
) -> None:
    """Who signs with keys that were made for it must find no way by one who is registered."""
    await mediator.register(bob)
    knock = contract_request(alice, bob.pre_public, {})
    assert (await mediator.send(alice, knock, to=bob)).status == 200
    before = mediator.log_position()
    refused = [
        (mediator.command(alice, knock, to=bob), (429, "RECIPIENT_QUEUE_FULL")),
        (
            mediator.command(alice, "hello", to=bob, channel="TWO_WAY_PRIVATE"),
            (404, "COMMUNICATION_CONTRACT_NOT_FOUND"),
        ),
    ]
    for command, refusal in refused:
        assert (await mediator.post(command)).refusal == refusal
        assert (await mediator.post(command)).refusal == (401, "DUPLICATE_NONCE")
    assert mediator.log_position() == before


@pytest.mark.parametrize(
    "settings", [{"limits": {"contract_requests_max": 2, "queue_sender_share_max": 1}}]
)
async def test_contract_requests_have_a_cap(
    mediator: Mediator, alice: Identity, bob: Identity
) -> None:
    await mediator.register(bob)
    payload = contract_request(alice, bob.pre_public, {})
    answers = [await mediator.send(alice, payload, to=bob) for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 200, 429]
    assert answers[2].refusal == (429, "RECIPIENT_QUEUE_FULL")
    assert int(answers[2].headers["Retry-After"]) > 0


@pytest.mark.parametrize("settings", [{"limits": {"contracts_max": 2}}])
async def test_contracts_have_a_quota_and_what_is_there_may_be_saved_again(
    mediator: Mediator, alice: Identity, bob: Identity
) -> None:
    await mediator.register(bob)
    contracts = [await mediator.befriend(bob, alice, 60 + number) for number in range(2)]
    save = "SAVE_COMMUNICATION_CONTRACT"
    again = await mediator.do(bob, save, signed_communication_contract=contracts[0])
    assert again.status == 200
    with pytest.raises(AssertionError, match="QUOTA_EXCEEDED"):
        await mediator.befriend(bob, alice, 90)


async def test_a_host_that_does_not_answer_leaves_the_outcome_unknown(
    mediator: Mediator, friends: None, alice: Identity, bob: Identity
) -> None:
    mediator.hosts.cut("host-0")
    for answer in (
        await mediator.write(alice, bob, "hi"),
        await mediator.do(alice, "QUERY_EVENTS"),
        await mediator.get(f"/public/{alice.did}"),
    ):
        assert answer.refusal == UNAVAILABLE
        assert answer.headers["Retry-After"] == "1"
    mediator.hosts.mend("host-0")
    await mediator.delivered(alice, bob, "again")
    assert await mediator.waiting(bob) == ["again"]


@pytest.mark.parametrize("layout", ["two hosts"])
async def test_a_host_that_is_down_takes_only_its_own_identities_with_it(
    mediator: Mediator, friends: None, alice: Identity, bob: Identity
) -> None:
    mediator.hosts.cut("host-1")
    assert (await mediator.do(alice, "QUERY_EVENTS")).status == 200
    assert (await mediator.do(bob, "QUERY_EVENTS")).refusal == UNAVAILABLE
    assert (await mediator.write(alice, bob, "hi")).refusal == UNAVAILABLE
    assert (await mediator.write(bob, alice, "hi")).refusal == UNAVAILABLE
    mediator.hosts.mend("host-1")
    await mediator.delivered(alice, bob, "again")
    assert await mediator.waiting(bob) == ["again"]


def test_of_two_hosts_each_owns_one_of_alice_and_bob() -> None:
    placement = Placement(shards=16, hosts=2)
    owners = [
        placement.host_of(placement.partition_of(Identity(name).did))
        for name in ("alice", "bob", "carol", "dave")
    ]
    assert owners == ["host-0", "host-1", "host-0", "host-1"]


@pytest.mark.parametrize("settings", [{"limits": {"commands_in_flight_max": 1}}])
async def test_more_commands_at_once_than_allowed_are_asked_to_come_back(
    mediator: Mediator, alice: Identity
) -> None:
    await mediator.register(alice)
    in_flight = mediator.edges[0]._in_flight
    with in_flight.request_of():
        busy = await mediator.do(alice, "QUERY_EVENTS")
        assert busy.refusal == UNAVAILABLE
        assert busy.headers["Retry-After"] == "1"
        assert (await mediator.get("/")).status == 200
    assert (await mediator.do(alice, "QUERY_EVENTS")).status == 200


async def test_a_recipient_that_is_no_did_is_no_shard_either(
    mediator: Mediator, alice: Identity
) -> None:
    payload = {
        "type": "REQUEST_COMMUNICATION_CONTRACT",
        "encrypted_contract_request": "x",
        "requestor_ephemeral_public_key": "x",
    }
    for name in ("shard-x", "shard-", "shard-3", ""):
        answer = await mediator.send(alice, payload, to=name)
        assert answer.refusal == (404, "RECIPIENT_NOT_REGISTERED")


@pytest.mark.parametrize("settings", [{"limits": {"tags_per_command_max": 64}}])
async def test_one_command_carries_a_bounded_number_of_tags(
    mediator: Mediator, alice: Identity
) -> None:
    await mediator.register(alice)
    event = {
        "sender_did": alice.did,
        "recipient_did": alice.did,
        "timestamp": 1,
        "payload": "x",
        "encrypted_tags": [str(number) for number in range(32)],
    }
    for events, status in (([event] * 2, 200), ([event] * 3, 400)):
        assert (await mediator.do(alice, "SAVE_EVENTS", events=events)).status == status


async def test_a_draining_edge_takes_no_commands_and_says_so(
    mediator: Mediator, alice: Identity, bob: Identity
) -> None:
    await mediator.register(alice, bob)
    async with mediator.socket(bob):
        mediator.edges[0]._in_flight.draining = True
        assert (await mediator.do(alice, "QUERY_EVENTS")).refusal == UNAVAILABLE
        health = await mediator.get("/health")
        assert (health.status, health.json["status"]) == (503, "error")
        mediator.edges[0]._in_flight.draining = False


@pytest.mark.parametrize(
    "settings",
    [{"limits": {"active_identities_max": 2, "identity_idle_s": 1, "snapshot_after_events": 3}}],
)
@pytest.mark.parametrize("layout", ["two hosts"])
async def test_identities_that_leave_memory_come_back_as_they_were(mediator: Mediator) -> None:
    identities = [Identity(f"identity {number}") for number in range(6)]
    hub = identities[0]
    await mediator.register(*identities)
    for friend in identities[1:]:
        await mediator.befriend(friend, hub)
    for round_number in range(5):
        for friend in identities[1:]:
            await mediator.delivered(hub, friend, str(round_number))
        mediator.clock.advance(2)
    for friend in identities[1:]:
        assert await mediator.waiting(friend) == ["0", "1", "2", "3", "4"]
