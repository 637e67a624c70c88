"""DCTRL-0004 section 5: the timestamp window and the nonces, under every placement of hosts."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from tests.edge.identities import Identity
from tests.edge.mediator import LAYOUTS, HandClock, Mediator

WINDOW_MS = 300_000
QUERY = {"type": "QUERY_PENDING_EVENTS"}
DUPLICATE = (401, "DUPLICATE_NONCE")
NARROW = {"protocol": {"timestamp_window_ms": 10_000}}
OUT_OF_RANGE = (401, "TIMESTAMP_OUT_OF_RANGE")

pytestmark = pytest.mark.parametrize("layout", LAYOUTS)


@pytest.fixture(autouse=True)
async def _they_are_friends(friends: None) -> None:
    """Alice and Bob are registered and may write to one another."""


async def test_trap_20_a_drift_of_exactly_the_window_is_accepted_and_none_beyond_it(
    mediator: Mediator, alice: Identity
) -> None:
    now_ms = mediator.clock.now_ms
    for drift_ms in (-WINDOW_MS, WINDOW_MS):
        assert (await mediator.send(alice, QUERY, timestamp=now_ms + drift_ms)).status == 200
    for drift_ms in (-WINDOW_MS - 1, WINDOW_MS + 1, -(10**14), 10**14):
        answer = await mediator.send(alice, QUERY, timestamp=now_ms + drift_ms)
        assert answer.refusal == OUT_OF_RANGE, drift_ms


@pytest.mark.parametrize("settings", [NARROW])
async def test_the_window_is_configurable(
    mediator: Mediator, alice: Identity, clock: HandClock
) -> None:
    assert (await mediator.send(alice, QUERY, timestamp=clock.now_ms - 10_000)).status == 200
    answer = await mediator.send(alice, QUERY, timestamp=clock.now_ms - 10_001)
    assert answer.refusal == OUT_OF_RANGE


async def test_trap_21_a_nonce_is_used_up_before_its_signature_is_checked(
    mediator: Mediator, alice: Identity
) -> None:
    command = mediator.command(alice, QUERY)
    corrupted = {**command, "signature": alice.sign("another thing")}
    assert (await mediator.post(corrupted)).refusal == (401, "INVALID_SIGNATURE")
    assert (await mediator.post(command)).refusal == DUPLICATE
    assert (await mediator.post(corrupted)).refusal == DUPLICATE


@pytest.mark.parametrize(
    "payload", [QUERY, {"type": "NONSENSE"}, {"type": "SAVE_EVENTS", "events": "none"}]
)
async def test_trap_21_every_retry_needs_a_new_nonce(
    mediator: Mediator, alice: Identity, payload: dict[str, str]
) -> None:
    command = mediator.command(alice, payload)
    await mediator.post(command)
    assert (await mediator.post(command)).refusal == DUPLICATE


async def test_trap_22_the_same_nonce_of_another_sender_is_another_pair(
    mediator: Mediator, alice: Identity, bob: Identity
) -> None:
    nonce = mediator.nonce()
    assert (await mediator.send(alice, QUERY, nonce=nonce)).status == 200
    assert (await mediator.send(bob, QUERY, nonce=nonce)).status == 200
    assert (await mediator.send(alice, QUERY, nonce=nonce)).refusal == DUPLICATE


async def test_a_nonce_counts_across_channels_and_recipients(
    mediator: Mediator, alice: Identity, bob: Identity
) -> None:
    nonce = mediator.nonce()
    assert (await mediator.send(alice, QUERY, nonce=nonce)).status == 200
    assert (await mediator.write(alice, bob, "hi", nonce=nonce)).refusal == DUPLICATE
    assert await mediator.waiting(bob) == []


async def test_trap_23_a_nonce_stamped_in_the_future_is_kept_until_its_stamp_leaves_the_window(
    mediator: Mediator, alice: Identity, clock: HandClock
) -> None:
    command = mediator.command(alice, QUERY, timestamp=clock.now_ms + WINDOW_MS)
    assert (await mediator.post(command)).status == 200
    clock.advance(WINDOW_MS / 1000)
    assert (await mediator.post(command)).refusal == DUPLICATE
    clock.advance(WINDOW_MS / 1000)
    assert (await mediator.post(command)).refusal == DUPLICATE
    clock.advance(0.001)
    assert (await mediator.post(command)).refusal == OUT_OF_RANGE


@pytest.mark.parametrize("ahead_ms", [0, WINDOW_MS])
async def test_trap_24_a_replay_is_refused_after_a_restart(
    mediator: Mediator, alice: Identity, bob: Identity, clock: HandClock, ahead_ms: int
) -> None:
    query = mediator.command(alice, QUERY, timestamp=clock.now_ms + ahead_ms)
    message = mediator.command(
        alice, "hi", to=bob, channel="TWO_WAY_PRIVATE", timestamp=clock.now_ms + ahead_ms
    )
    for command in (query, message):
        assert (await mediator.post(command)).status == 200
    await mediator.restart()
    for command in (query, message):
        assert (await mediator.post(command)).refusal == DUPLICATE
    clock.advance((WINDOW_MS + ahead_ms) / 1000)
    await mediator.restart()
    for command in (query, message):
        assert (await mediator.post(command)).refusal == DUPLICATE
    assert await mediator.waiting(bob) == ["hi"]


async def test_what_another_identity_refused_may_be_sent_again_after_a_restart_of_one_host(
    mediator: Mediator, bob: Identity, carol: Identity, layout: str
) -> None:
    """Known and open: O26 of the threat model."""
    await mediator.register(carol)
    message = mediator.command(carol, "hi", to=bob, channel="TWO_WAY_PRIVATE")
    assert (await mediator.post(message)).refusal == (404, "COMMUNICATION_CONTRACT_NOT_FOUND")
    await mediator.befriend(bob, carol)
    assert (await mediator.post(message)).refusal == DUPLICATE
    await mediator.restart()
    again = await mediator.post(message)
    if layout == "one host":
        assert (again.status, await mediator.waiting(bob)) == (200, ["hi"])
    else:
        assert (again.refusal, await mediator.waiting(bob)) == (DUPLICATE, [])


async def test_trap_25_of_many_identical_commands_at_once_exactly_one_passes(
    mediator: Mediator, alice: Identity, bob: Identity
) -> None:
    command = mediator.command(alice, "hi", to=bob, channel="TWO_WAY_PRIVATE")
    answers = await asyncio.gather(*[mediator.post(command) for _ in range(20)])
    assert Counter(answer.status for answer in answers) == {200: 1, 401: 19}
    assert await mediator.waiting(bob) == ["hi"]


async def test_trap_25_nonces_of_senders_who_are_not_registered_are_kept_too(
    mediator: Mediator, bob: Identity, carol: Identity
) -> None:
    await mediator.befriend(bob, carol)
    command = mediator.command(carol, "hi", to=bob, channel="TWO_WAY_PRIVATE")
    assert (await mediator.post(command)).status == 200
    assert (await mediator.post(command)).refusal == DUPLICATE
    await mediator.restart()
    assert (await mediator.post(command)).refusal == DUPLICATE


async def test_trap_26_a_command_out_of_range_uses_up_no_nonce(
    mediator: Mediator, alice: Identity, clock: HandClock
) -> None:
    command = mediator.command(alice, QUERY, timestamp=clock.now_ms + WINDOW_MS + 1)
    before = mediator.log_position()
    assert (await mediator.post(command)).refusal == OUT_OF_RANGE
    assert mediator.log_position() == before
    clock.advance(0.001)
    assert (await mediator.post(command)).status == 200


async def test_trap_26_a_command_that_fails_its_schema_uses_up_no_nonce(
    mediator: Mediator, alice: Identity
) -> None:
    command = mediator.command(alice, QUERY)
    before = mediator.log_position()
    answer = await mediator.post({**command, "signature": None})
    assert answer.refusal == (400, "INVALID_COMMAND")
    assert mediator.log_position() == before
    assert (await mediator.post(command)).status == 200


@pytest.mark.parametrize("settings", [NARROW])
async def test_trap_29_a_window_that_grows_between_restarts_opens_no_nonce(
    mediator: Mediator, alice: Identity, clock: HandClock, layout: str
) -> None:
    command = mediator.command(alice, QUERY)
    assert (await mediator.post(command)).status == 200
    clock.advance(200)
    assert (await mediator.post(command)).refusal == OUT_OF_RANGE
    await mediator.restart(LAYOUTS[layout])
    assert (await mediator.post(command)).refusal == DUPLICATE


@pytest.mark.parametrize("settings", [{"edges": 2}])
async def test_a_nonce_that_one_edge_took_is_refused_by_all(
    mediator: Mediator, alice: Identity
) -> None:
    command = mediator.command(alice, QUERY)
    assert (await mediator.post(command, edge=0)).status == 200
    assert (await mediator.post(command, edge=1)).refusal == DUPLICATE


@pytest.mark.parametrize(
    "settings",
    [{"limits": {"nonces_per_shard_max": 1_000}, "rates": {"per_address_per_s": 0}, "shards": 2}],
)
async def test_strangers_do_not_keep_out_who_is_registered(
    mediator: Mediator, alice: Identity, clock: HandClock
) -> None:
    """Though a stranger's nonce is kept at its host before another one refuses its command."""
    nonces_of = mediator.edges[0]._gateway.routes.placement.partition_of
    numbered = [Identity(f"stranger {number}") for number in range(40)]
    stranger = next(one for one in numbered if nonces_of(one.did) == nonces_of(alice.did))
    target = next(one for one in numbered if nonces_of(one.did) != nonces_of(alice.did))
    await mediator.register(target)
    refusals: Counter[object] = Counter()
    for _ in range(1_100):
        clock.advance(0.02)
        refusals[(await mediator.write(stranger, target, "hello")).refusal] += 1
    assert refusals[(404, "COMMUNICATION_CONTRACT_NOT_FOUND")] >= 500 - 2
    assert (await mediator.send(alice, QUERY)).status == 200
