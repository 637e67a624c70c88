"""Envelopes of DIDComm v2: those here against those of other libraries, and of DIDComm v1.

A message of 1 KiB is packed for one X25519 key and opened again, in one process, the libraries in
turns, so that whatever else the machine does hits them alike. Askar and joserfc do the encryption
alone: what is opened here is read strictly and its sender resolved besides, which is measured too.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Mapping

import msgspec
from aries_askar import Key

from http_edge.cli.output import ProgressBar
from http_edge.crypto.encoding import b64encode
from http_edge.crypto.strict_json import parse
from http_edge.didcomm.envelopes.key_agreement import PrivateKey, StaticSecrets
from http_edge.didcomm.envelopes.keys import KeyPair
from http_edge.didcomm.envelopes.messages import Json, Unpacked
from http_edge.didcomm.envelopes.own_dids import OwnDids
from http_edge.didcomm.envelopes.public_keys import Curve, write_jwk
from http_edge.didcomm.envelopes.v1 import envelope as v1
from http_edge.didcomm.envelopes.v2.envelope import (
    Recipient,
    Sealed,
    Sender,
    open_sealed,
    parsed,
    seal,
)
from http_edge.didcomm.envelopes.versions import Envelopes
from tests.bench.report import Measurement, Report, report
from tests.unit.didcomm.askar_jwe import Named, jwe, open_jwe
from tests.unit.didcomm.joserfc_jwe import jose_key, jose_open, jose_pack
from tests.unit.didcomm.v2_agent import V2Agent, recipient

_ROUND = 50
"""Envelopes of one library before the next has its turn."""


class EnvelopePlan(msgspec.Struct, frozen=True):
    """What is measured: rounds in which each library has its turn, and the size of a message."""

    rounds: int
    message_bytes: int = 1024


def plan(*, quick: bool) -> EnvelopePlan:
    """A whole measurement, or a twentieth of it."""
    return EnvelopePlan(5 if quick else 100)


async def run(wanted: EnvelopePlan, bar: ProgressBar) -> Report:
    """Carry a plan out: nanoseconds of each library for packing and opening."""
    message = secrets.token_hex(wanted.message_bytes // 2).encode()
    spent: dict[str, list[int]] = {}
    works = _works(message)
    done = bar("envelopes", wanted.rounds)
    for number in range(wanted.rounds):
        for name, work in works.items():
            started_ns = time.perf_counter_ns()
            for _ in range(_ROUND):
                assert work() == message
            spent.setdefault(name, []).append(time.perf_counter_ns() - started_ns)
        done(number + 1)
    return report(wanted, [_measurement(name, spent, "here") for name in works])


def _measurement(name: str, spent: Mapping[str, list[int]], own: str) -> Measurement:
    """The median round of one library, and the median of its ratios to ours, round by round."""
    rounds = spent[name]
    count = len(rounds) * _ROUND
    ours = spent.get(f"{name.partition(' ')[0]} {own}", rounds)
    ratios = sorted(theirs / one for theirs, one in zip(rounds, ours, strict=True))
    median_ns = sorted(rounds)[len(rounds) // 2] / _ROUND
    return Measurement(
        name=name,
        count=count,
        seconds=sum(rounds) / 1e9,
        per_s=1e9 / median_ns,
        figures={"us each": median_ns / 1e3, "times ours": ratios[len(ratios) // 2]},
    )


def _works(message: bytes) -> Mapping[str, Callable[[], bytes | None]]:
    """Pack and open one message, by the name of what does it."""
    alice, bob = PrivateKey.new(Curve.X25519), PrivateKey.new(Curve.X25519)
    known = StaticSecrets()
    askar = Named("did:a#1", _askar(alice)), Named("did:b#1", _askar(bob))
    jose = jose_key(_jwk(alice)), jose_key(_jwk(bob))

    def ours(memory: StaticSecrets | None, *, authcrypt: bool) -> bytes | None:
        sender = Sender("did:a#1", alice, memory or StaticSecrets(1)) if authcrypt else None
        body = seal(message, [Recipient("did:b#1", bob.public)], sender)
        kept = memory or StaticSecrets(1)
        public = alice.public if authcrypt else None
        return open_sealed(_parsed(body), 0, bob, public, kept)

    def by_askar(*, authcrypt: bool) -> bytes:
        body = jwe(message, [askar[1]], askar[0] if authcrypt else None)
        return open_jwe(body, askar[1], askar[0].key if authcrypt else None)

    def by_joserfc(*, authcrypt: bool) -> bytes:
        sender = ("did:a#1", jose[0]) if authcrypt else None
        body = jose_pack(message, [("did:b#1", jose[1])], sender)
        return jose_open(body, jose[1], jose[0] if authcrypt else None)

    return {
        "authcrypt here": lambda: ours(known, authcrypt=True),
        "authcrypt here, each a first message": lambda: ours(None, authcrypt=True),
        "authcrypt askar": lambda: by_askar(authcrypt=True),
        "authcrypt joserfc": lambda: by_joserfc(authcrypt=True),
        "anoncrypt here": lambda: ours(known, authcrypt=False),
        "anoncrypt askar": lambda: by_askar(authcrypt=False),
        "anoncrypt joserfc": lambda: by_joserfc(authcrypt=False),
        **_whole(message),
    }


def _whole(message: bytes) -> Mapping[str, Callable[[], bytes | None]]:
    """The same with everything that the mediator does to open one, in both versions."""
    mediator, agent = KeyPair.new(), KeyPair.new()
    own_dids = OwnDids(mediator)
    envelopes, alice = Envelopes(own_dids), V2Agent(agent)
    did = alice.dids.peer4
    to = recipient(own_dids, own_dids.peer2)
    plain = alice.plaintext(did, body={"text": message.decode()})

    def v2() -> bytes:
        found = envelopes.unpack(alice.pack(plain, to, did))
        assert isinstance(found, Unpacked)
        assert found.sender is not None
        assert envelopes.of(found.version).read(found) is not None
        return message

    def version_1() -> bytes:
        text = b'{"@type":"https://didcomm.org/trust_ping/1.0/ping","@id":"1","text":"%b"}'
        found = envelopes.unpack(v1.pack(text % message, [mediator.public], agent))
        assert isinstance(found, Unpacked)
        assert envelopes.of(found.version).read(found) is not None
        return message

    return {"with sender, read, v2": v2, "with sender, read, v1": version_1}


def _parsed(body: bytes) -> Sealed:
    value = parse(body)
    assert isinstance(value, dict)
    sealed = parsed(value)
    assert sealed is not None
    return sealed


def _askar(key: PrivateKey) -> Key:
    return Key.from_jwk(json.dumps(_jwk(key)))


def _jwk(key: PrivateKey) -> Json:
    return {**write_jwk(key.public), "d": b64encode(key.secret)}
