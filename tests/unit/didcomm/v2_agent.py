"""An agent of DIDComm v2 for tests: its DIDs, and messages of it to the mediator."""

from __future__ import annotations

from typing import Any

import orjson

from http_edge.didcomm.envelopes.agent_documents import (
    AgentDocument,
    read_agent_document,
    resolve_document,
)
from http_edge.didcomm.envelopes.key_agreement import PrivateKey, StaticSecrets
from http_edge.didcomm.envelopes.keys import KeyPair
from http_edge.didcomm.envelopes.messages import NEW_PREFIX
from http_edge.didcomm.envelopes.own_dids import OwnDid, OwnDids
from http_edge.didcomm.envelopes.v2.envelope import (
    Recipient,
    Sender,
    open_sealed,
    parsed,
    seal,
)

PING = NEW_PREFIX + "trust-ping/2.0/ping"


class V2Agent:
    """Writes and reads envelopes with one key pair, under whichever of its DIDs is named."""

    def __init__(self, key: KeyPair) -> None:
        self.dids = OwnDids(key)
        self.key = PrivateKey.of_x25519(key.curve_private)
        self.secrets = StaticSecrets()

    def named(self, did: str) -> OwnDid:
        own = self.dids.by_kid.get(did)
        assert own is not None
        return own

    def plaintext(self, sender: str | None, **members: Any) -> dict[str, Any]:
        head = {"id": "message-1", "type": PING, "body": {}}
        return {**head, **({} if sender is None else {"from": sender}), **members}

    def pack(
        self, message: object, to: Recipient, sender: str | None, *, kid: str | None = None
    ) -> bytes:
        """A message for one key; ``kid`` claims another id of the sender's key."""
        claimed = None if sender is None else (kid or self.named(sender).agreement_kid)
        packed_by = None if claimed is None else Sender(claimed, self.key, self.secrets)
        return seal(orjson.dumps(message), [to], packed_by)

    def open(self, body: bytes, mediator: AgentDocument) -> dict[str, Any]:
        """What the mediator answers."""
        sealed = parsed(orjson.loads(body))
        assert sealed is not None
        did, _, fragment = sealed.sender_kid.partition("#")
        assert did == mediator.did
        opened = open_sealed(sealed, 0, self.key, mediator.agreement[fragment], self.secrets)
        assert opened is not None
        message: dict[str, Any] = orjson.loads(opened)
        return message


def keys_of(own: OwnDids, did: str) -> AgentDocument:
    """The keys of one of the mediator's DIDs, as an agent finds them."""
    if did == own.web:
        return read_agent_document(did, own.merged({"id": did}))
    long = (
        own.peer4 if did == own.peer4_short else own.peer2 if did.startswith("did:peer:3") else did
    )
    found = resolve_document(long)
    assert found is not None
    return AgentDocument(did, found.short, found.authentication, found.agreement)


def recipient(own: OwnDids, did: str, *, kid: str | None = None) -> Recipient:
    """The mediator as the recipient of a message, under one of its DIDs."""
    keys = keys_of(own, did)
    fragment = next(iter(keys.agreement))
    return Recipient(f"{did}#{fragment}" if kid is None else kid, keys.agreement[fragment])
