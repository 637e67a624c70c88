"""What an edge and a host keep in memory of clients that came, did everything, and are gone."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import Any, Final

import orjson
import pytest
from cachetools import Cache

from http_edge.clients.didcomm import WalletError
from http_edge.didcomm.envelopes.keys import KeyPair
from tests.edge.didcomm.newer_wallets import Sender, connected
from tests.edge.didcomm.wallet_network import (
    WalletNetwork,
    ids,
    routed,
    sealed,
)
from tests.edge.identities import Identity
from tests.edge.mediator import WAIT_S, HandClock, Mediator

OURS: Final = ("actors", "http_edge", "eventstore")
WITH_A_BOUND: Final = {
    "_secrets": "the secrets of 8,192 conversations",
    "_seen": "documents of agents (didcomm.owners_remembered_max), sizes of the log for a day",
    "_owners": "owners of keys (didcomm.owners_remembered_max)",
    "_remembered": "accounts of DIDs (didcomm.owners_remembered_max)",
    "_again_ms": "signs of life (didcomm.owners_remembered_max)",
    "_full_at_s": "rates (rates.keys_max)",
    "_younger": "nonces without effect (limits.unproven_nonces_max)",
    "_older": "the same",
    "_entries": "counts of refusals (audit.refusals_entries_max)",
    "_stored_s": "the times of the last answers",
    "_counts": "kinds of commands and their results",
    "moved": "DIDs whose account is looked up",
    "_queries": "questions to the log, one of each kind",
    "_free": "connections to the log that are kept",
    "_sockets": "a number for each edge",
    "_places": "where the search for due records is, for each kind of them",
}
"""Containers that keep something of clients that are gone, by the name of their attribute."""
_HOURS_S: Final = 7_200
_ROUNDS: Final = 4
_NUMBERS: Final = itertools.count(1)


def parts_of(thing: object) -> Iterator[tuple[str, object]]:
    """The attributes of an object, by name."""
    yield from getattr(thing, "__dict__", {}).items()
    for kind in type(thing).__mro__:
        for name in getattr(kind, "__slots__", ()):
            if hasattr(thing, name):
                yield name, getattr(thing, name)


def levels(mediator: Mediator) -> dict[str, int]:
    """The lengths of all containers in an edge and a host, by where they are found."""
    found: dict[str, int] = {}
    looked: set[int] = set()
    left: list[tuple[str, str, Any]] = [
        ("edge", "", mediator.edges[0]),
        *((name, "", host) for name, host in mediator.hosts.running.items()),
    ]
    while left:
        path, name, thing = left.pop()
        if id(thing) in looked:
            continue
        looked.add(id(thing))
        if isinstance(thing, dict | set | list | deque | Cache):
            if name not in WITH_A_BOUND:
                found[path] = found.get(path, 0) + len(thing)
            members: Collection[Any] = list(thing.values() if isinstance(thing, dict) else thing)
            left += [(f"{path}[]", name, one) for one in members]
        elif type(thing).__module__.startswith(OURS):
            left += [(f"{path}.{part}", part, one) for part, one in parts_of(thing)]
    return found


async def decentrl(mediator: Mediator) -> None:
    """Two identities do everything and leave, and sockets are cut at every step."""
    number = next(_NUMBERS)
    alice, bob = Identity(f"alice-{number}"), Identity(f"bob-{number}")
    await mediator.register(alice, bob, lifetime_s=600)
    await mediator.befriend(alice, bob, 600)
    async with mediator.socket(alice) as socket:
        await mediator.delivered(bob, alice, "hello")
        await socket.hear()
    for words in (None, b"\xff", orjson.dumps(mediator.authenticate(alice)).decode()):
        async with mediator.upgrade() as socket:
            if words is not None:
                await socket.say(words)
            assert socket.raw._response.connection is not None
            assert socket.raw._response.connection.transport is not None
            socket.raw._response.connection.transport.abort()
    await mediator.publish(alice, f"event {number}")
    await mediator.write(alice, Identity(f"unknown-{number}"), "hello")
    for identity in (alice, bob):
        await mediator.do(identity, "ERASE_IDENTITY", did=identity.did)


async def didcomm(network: WalletNetwork) -> None:
    """Wallets of both generations connect, get messages in every way, and fall silent."""
    bob = await network.bob()
    await network.write(bob, "one", "two")
    async with bob.wallet.live() as live:
        await network.write(bob, "three")
        await live.received(ids(await live.next(WAIT_S)))
    async with network.socket() as socket:
        await socket.say(sealed(bob.connection, "messagepickup/1.0/noop", **routed()))
        await socket.data()
    with suppress(WalletError):
        await bob.wallet.noop(1)
    await bob.drained()
    await network.forward_text(KeyPair.new().public, "for an unknown key")
    wallet = await connected(network)
    recipient = await wallet.new_recipient()
    await Sender(network).write(recipient, "four")
    await wallet.end()


@pytest.mark.thorough
@pytest.mark.parametrize("settings", [{"limits": {"identity_idle_s": 1}}])
async def test_of_clients_that_are_gone_nothing_stays_but_what_has_a_bound(
    network: WalletNetwork, mediator: Mediator, clock: HandClock
) -> None:
    async def gone() -> None:
        for _ in range(_ROUNDS):
            await decentrl(mediator)
            await didcomm(network)
        clock.advance(_HOURS_S)

    await gone()
    await gone()
    host = mediator.hosts.running["host-0"]
    async with asyncio.timeout(WAIT_S):
        # The housekeeping of a host comes once a second.
        while host.stats().cached_identities or host.stats().nonces:  # noqa: ASYNC110
            await asyncio.sleep(0)
    before = levels(mediator)
    await gone()
    await gone()
    more: dict[str, tuple[int, int]] = {}
    with suppress(TimeoutError):
        async with asyncio.timeout(WAIT_S):
            while more := {  # noqa: ASYNC110 - no event says that all work has ended
                path: (before.get(path, 0), level)
                for path, level in levels(mediator).items()
                if level > before.get(path, 0)
            }:
                await asyncio.sleep(0)
    assert more == {}
