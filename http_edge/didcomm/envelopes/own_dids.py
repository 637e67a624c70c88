"""The mediator's own DIDComm v2 DIDs: several DIDs of one key pair.

Peers differ in the DID methods that they resolve, so the same keys have a did:key, a did:peer:2, a
did:peer:4 and, if one is given, a did:web. The mediator answers an agent under the DID that it
used. The key agreement key is the X25519 image of the signing key: agents that map both to one
curve see one key, and wrap a forward once. There is no key of another curve, so no agent has to
choose.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Final

import msgspec

from http_edge.crypto.encoding import ED25519_PREFIX, X25519_PREFIX, multibase_encode
from http_edge.didcomm.envelopes.key_agreement import PrivateKey
from http_edge.didcomm.envelopes.keys import DID_KEY, KeyPair, did_key
from http_edge.didcomm.envelopes.messages import Json
from http_edge.didcomm.envelopes.peer_dids import PEER_2, encode_peer2, encode_peer4, peer4_short
from http_edge.didcomm.envelopes.recipient_names import canonical_name, x25519_name

PROFILE: Final = "didcomm/v2"
"""The profile that our services and invitations accept."""
_SIGNING: Final = "#key-1"
_AGREEMENT: Final = "#key-2"
"""Relative ids, the same in all our documents; the did:peer:2 specification prescribes the form."""
_DOCUMENT_CONTEXT: Final = (
    "https://www.w3.org/ns/did/v1",
    "https://w3id.org/security/multikey/v1",
)


class OwnDid(msgspec.Struct, frozen=True):
    """One DID of ours as it is written, and the ids of its two keys as DID URLs.

    ``agreement`` is the private key that opens envelopes for this DID.
    """

    did: str
    signing_kid: str
    agreement_kid: str
    agreement: PrivateKey


class OwnDids:
    """The DIDs of one key pair, and a table of all ids of its agreement key."""

    def __init__(
        self,
        key: KeyPair,
        services: Sequence[Json] = (),
        *,
        web_did: str = "",
        other_keys: Mapping[str, PrivateKey] | None = None,
        former_services: Iterable[Sequence[Json]] = (),
    ) -> None:
        """Make the DIDs of ``key``; their documents have ``services`` (``own_services``).

        ``web_did`` is a DID whose document another module serves (``merged``), or empty.
        ``other_keys`` are the other key agreement keys in that document, by fragment: a sender may
        use any of them. Peers may still know the key by DIDs with ``former_services``: these are
        ours, too, and are granted to no agent.
        """
        self.key = key
        self.agreement = PrivateKey.of_x25519(key.curve_private)
        self._other_keys = other_keys if other_keys and web_did else {}
        self._services = services
        self.did_key = did_key(key.public)
        self.x25519 = x25519_name(key.curve_public)
        """The key agreement key as a did:key of its own."""
        bare = [{name: part for name, part in each.items() if name != "id"} for each in services]
        self.peer2 = encode_peer2([key.public], bare, agreement_keys=[key.curve_public])
        self.peer4 = encode_peer4(self._document())
        self.peer4_short = peer4_short(self.peer4)
        self.web = web_did
        self._former = [OwnDids(key, each) for each in former_services]

    @cached_property
    def by_kid(self) -> Mapping[str, OwnDid]:
        """Our DIDs by their own spelling and by the id of an agreement key, in every one in use.

        A DID without a fragment stands for its only agreement key.
        """
        ids: dict[str, OwnDid] = {}
        for own in self._all:
            for fragment in self._fragments(own.did):
                ids[own.did + fragment] = own
        for fragment, key in self._other_keys.items():
            ids[f"{self.web}#{fragment}"] = msgspec.structs.replace(ids[self.web], agreement=key)
        return ids

    @cached_property
    def names(self) -> frozenset[str]:
        """The names by which a forward may address this mediator (``recipient_names``)."""
        found = (canonical_name(own.did) for own in self._all)
        return frozenset(name for name in found if name is not None)

    def routing(self, did: str) -> str:
        """Return the DID to grant to an agent that knows us by ``did``, empty for none.

        A hash is granted as the DID that it is of: the agent's senders have not seen that one. In
        place of a DID with former services the agent is granted the one with the present ones.
        """
        return self._granted.get(did, did or self.did_key)

    def merged(self, document: Json) -> Json:
        """Return the document of ``web`` with the DIDComm keys and services appended.

        Existing entries stay first, because readers take the first key of a kind.
        """
        did = str(document.get("id", self.web))
        methods = self._methods(did)
        added: dict[str, Sequence[object]] = {
            "verificationMethod": methods,
            "authentication": [did + _SIGNING],
            "keyAgreement": [did + _AGREEMENT],
            "service": list(self._services),
        }
        whole = dict(document)
        for name, items in added.items():
            there = document.get(name)
            whole[name] = [*(there if isinstance(there, list) else []), *items]
        return whole

    @cached_property
    def _granted(self) -> Mapping[str | None, str]:
        granted = dict[str | None, str]()
        for own in (self, *self._former):
            granted |= dict.fromkeys((own.peer4, own.peer4_short), self.peer4)
            granted |= dict.fromkeys((own.peer2, canonical_name(own.peer2)), self.peer2)
        return granted

    @cached_property
    def _all(self) -> Sequence[OwnDid]:
        key = self.agreement
        signing, agreement = self.did_key.split(":")[2], self.x25519.split(":")[2]
        own = [
            OwnDid(self.did_key, f"{self.did_key}#{signing}", f"{self.did_key}#{agreement}", key),
            # An X25519 key cannot sign; the did:key of the signing key does.
            OwnDid(self.x25519, f"{self.did_key}#{signing}", f"{self.x25519}#{agreement}", key),
        ]
        dids = [self.web]
        for one in (self, *self._former):
            dids += [one.peer2, one.peer4, one.peer4_short, canonical_name(one.peer2) or ""]
        return own + [OwnDid(did, did + _SIGNING, did + _AGREEMENT, key) for did in dids if did]

    def _fragments(self, did: str) -> Sequence[str]:
        """Return the fragments in use for the agreement key of one of our DIDs."""
        image = self.x25519.split(":")[2]
        if did.startswith(DID_KEY):
            return ["", f"#{image}", f"#{did.split(':')[2]}"]
        older = [f"#{image}", f"#{image[1:]}"] if did.startswith(PEER_2) else []
        return ["", _AGREEMENT, *older]

    def _document(self) -> Json:
        """Return the DID document with relative ids, without an ``id`` of its own."""
        return {
            "@context": list(_DOCUMENT_CONTEXT),
            "verificationMethod": self._methods(""),
            "authentication": [_SIGNING],
            "keyAgreement": [_AGREEMENT],
            "service": list(self._services),
        }

    def _methods(self, did: str) -> list[Json]:
        keys = [
            (_SIGNING, multibase_encode(ED25519_PREFIX, self.key.public)),
            (_AGREEMENT, multibase_encode(X25519_PREFIX, self.key.curve_public)),
        ]
        controller: Json = {"controller": did} if did else {}
        return [
            {"id": did + key_id, "type": "Multikey", **controller, "publicKeyMultibase": text}
            for key_id, text in keys
        ]


def own_endpoints(url: str) -> tuple[str, str]:
    """Return the mediator's endpoints at one http(s) URL: HTTP first, then WebSocket.

    Some agents read only the first, and ACA-Py takes the first that it can send to.
    """
    return url, "ws" + url.removeprefix("http")


def own_services(url: str) -> Sequence[Json]:
    """Return a mediator's services at one http(s) URL, over HTTP and WebSocket."""
    return [
        {
            "id": f"#didcomm-{scheme}",
            "type": "DIDCommMessaging",
            "serviceEndpoint": {"uri": endpoint, "accept": [PROFILE], "routingKeys": []},
        }
        for scheme, endpoint in zip(("http", "ws"), own_endpoints(url), strict=True)
    ]
