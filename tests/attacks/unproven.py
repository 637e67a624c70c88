"""Attacks by anybody: commands without a valid signature, and messages that are none."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from itertools import count
from typing import Final

from http_edge.clients.decentrl import Channel, Identity
from http_edge.crypto.encoding import b64encode
from tests.attacks.attack import JUNK_MB_A_DAY_MAX, Attack, Bounds
from tests.attacks.commands import signed
from tests.attacks.target import SOURCES, Target

_NO_SIGNATURE: Final = b64encode(bytes(64)).encode()
_ALLOWED_PER_S: Final = 2_000
"""The default of ``rates.per_address_per_s``."""
_KIB: Final = 1_024
_WITHOUT_AUDIT: Final = {"audit.refusals_period_s": "0"}
"""One row a minute, and bounded: a run of some seconds would make too much of it."""


def unsigned(sender_did: str, key_id: str, recipient_did: str, payload: str) -> Iterator[bytes]:
    """Commands with a signature of zeros and a nonce of their own; ``payload`` is JSON."""
    for _ in count():
        header = json.dumps(
            {
                "channel": "TWO_WAY_PRIVATE",
                "sender_did": sender_did,
                "sender_signing_key_id": key_id,
                "recipient_did": recipient_did,
                "timestamp": SOURCES.now_ms(),
                "nonce": SOURCES.new_nonce(),
            }
        )
        yield b'{"header":%b,"payload":%b,"signature":"%b"}' % (
            header.encode(),
            payload.encode(),
            _NO_SIGNATURE,
        )


def _by(stranger: Identity, payload: str) -> Iterator[bytes]:
    return unsigned(stranger.did, stranger.signing_key_id, stranger.did, payload)


def floats(size_bytes: int) -> str:
    """An array of numbers that are costly to write canonically, in about so many bytes."""
    numbers = (f"{number}.{number:07}e-7" for number in range(1, size_bytes))
    written: list[str] = []
    left = size_bytes
    for number in numbers:
        left -= len(number) + 1
        if left < 0:
            break
        written.append(number)
    return f"[{','.join(written)}]"


async def unsigned_floats(target: Target) -> AsyncIterator[None]:
    """Numbers whose canonical form is costly, under a signature of zeros."""
    bodies = _by(await target.stranger(), floats(63 * _KIB))
    yield
    await target.flood(60, bodies)


async def unsigned_megabytes(target: Target) -> AsyncIterator[None]:
    """Bodies as long as they may be, under a signature of zeros."""
    bodies = _by(await target.stranger(), floats(1_000 * _KIB))
    yield
    await target.flood(20, bodies)


async def deep_json(target: Target) -> AsyncIterator[None]:
    """Arrays within arrays, and very many members, under a signature of zeros."""
    stranger = await target.stranger()
    deep = _by(stranger, "[" * 30_000 + "]" * 30_000)
    wide = _by(stranger, json.dumps({f"{number:05}": 0 for number in range(5_000)}))
    yield
    await target.flood(60, (body for pair in zip(deep, wide, strict=True) for body in pair))


async def unsigned_junk(target: Target) -> AsyncIterator[None]:
    """Small commands under a signature of zeros, as many as one address may send."""
    bodies = _by(await target.stranger(), '"x"')
    yield
    await target.flood(_ALLOWED_PER_S, bodies)


async def nonces_of_another(target: Target) -> AsyncIterator[None]:
    """The same in the name of the honest sender, from two addresses."""
    did = target.options.known.sender_did
    bodies = unsigned(did, f"{did}#signing", did, '"x"')
    yield
    await target.flood(2 * _ALLOWED_PER_S, bodies)


async def signed_junk(target: Target) -> AsyncIterator[None]:
    """Signed commands of identities that are not registered, a new one each time."""
    mediator_did = (await (await target.client()).document()).did

    def bodies() -> Iterator[bytes]:
        while True:
            one = Identity.create("newcomer", mediator_did)
            yield signed(
                one, mediator_did, {"type": "QUERY_PENDING_EVENTS"}, Channel.DIRECT_AUTHENTICATED
            )

    yield
    await target.flood(500, bodies())


async def strangers_messages(target: Target) -> AsyncIterator[None]:
    """Signed messages of new identities to one that has no contract with them."""
    victim = await target.registered("victim")

    def bodies() -> Iterator[bytes]:
        while True:
            one = Identity.create("newcomer", victim.identity.mediator_did)
            yield signed(one, victim.identity.did, "x", Channel.TWO_WAY_PRIVATE)

    yield
    await target.flood(500, bodies())


async def preflights(target: Target) -> AsyncIterator[None]:
    """The document, health and preflights, as fast as one address may."""
    session = await target.session()
    yield
    paths = (("GET", "/"), ("GET", "/health"), ("OPTIONS", "/"), ("GET", "/invitation"))
    numbers = count()

    async def once() -> None:
        method, path = paths[next(numbers) % len(paths)]
        async with session.request(method, target.url + path, allow_redirects=False) as answer:
            await answer.read()
            target.answers[str(answer.status)] += 1

    await target.repeat(1_000, once)


async def web_dids(target: Target) -> AsyncIterator[None]:
    """Senders whose documents would have to be fetched, from this very machine."""

    def bodies() -> Iterator[bytes]:
        for number in count():
            did = f"did:web:localhost%3A{target.port}:{number}"
            yield next(unsigned(did, f"{did}#signing", did, '"x"'))

    yield
    await target.flood(200, bodies())


async def unsigned_sockets(target: Target) -> AsyncIterator[None]:
    """Sockets that say whose they are, under a signature of zeros."""
    session, stranger = await target.session(), await target.stranger()
    yield

    async def once() -> None:
        async with session.ws_connect(f"{target.url}/ws") as socket:
            await socket.send_json(
                {
                    "type": "AUTHENTICATE",
                    "did": stranger.did,
                    "signing_key_id": stranger.signing_key_id,
                    "timestamp": SOURCES.now_ms(),
                    "nonce": SOURCES.new_nonce(),
                    "signature": _NO_SIGNATURE.decode(),
                }
            )
            async for _ in socket:
                pass
            target.answers[f"closed {socket.close_code}"] += 1

    await target.repeat(100, once)


ATTACKS: Final = (
    Attack(
        name="unsigned-floats",
        about="63 KiB of floats under a signature of zeros",
        rate="60/s",
        program=unsigned_floats,
    ),
    Attack(
        name="unsigned-megabytes",
        about="1 MB of floats under a signature of zeros",
        rate="20/s",
        program=unsigned_megabytes,
    ),
    Attack(
        name="deep-json",
        about="30,000 arrays within one another, or 5,000 members, under a signature of zeros",
        rate="60/s",
        program=deep_json,
    ),
    Attack(
        name="unsigned-junk",
        about="small commands under a signature of zeros, at the allowed rate",
        rate="2,000/s",
        program=unsigned_junk,
        bounds=Bounds(log_mb_a_day_max=JUNK_MB_A_DAY_MAX),
    ),
    Attack(
        name="nonces-of-another",
        about="the same in the honest sender's name; the store of nonces is a 200th of the default",
        rate="4,000/s from 2 addresses",
        program=nonces_of_another,
        bounds=Bounds(log_mb_a_day_max=JUNK_MB_A_DAY_MAX),
        addresses=2,
        settings={"limits.nonces_per_shard_max": "10000"},
    ),
    Attack(
        name="signed-junk",
        about="signed commands of new identities that never registered",
        rate="500/s",
        program=signed_junk,
        bounds=Bounds(log_mb_a_day_max=JUNK_MB_A_DAY_MAX),
        settings=_WITHOUT_AUDIT,
    ),
    Attack(
        name="signed-knocks",
        about="signed messages of new identities to one without a contract with them",
        rate="500/s",
        program=strangers_messages,
        bounds=Bounds(log_mb_a_day_max=JUNK_MB_A_DAY_MAX),
        settings=_WITHOUT_AUDIT,
    ),
    Attack(
        name="web-dids",
        about="commands of senders whose documents would have to be fetched from localhost",
        rate="200/s",
        program=web_dids,
        settings={"did_web.enabled": "true"},
    ),
    Attack(
        name="unsigned-sockets",
        about="sockets that authenticate with a signature of zeros",
        rate="100/s",
        program=unsigned_sockets,
    ),
    Attack(
        name="small-reads",
        about="the DID document, health, preflights and invitations",
        rate="1,000/s",
        program=preflights,
    ),
)
