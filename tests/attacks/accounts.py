"""Attacks by many wallets of one address: their DIDs, their keylists, and what they filter."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from itertools import cycle, islice
from typing import Final

import orjson

from http_edge.clients.didcomm import Wallet2, forward_2, post
from http_edge.didcomm.envelopes.keys import KeyPair
from http_edge.didcomm.envelopes.messages import NEW_PREFIX, DidRotation, Json
from http_edge.didcomm.envelopes.v2.signed import write_from_prior
from http_edge.didcomm.envelopes.v2.version import MEDIA_TYPE
from tests.attacks.attack import Attack
from tests.attacks.target import ACCEPTED, SOURCES, Target

_PATH: Final = "/didcomm"
_WALLETS: Final = 45
_LISTING: Final = 20
_NAMES: Final = 1_000
_NAME_CHARS: Final = 255
_UPDATES: Final = 200
_FILLED: Final = 3
_HALF: Final = 4_900
"""Envelopes of one recipient; two of them fill a queue."""
_ATTACHED: Final = 32
_ENVELOPE: Final = b'{"protected":"e30","recipients":[],"iv":"A","ciphertext":"A","tag":"A"}'


async def wallets_2(target: Target, number: int) -> list[Wallet2]:
    """So many wallets of DIDComm v2."""
    session = await target.session()
    url = f"{target.url}/invitation"
    return [await Wallet2.connect(url, session=session) for _ in range(number)]


def packed(wallet: Wallet2, kind: str, body: Json, **headers: str) -> bytes:
    """A message of a wallet that wants its answer at once."""
    message = {
        "id": SOURCES.new_nonce(),
        "type": NEW_PREFIX + kind,
        "from": wallet.connection.did,
        "to": [wallet.connection.mediator_did],
        "body": body,
        "return_route": "all",
        **headers,
    }
    return wallet.connection.packed(orjson.dumps(message))


async def rotations(target: Target) -> AsyncIterator[None]:
    """Move an account to a new DID with each message."""
    wallets = deque(await wallets_2(target, _WALLETS))
    yield

    async def once() -> None:
        old = wallets.popleft()
        known = replace(old.connection, key=KeyPair.new(), is_known=False)
        new = Wallet2(known, session=old.session)
        rotation = DidRotation(old.connection.did, known.did, SOURCES.now_ms() // 1000)
        proof = write_from_prior(rotation, f"{rotation.prior_did}#key-1", old.connection.key)
        next_one = old
        try:
            body = packed(new, "trust-ping/2.0/ping", {}, from_prior=proof)
            await post(new.session, known.http_url, body, media_type=MEDIA_TYPE)
            next_one = new
            target.answers[ACCEPTED] += 1
        finally:
            wallets.append(next_one)

    await target.repeat(200, once, at_once=_WALLETS)


async def long_lists(target: Target) -> AsyncIterator[None]:
    """Ask for lists of recipients with names as long as they may be."""
    wallets = await wallets_2(target, _LISTING)
    for wallet in wallets:
        names = (
            f"did:example:{SOURCES.new_nonce()}".ljust(_NAME_CHARS, "x") for _ in range(_NAMES)
        )
        for _ in range(0, _NAMES, _UPDATES):
            await wallet.update_recipients(add=list(islice(names, _UPDATES)))
    kind = "coordinate-mediation/3.0/recipient-query"
    bodies = _made_ready(target, 200, (packed(one, kind, {}) for one in cycle(wallets)))
    yield
    await target.flood(200, bodies, path=_PATH, media_type=MEDIA_TYPE)


async def many_keylists(target: Target) -> AsyncIterator[None]:
    """Register two hundred recipients in each message, as many wallets."""
    wallets = cycle(await wallets_2(target, _WALLETS))
    yield

    async def once() -> None:
        names = [f"did:example:{SOURCES.new_nonce()}" for _ in range(_UPDATES)]
        await next(wallets).update_recipients(add=names)
        target.answers[ACCEPTED] += 1

    await target.repeat(100, once)


async def filtered_pickups(target: Target) -> AsyncIterator[None]:
    """Ask for the messages of one recipient, of whom there is one among very many others."""
    asking: list[tuple[Wallet2, str]] = []
    for wallet in await wallets_2(target, _FILLED):
        first, rare, last = [(await wallet.new_recipient()).did for _ in range(3)]
        for did, number in ((first, _HALF), (rare, 1), (last, _HALF)):
            for start in range(0, number, _ATTACHED):
                body = forward_2([_ENVELOPE] * min(_ATTACHED, number - start), did)
                url = wallet.connection.http_url
                await post(wallet.session, url, body, media_type=MEDIA_TYPE)
        asking.append((wallet, rare))
    kind = "messagepickup/3.0/delivery-request"
    messages = (
        packed(wallet, kind, {"limit": 10, "recipient_did": did}) for wallet, did in cycle(asking)
    )
    bodies = _made_ready(target, 200, messages)
    yield
    await target.flood(200, bodies, path=_PATH, media_type=MEDIA_TYPE)


def _made_ready(target: Target, per_s: float, bodies: Iterator[bytes]) -> Iterator[bytes]:
    """As many as can be sent, and a few more: packing costs time too."""
    return iter(list(islice(bodies, int((target.options.seconds + 2) * per_s))))


ATTACKS: Final = (
    Attack(
        name="rotations",
        about="45 wallets move to a new DID with each message",
        rate="200/s",
        program=rotations,
        pair="live",
    ),
    Attack(
        name="long-lists",
        about="20 wallets list 1,000 recipients with names of 255 characters",
        rate="200/s",
        program=long_lists,
        long_ago=True,
        pair="live",
    ),
    Attack(
        name="many-keylists",
        about="45 wallets register 200 recipients at once",
        rate="100/s",
        program=many_keylists,
        pair="live",
    ),
    Attack(
        name="filtered-pickups",
        about="3 wallets fetch for one recipient past 9,800 envelopes for others",
        rate="200/s",
        program=filtered_pickups,
        long_ago=True,
        pair="live",
    ),
)
