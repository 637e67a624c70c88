"""Attacks on DIDComm: envelopes, endpoints, pickup, and what wallets may ask."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from itertools import count, cycle
from typing import Final

import orjson

from http_edge.clients.didcomm import Live, Recipient, Wallet, fetch_invitation, forward, post
from http_edge.clients.didcomm.connection import agreement_key
from http_edge.clients.didcomm.invitation import fetch_invitation_2
from http_edge.didcomm.envelopes.keys import KeyPair
from http_edge.didcomm.envelopes.messages import NEW_PREFIX, Json
from http_edge.didcomm.envelopes.own_dids import OwnDids
from http_edge.didcomm.envelopes.v1.envelope import pack
from http_edge.didcomm.envelopes.v1.version import MEDIA_TYPE
from http_edge.didcomm.envelopes.v2 import envelope
from http_edge.didcomm.envelopes.v2.version import MEDIA_TYPE as MEDIA_TYPE_2
from tests.attacks.attack import Attack, Bounds
from tests.attacks.target import SOURCES, Target

_PATH: Final = "/didcomm"
_RECIPIENTS: Final = 16
_CONTENT_BYTES: Final = 200_000
_ENDPOINTS: Final = 68
_ENDPOINT_NETWORK: Final = "127.1.0."
_PING: Final = NEW_PREFIX + "trust_ping/1.0/ping"
_BASIC_MESSAGE: Final = NEW_PREFIX + "basicmessage/1.0/message"
_FULL_WALLETS: Final = 100
_FULL_MESSAGES: Final = 12
_FULL_CONTENT_BYTES: Final = 130_000
_STORED_ONCE_MAX: Final = 1.5
"""A message in the log beside its envelope on the way: once, and what names its recipients."""


async def connected(target: Target, number: int, endpoint: str | None = None) -> list[Wallet]:
    """So many wallets; ``endpoint`` has a place for the number of each."""
    session = await target.session()
    invitation = await fetch_invitation(session, f"{target.url}/invitation")
    return [
        await Wallet.connect(
            invitation,
            session=session,
            label=f"attacker-{one}",
            endpoint=None if endpoint is None else endpoint.format(one),
        )
        for one in range(number)
    ]


async def recipients(target: Target, number: int) -> list[Recipient]:
    """So many keys, each of a wallet of its own."""
    return [await wallet.new_recipient() for wallet in await connected(target, number)]


async def sixteen_recipients(target: Target) -> AsyncIterator[None]:
    """One anonymous envelope for sixteen wallets."""
    keys = [one.key.public for one in await recipients(target, _RECIPIENTS)]
    envelopes = [pack(_content(_CONTENT_BYTES), keys, None) for _ in range(8)]
    yield
    await target.flood(5, _all_different(envelopes), path=_PATH, media_type=MEDIA_TYPE)


async def many_recipients(target: Target) -> AsyncIterator[None]:
    """Envelopes for 64 keys that none has registered, and for more than are read."""
    strangers = [KeyPair.new().public for _ in range(128)]
    envelopes = [pack(_content(1_000), strangers[:number], None) for number in (16, 64, 128)]
    yield
    await target.flood(200, _all_different(envelopes), path=_PATH, media_type=MEDIA_TYPE)


async def many_recipients_2(target: Target) -> AsyncIterator[None]:
    """Envelopes of DIDComm v2 for strangers: for as many as are read, for more, and for us too."""
    session = await target.session()
    mediator = (await fetch_invitation_2(session, f"{target.url}/invitation")).did
    strangers = [OwnDids(KeyPair.new()).peer2 for _ in range(128)]
    envelopes = [
        envelope.seal(
            _content(1_000),
            [envelope.Recipient(*agreement_key(did)) for did in dids],
            None,
        )
        for dids in (strangers[:16], strangers[:64], strangers, [*strangers[:63], mediator])
    ]
    yield
    await target.flood(200, _all_different(envelopes), path=_PATH, media_type=MEDIA_TYPE_2)


async def nested_forwards(target: Target) -> AsyncIterator[None]:
    """Forwards within one another, as deep and as long as they may be."""
    session = await target.session()
    invitation = await fetch_invitation(session, f"{target.url}/invitation")
    inner = pack(_content(100_000), [KeyPair.new().public], None)
    nested = forward(inner, invitation.key, [invitation.key] * 3)
    yield
    await target.flood(30, cycle([nested]), path=_PATH, media_type=MEDIA_TYPE)


async def malformed_members(target: Target) -> AsyncIterator[None]:
    """Proven messages whose decorators are of every wrong type."""
    (wallet,) = await connected(target, 1)
    wrong: list[object] = [[], {}, 1, 1.5, None, True, "", [[]], {"a": []}, -1, 1e300, "\u0000"]
    messages: list[Json] = []
    for value in wrong:
        messages += [
            {"@type": _PING, "@id": "1", "~transport": {"return_route": value}},
            {"@type": _PING, "@id": "1", "~transport": value},
            {"@type": _PING, "@id": "1", "~thread": value},
            {"@type": _PING, "@id": "1", "~thread": {"thid": value}},
            {"@type": _PING, "@id": "1", "~timing": value},
            {"@type": _PING, "@id": "1", "~timing": {"delay_milli": value}},
            {"@type": _PING, "@id": value},
            {"@type": value, "@id": "1"},
        ]
    envelopes = [wallet.connection.pack(message) for message in messages]
    yield
    await target.flood(100, cycle(envelopes), path=_PATH, media_type=MEDIA_TYPE)


async def silent_endpoints(target: Target) -> AsyncIterator[None]:
    """Wallets whose endpoints accept connections and never answer, and messages for them."""
    servers = []
    ports: list[int] = []
    for number in range(1, _ENDPOINTS + 1):
        server = await asyncio.start_server(_never_answer, f"{_ENDPOINT_NETWORK}{number}", 0)
        servers.append(server)
        ports.append(server.sockets[0].getsockname()[1])
    session = await target.session()
    invitation = await fetch_invitation(session, f"{target.url}/invitation")
    found: list[Recipient] = []
    for number, port in enumerate(ports, 1):
        endpoint = f"http://{_ENDPOINT_NETWORK}{number}:{port}/"
        wallet = await Wallet.connect(invitation, session=session, endpoint=endpoint)
        found.append(await wallet.new_recipient())
    envelopes = [one.address.seal({"@type": _BASIC_MESSAGE, "@id": "1"}) for one in found]
    yield
    await target.flood(_ENDPOINTS, cycle(envelopes), path=_PATH, media_type=MEDIA_TYPE)


async def _never_answer(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    while await reader.read(65_536):
        pass


async def handshakes(target: Target) -> AsyncIterator[None]:
    """Wallets that connect, each as any newcomer may."""
    session = await target.session()
    invitation = await fetch_invitation(session, f"{target.url}/invitation")
    yield

    async def once() -> None:
        wallet = await Wallet.connect(invitation, session=session)
        await wallet.request_mediation()
        target.answers["accepted"] += 1

    await target.repeat(100, once)


async def keylist_updates(target: Target) -> AsyncIterator[None]:
    """Register two hundred keys in one message; each is a command to the owner of its key."""
    (wallet,) = await connected(target, 1)
    await wallet.request_mediation()

    async def once() -> None:
        await wallet.update_keylist(add=[os.urandom(32) for _ in range(200)])
        target.answers["accepted"] += 1

    yield
    await target.repeat(10, once)


async def leased_pickups(target: Target) -> AsyncIterator[None]:
    """Ask for a hundred messages at a time, and acknowledge none: leases are all that changes."""
    (wallet,) = await connected(target, 1)
    recipient = await wallet.new_recipient()
    for _ in range(1_000):
        sealed = recipient.address.seal({"@type": _BASIC_MESSAGE, "@id": "1", "content": "x"})
        await post(wallet.session, recipient.address.endpoint, sealed)
    yield
    await _asking(target, 50, lambda: wallet.fetch(100))


async def large_lists(target: Target) -> AsyncIterator[None]:
    """Ask for as much of the own queue as one answer may carry, without taking it."""
    wallets = await _full_queues(target, _FULL_WALLETS)
    requests: list[tuple[Wallet, Json]] = []
    for wallet in wallets:
        ids = [picked.id for picked in await wallet.fetch(100)]
        kind = NEW_PREFIX + "messagepickup/1.0/list-pickup"
        route = {"return_route": "all"}
        requests.append((wallet, {"@type": kind, "message_ids": ids, "~transport": route}))
    bodies = (_sealed(wallet, message) for wallet, message in cycle(requests))
    yield
    await target.flood(100, bodies, path=_PATH, media_type=MEDIA_TYPE)


async def _full_queues(target: Target, number: int) -> list[Wallet]:
    """So many wallets with more in their queues than one delivery carries."""
    wallets = await connected(target, number)
    for wallet in wallets:
        recipient = await wallet.new_recipient()
        message: Json = {
            "@type": _BASIC_MESSAGE,
            "@id": "1",
            "content": "x" * _FULL_CONTENT_BYTES,
        }
        for _ in range(_FULL_MESSAGES):
            await post(wallet.session, recipient.address.endpoint, recipient.address.seal(message))
    return wallets


def _sealed(wallet: Wallet, message: Json) -> bytes:
    return wallet.connection.pack({**message, "@id": SOURCES.new_nonce()})


async def long_polls(target: Target) -> AsyncIterator[None]:
    """Ask for messages with the longest wait, over and over."""
    (wallet,) = await connected(target, 1)
    recipient = await wallet.new_recipient()
    message: Json = {
        "@type": NEW_PREFIX + "messagepickup/1.0/batch-pickup",
        "batch_size": 10,
        "~timing": {"delay_milli": 60_000},
        "~transport": {"return_route": "all"},
    }
    assert recipient.mediation.endpoint
    yield

    async def once() -> None:
        fresh = wallet.connection.pack({**message, "@id": SOURCES.new_nonce()})
        await post(wallet.session, wallet.connection.http_url, fresh)
        target.answers["answered"] += 1

    await target.repeat(200, once, at_once=2_000)


async def live_unacknowledged(target: Target) -> AsyncIterator[None]:
    """Live mode, messages for it, and not one acknowledgement."""
    (wallet,) = await connected(target, 1)
    recipient = await wallet.new_recipient()
    content = "x" * 4_096
    message: Json = {"@type": _BASIC_MESSAGE, "@id": "1", "content": content}
    envelopes = [recipient.address.seal(message) for _ in range(64)]
    async with wallet.live() as live:
        taking = asyncio.create_task(_count(live, target))
        yield
        await target.flood(300, cycle(envelopes), path=_PATH, media_type=MEDIA_TYPE)
        taking.cancel()


async def _count(live: Live, target: Target) -> None:
    async for _ in live:
        target.answers["pushed"] += 1


async def _asking(target: Target, per_s: float, ask: Callable[[], Awaitable[object]]) -> None:
    async def once() -> None:
        await ask()
        target.answers["answered"] += 1

    await target.repeat(per_s, once)


def _content(size_bytes: int) -> bytes:
    message = {"@type": _BASIC_MESSAGE, "@id": "1", "content": "x" * size_bytes}
    return orjson.dumps(message)


def _all_different(envelopes: list[bytes]) -> Iterator[bytes]:
    """The envelopes in turns, each with a member of its own: no two are the same message."""
    return (
        b'%b,"n":"%d"}' % (envelope[:-1], number)
        for number, envelope in zip(count(), cycle(envelopes), strict=False)
    )


ATTACKS: Final = (
    Attack(
        name="sixteen-recipients",
        about="one anonymous envelope of 200 KB for sixteen wallets",
        rate="5/s",
        program=sixteen_recipients,
        bounds=Bounds(stored_per_sent_max=_STORED_ONCE_MAX),
        pair="live",
    ),
    Attack(
        name="many-recipients",
        about="envelopes for 16, 64 and 128 keys that none registered",
        rate="200/s",
        program=many_recipients,
        pair="live",
    ),
    Attack(
        name="many-recipients-v2",
        about="envelopes of DIDComm v2 for 16, 64 and 128 strangers, and for 63 and the mediator",
        rate="200/s",
        program=many_recipients_2,
        pair="live",
    ),
    Attack(
        name="nested-forwards",
        about="three forwards within one another around 100 KB",
        rate="30/s",
        program=nested_forwards,
        pair="live",
    ),
    Attack(
        name="malformed-members",
        about="proven messages with members of every wrong type",
        rate="100/s",
        program=malformed_members,
        pair="live",
    ),
    Attack(
        name="silent-endpoints",
        about="68 endpoints that accept connections and never answer",
        rate="68/s",
        program=silent_endpoints,
        settings={
            "outbound.allowed_networks": "127.0.0.0/8",
            # They have come one after the other, long before.
            "rates.registrations_per_address_per_s": "0",
        },
        pair="endpoint",
    ),
    Attack(
        name="handshakes",
        about="wallets connect and ask for mediation",
        rate="100/s",
        program=handshakes,
        pair="live",
    ),
    Attack(
        name="keylist-updates",
        about="a wallet registers 200 keys at once",
        rate="10/s",
        program=keylist_updates,
        pair="live",
    ),
    Attack(
        name="leased-pickups",
        about="a wallet fetches 100 messages at a time and acknowledges none",
        rate="50/s",
        program=leased_pickups,
        pair="live",
    ),
    Attack(
        name="long-polls",
        about="a wallet waits for messages, 2,000 times at once",
        rate="200/s up to 2,000",
        program=long_polls,
        pair="live",
    ),
    Attack(
        name="large-lists",
        about="100 wallets list 2 MB of their queues, over and over",
        rate="100/s",
        program=large_lists,
        long_ago=True,
        pair="live",
    ),
    Attack(
        name="live-unacknowledged",
        about="a wallet in live mode acknowledges nothing of what is pushed",
        rate="300/s",
        program=live_unacknowledged,
        pair="live",
    ),
)
