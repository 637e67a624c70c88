"""A wallet of DIDComm v2 that says what it should not, to a mediator that knows it."""

from __future__ import annotations

import json
import random
from typing import Final

import orjson

from http_edge.clients.didcomm.connection import Connection2, agreement_key
from http_edge.crypto.encoding import b64decode, b64encode
from http_edge.didcomm.envelopes.keys import KeyPair
from http_edge.didcomm.envelopes.messages import NEW_PREFIX, DidRotation, Json
from http_edge.didcomm.envelopes.own_dids import OwnDids
from http_edge.didcomm.envelopes.v2 import envelope, signed
from http_edge.didcomm.envelopes.v2.signed import write_from_prior
from tests.attacks.changes import ODD, changed, written
from tests.edge.didcomm.test_newer_bad_input import HEADERS, KINDS, MEMBERS

_RECIPIENTS: Final = (2, 16, 64, 200)
"""Some envelopes have more than they may have."""


class NewerAgent:
    """Makes messages, envelopes and forwards; some hold, most are broken somewhere."""

    def __init__(self, connection: Connection2, recipient_did: str) -> None:
        """``recipient_did`` is a DID that the wallet has registered."""
        self._connection = connection
        self._recipient_did = recipient_did
        self._mediator = envelope.Recipient(*agreement_key(connection.mediator_did))

    def packed(self, chance: random.Random) -> bytes:
        """A message for the mediator whose parts are odd."""
        message: Json = {
            "id": f"message-{chance.randrange(10**9)}",
            "type": NEW_PREFIX + chance.choice(KINDS),
            "from": self._connection.did,
            "to": [self._connection.mediator_did],
            "body": {name: chance.choice(ODD) for name in chance.sample(MEMBERS, 2)},
            **{name: chance.choice(ODD) for name in chance.sample(HEADERS, 2)},
        }
        if chance.random() < 0.2:
            message["from_prior"] = self._from_prior(chance)
        if chance.random() < 0.6:
            message = changed(chance, message)
        return self._sealed(chance, written(chance, message))

    def _sealed(self, chance: random.Random, plain: bytes) -> bytes:
        """In an envelope: mostly one that proves its sender, or anonymous, signed or not."""
        match chance.randrange(6):
            case 0:
                return self._anonymous(plain)
            case 1:
                by = signed.write_signed(plain, *self._signing_key())
                return self._anonymous(written(chance, changed(chance, by)))
            case 2:
                by = signed.write_signed(plain, *self._signing_key())
                return self._connection.packed(orjson.dumps(by))
            case _:
                return self._connection.packed(plain)

    def _anonymous(self, plain: bytes) -> bytes:
        return envelope.seal(plain, [self._mediator], None)

    def _signing_key(self) -> tuple[str, KeyPair]:
        own = self._connection.own.by_kid.get(self._connection.did)
        assert own is not None
        return own.signing_kid, self._connection.key

    def _from_prior(self, chance: random.Random) -> str:
        """A rotation to this wallet of a DID that is unknown here; mostly it does not hold."""
        prior = OwnDids(KeyPair.new())
        at_s = chance.choice([0, 1, 4_000_000_000])
        rotation = DidRotation(prior.peer4, self._connection.did, at_s, [])
        text = write_from_prior(rotation, f"{prior.peer4}#key-1", prior.key)
        head, claims, signature = text.split(".")
        match chance.randrange(4):
            case 0:
                return text
            case 1:
                odd = changed(chance, json.loads(b64decode(head)))
                return f"{b64encode(written(chance, odd))}.{claims}.{signature}"
            case 2:
                odd = changed(chance, json.loads(b64decode(claims)))
                return f"{head}.{b64encode(written(chance, odd))}.{signature}"
            case _:
                return text[: chance.randrange(len(text))]

    def broken_envelope(self, chance: random.Random) -> bytes:
        """An envelope whose head or members are not what they were."""
        found = orjson.loads(self.packed(chance))
        match chance.randrange(3):
            case 0:
                header = json.loads(b64decode(found["protected"]))
                found["protected"] = b64encode(written(chance, changed(chance, header)))
                return orjson.dumps(found)
            case 1:
                found["recipients"] *= chance.choice(_RECIPIENTS)
                return orjson.dumps(found)
            case _:
                return written(chance, changed(chance, found))

    def forward(self, chance: random.Random) -> bytes:
        """A forward for the wallet's DID, or for what is none, with odd attachments."""
        inner = orjson.loads(self._anonymous(b"{}"))
        attached = [
            {"data": {"json": inner}},
            {"data": {"base64": b64encode(orjson.dumps(inner))}},
            {"data": {"links": ["http://127.0.0.1/"], "hash": "x"}},
        ]
        message: Json = {
            "id": f"forward-{chance.randrange(10**9)}",
            "type": f"{NEW_PREFIX}routing/2.0/forward",
            "to": [self._connection.mediator_did],
            "expires_time": chance.choice([0, 4_000_000_000, *ODD]),
            "body": {"next": chance.choice([self._recipient_did, "did:key:z6Mk", *ODD])},
            "attachments": [chance.choice(attached) for _ in range(chance.randrange(1, 5))],
        }
        return self._anonymous(written(chance, changed(chance, message)))
