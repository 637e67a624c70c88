"""No sender learns which names are registered, by whatever a forward is answered, or when."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Final

import orjson
import pytest

from http_edge.didcomm.envelopes.keys import KeyPair, base58
from http_edge.didcomm.envelopes.own_dids import OwnDids
from tests.edge.conftest import Disk
from tests.edge.didcomm.newer_wallets import Sender, connected
from tests.edge.didcomm.wallet_network import Bob, WalletNetwork, envelope_of, forwarded, keys
from tests.edge.mediator import Answer, HandClock

PAST: Final = "2027-01-15 08:00:00Z"
SOON: Final = "2027-01-15 08:00:10Z"
NARROW: Final = {"rates": {"per_address_per_s": 10, "burst_s": 10}}


def said(answer: Answer) -> tuple[int, bytes, str | None]:
    """What an answer says, apart from its id and time."""
    return answer.status, answer.body, answer.headers.get("Retry-After")


def timed(key: bytes, envelope: bytes, expires: str) -> bytes:
    """A forward that expires at this time."""
    timing: Any = {"~timing": {"expires_time": expires}}
    return forwarded(base58(key), orjson.loads(envelope), **timing)


async def test_a_message_whose_time_is_over_is_refused_alike(
    network: WalletNetwork, bob: Bob
) -> None:
    (unknown,) = keys(1)
    bodies = [timed(key, envelope_of(key, "one"), PAST) for key in (bob.key, unknown)]
    answers = [said(await network.post(body)) for body in bodies]
    assert answers == [(410, b'{"error":"expired"}', None)] * 2


async def test_a_message_of_v2_whose_time_is_over_is_refused_alike(network: WalletNetwork) -> None:
    wallet, sender = await connected(network), Sender(network)
    known, unknown = (await wallet.new_recipient()).did, OwnDids(KeyPair.new()).peer4
    for did in (known, unknown):
        answer = await sender.forward(did, "late", routing_did=wallet.routing_did, expires_time=1)
        assert said(answer) == (410, b'{"error":"expired"}', None)


async def test_a_message_that_expires_on_its_way_to_the_queue_is_accepted_and_gone(
    network: WalletNetwork, bob: Bob, clock: HandClock
) -> None:
    await network.write(bob, "the owner is known")
    envelope = envelope_of(bob.key, "late")
    way = network.mediator.hosts.hold(orjson.loads(envelope)["ciphertext"].encode())
    posted = asyncio.create_task(network.post(timed(bob.key, envelope, SOON)))
    await way.arrived.wait()
    clock.advance(10)
    way.released.set()
    assert said(await posted) == (202, b"", None)
    assert await bob.drained() == ["the owner is known"]


@pytest.mark.parametrize("settings", [NARROW])
async def test_what_is_left_of_a_rate_shows_nothing(
    network: WalletNetwork, bob: Bob, clock: HandClock
) -> None:
    (unknown,) = keys(1)
    taken = []
    for key in (bob.key, unknown):
        clock.advance(60)
        body = envelope_of(key, "one")
        taken.append([(await network.post(body)).status for _ in range(101)])
    assert taken == [[202] * 100 + [429]] * 2


@pytest.mark.parametrize("settings", [NARROW])
async def test_what_has_expired_costs_the_same_for_any_name(
    network: WalletNetwork, bob: Bob, clock: HandClock
) -> None:
    (unknown,) = keys(1)
    for key in (bob.key, unknown):
        clock.advance(60)
        body = timed(key, envelope_of(key, "one"), PAST)
        answers = [(await network.post(body)).status for _ in range(7)]
        assert answers == [410] * 6 + [429]


@pytest.mark.parametrize("settings", [NARROW])
async def test_what_none_can_register_is_paid_for_as_what_proves_nothing(
    network: WalletNetwork,
) -> None:
    (key,) = keys(1)
    body = forwarded("neither a key nor a DID", orjson.loads(envelope_of(key, "one")))
    answers = [(await network.post(body)).status for _ in range(7)]
    assert answers == [202] * 6 + [429]


async def test_a_disk_that_is_nearly_full_shows_nothing(
    disk: Disk, network: WalletNetwork, bob: Bob, clock: HandClock
) -> None:
    unknown, second = keys(2)
    disk.free_bytes = 0
    clock.advance(2)
    bodies = [envelope_of(key, "one") for key in (bob.key, unknown)]
    for each in (bob.key, unknown):  # with a second recipient, all owners are looked up at once
        both = [base58(each), base58(second)]
        bodies.append(forwarded(both, orjson.loads(envelope_of(each, "one"))))
    answers = [said(await network.post(body)) for body in bodies]
    assert answers == [(503, b'{"error":"insufficient-storage"}', "60")] * 4


async def test_a_message_sent_again_is_answered_no_sooner_than_one_that_is_stored(
    network: WalletNetwork, bob: Bob
) -> None:
    """Nothing is committed for it, as for an unknown recipient."""
    body, loop = envelope_of(bob.key, "one"), asyncio.get_running_loop()
    assert (await network.post(body)).status == 202
    (edge,) = network.mediator.edges
    mediation: Any = edge._mediation
    times = mediation.endpoint._inbound._times
    times._stored_s = deque([0.2], 64)  # as if the log took so long
    started_s = loop.time()
    assert (await network.post(body)).status == 202
    assert loop.time() - started_s > 0.19
    assert list(times._stored_s) == [0.2], "its own time is no time of a stored one"
