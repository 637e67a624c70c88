"""DIDs that say their own document, and what DIDComm v2 takes from a document: keys and services.

Nothing is fetched: an envelope of a stranger must not make this server ask others. did:key,
did:peer:0, did:peer:2 and the long form of did:peer:4 say their document themselves. A did:peer:3
and the short form of a did:peer:4 are the hash of one that was seen before. did:web and did:webvh
are names that prove nothing, unless what was fetched elsewhere is handed in.

Keys go by the fragment of their id, because agents write an id with the DID and without, with the
long form of a DID and with the short one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, islice
from threading import Lock
from typing import Final, TypeAlias

import msgspec
from cachetools import LRUCache

from http_edge.didcomm.envelopes.documents import is_url
from http_edge.didcomm.envelopes.keys import curve_public, did_key, read_key
from http_edge.didcomm.envelopes.messages import Json
from http_edge.didcomm.envelopes.peer_dids import (
    DID_CHARS_MAX,
    PEER_0,
    PEER_2,
    PEER_4,
    peer2_document,
    peer4_document,
    peer4_short,
)
from http_edge.didcomm.envelopes.public_keys import (
    Curve,
    PublicKey,
    read_method,
    read_multibase,
    write_multibase,
)
from http_edge.didcomm.envelopes.recipient_names import canonical_name
from http_edge.dids.document import Fetch

METHODS_MAX: Final = 64
"""Keys of one document that are looked at; those of a did:peer:2 count threefold."""
KEYS_MAX: Final = 12
"""Different keys that are taken from one document, and methods without a key that are passed over;
what follows is missing. A stranger's envelope may name any DID, and a point of a NIST curve takes
0.2 ms to check, also one that is not on it. Agents list two to nine."""
SERVICES_MAX: Final = 16
"""Services, and endpoints of one service, that are looked at."""
ROUTING_KEYS_MAX: Final = 8
"""Each is one more envelope around every message; a service with more is not used."""
ENDPOINT_CHARS_MAX: Final = 2048
_DID_KEY: Final = "did:key:"
_REMEMBERED_MAX: Final = 2048
"""DIDs whose keys are remembered, 12 KiB each at most and most of them 2 KiB."""
_SEEN_MAX: Final = 8192
"""Agents whose short DID is known here, some 2 KiB each."""
_SHORT: Final = ("did:peer:3", PEER_4)
FETCHED: Final = ("did:web:", "did:webvh:")
"""Begins a DID whose document only the network has."""
_RELATIONS: Final = ("verificationMethod", "authentication", "keyAgreement")
_MESSAGING: Final = "DIDCommMessaging"


class MessagingService(msgspec.Struct, frozen=True):
    """Where a DIDComm v2 agent takes messages (``DIDCommMessaging``).

    ``uri`` is as written: a URL, a DID, or empty. ``routing_keys`` are DIDs or ids of their keys,
    from the agent outwards.
    """

    uri: str
    routing_keys: Sequence[str] = ()


class AgentDocument(msgspec.Struct, frozen=True):
    """What a DID's document says: its keys by the fragment of their id, and its services.

    ``authentication`` are the keys that sign for it, ``agreement`` those that it is sent to, in the
    order of the document. ``short`` is the DID in its short form.
    """

    did: str
    short: str
    authentication: Mapping[str, PublicKey]
    agreement: Mapping[str, PublicKey]
    services: Sequence[MessagingService] = ()

    def signing_twin(self, key: PublicKey) -> bytes | None:
        """The Ed25519 key that signs for this DID and maps to the X25519 key ``key``, if any."""
        if key.curve is not Curve.X25519:
            return None
        signing = (one.raw for one in self.authentication.values() if one.curve is Curve.ED25519)
        return next((raw for raw in signing if curve_public(raw) == key.raw), None)


def own_document(did: str) -> Json | None:
    """The DID document that a DID carries in itself, with relative ids; None if it carries none."""
    if len(did) > DID_CHARS_MAX:
        return None
    if did.startswith(_DID_KEY):
        return _key_document(did, did.removeprefix(_DID_KEY))
    if did.startswith(PEER_0):
        return _key_document(did, did.removeprefix(PEER_0))
    if did.startswith(PEER_2):
        return peer2_document(did)
    return peer4_document(did) if did.startswith(PEER_4) else None


Fetched: TypeAlias = Callable[[str], AgentDocument | Fetch | None]
"""What was fetched of a DID; ``Fetch.NEEDED`` where that is still to be done. Threads ask it."""


@lru_cache(_REMEMBERED_MAX)
def resolve_document(did: str) -> AgentDocument | None:
    """The keys of a DID that carries its document, or None."""
    document = own_document(did)
    return None if document is None else read_agent_document(did, document)


class SeenDids:
    """Resolves DIDs: those that carry their document, and the short forms of those seen before.

    A bounded memory of the agents that have proven themselves. Threads may share it.
    """

    def __init__(self, dids_max: int = _SEEN_MAX, fetched: Fetched | None = None) -> None:
        """No DID seen yet, and never more than so many; ``fetched`` where that is permitted."""
        self._seen: LRUCache[str, AgentDocument] = LRUCache(dids_max)
        self._lock = Lock()
        self._fetched = fetched

    def resolve(self, did: str) -> AgentDocument | None:
        """The keys of a DID, or None where it is not known without asking others."""
        if did.startswith(FETCHED):
            found = None if self._fetched is None else self._fetched(did)
            return None if isinstance(found, Fetch) else found
        if not is_short(did):
            return resolve_document(did) if len(did) <= DID_CHARS_MAX else None
        with self._lock:
            return self._seen.get(did)

    def is_to_learn(self, did: str) -> bool:
        """Is it unknown, and others can be asked: who stored a DID of this hash, or its host?"""
        if did.startswith(FETCHED):
            return self._fetched is not None and self._fetched(did) is Fetch.NEEDED
        return is_short(did) and canonical_name(did) == did and self.resolve(did) is None

    def service_of(self, did: str) -> MessagingService | None:
        """Where an agent takes messages: its first service with a URL, or None.

        An endpoint that is a DID is that of a mediator: its keys come before the routing keys, and
        its own service says where it is. One such step is taken and no more.
        """
        document = self.resolve(did)
        services = () if document is None else document.services
        return next((found for each in services if (found := self._reached(each))), None)

    def mediator_to_learn(self, did: str) -> str:
        """The DID of a mediator that has to be learned before the agent is reached; or empty."""
        document = self.resolve(did)
        for service in () if document is None else document.services:
            if self._reached(service) is not None:
                return ""
            if service.uri.startswith(FETCHED) and self.is_to_learn(service.uri):
                return service.uri
        return ""

    def _reached(self, service: MessagingService) -> MessagingService | None:
        if is_url(service.uri):
            return service
        mediator = self.resolve(service.uri)
        if mediator is None:
            return None
        urls = (each.uri for each in mediator.services if is_url(each.uri))
        uri, keys = next(urls, ""), [service.uri, *service.routing_keys]
        return MessagingService(uri, keys) if uri else None

    def remember(self, keys: AgentDocument) -> None:
        """Keep the keys of a DID that has a short form, for who calls it by that."""
        if keys.short != keys.did and keys.short.startswith(_SHORT):
            with self._lock:
                self._seen[keys.short] = keys


def account_did(did: str) -> str:
    """The DID of the identity of an agent by its own DID: the short form of it."""
    name = canonical_name(did)
    key = None if name is None else read_key(name)
    return did_key(key) if key is not None else name or did


def is_short(did: str) -> bool:
    """Is a DID the hash of one that carries its document?"""
    return did.startswith(_SHORT) and ":" not in did[len(PEER_4) :]


def read_agent_document(did: str, document: Json) -> AgentDocument:
    """The keys in a document of ``did``; those that cannot be read or are another's are missing."""
    listed = chain.from_iterable(_list(document.get(name)) for name in _RELATIONS)
    methods: dict[str, PublicKey] = {}
    unread = 0
    for method in islice(listed, METHODS_MAX):
        fragment = _own_fragment(did, method.get("id")) if isinstance(method, dict) else None
        key = read_method(method) if isinstance(method, dict) and fragment is not None else None
        if fragment is not None and key is not None:
            methods.setdefault(fragment, key)
        unread += key is None
        if len(set(methods.values())) >= KEYS_MAX or unread >= KEYS_MAX:
            break
    # A key of Ed25519 only signs, whatever a document says of it: nothing is agreed on with one.
    agreeing = {name: key for name, key in methods.items() if key.curve is not Curve.ED25519}
    return AgentDocument(
        did,
        account_did(did),
        _related(did, methods, document.get("authentication")),
        _related(did, agreeing, document.get("keyAgreement")),
        messaging_services(document),
    )


def messaging_services(document: Json) -> Sequence[MessagingService]:
    """The services of DIDComm v2 in a document, in its order, in all spellings that are in use.

    An endpoint is an object, a list of such (DIDComm 2.0), or a text with ``routingKeys`` beside it
    (older libraries).
    """
    return list(islice(_services(document), SERVICES_MAX))


def _services(document: Json) -> Iterator[MessagingService]:
    for service in islice(_list(document.get("service")), SERVICES_MAX):
        if not isinstance(service, dict) or service.get("type") != _MESSAGING:
            continue
        endpoint = service.get("serviceEndpoint")
        for each in endpoint[:SERVICES_MAX] if isinstance(endpoint, list) else [endpoint]:
            beside = each if isinstance(each, dict) else {}
            uri = beside.get("uri", beside.get("s")) if isinstance(each, dict) else each
            keys = _routing_keys(beside.get("routingKeys") or service.get("routingKeys"))
            text = uri if isinstance(uri, str) and len(uri) <= ENDPOINT_CHARS_MAX else ""
            if keys is not None:
                yield MessagingService(text, keys)


def _key_document(did: str, multibase: str) -> Json | None:
    """The document of a did:key (W3C did:key 1.0, "Document Creation Algorithm")."""
    key = read_multibase(multibase)
    if key is None:
        return None
    own = {"id": f"#{multibase}", "type": "Multikey", "publicKeyMultibase": multibase}
    agreement = own
    if key.curve is Curve.ED25519:
        image = curve_public(key.raw)
        if image is None:
            return None
        text = write_multibase(PublicKey(Curve.X25519, image))
        agreement = {"id": f"#{text}", "type": "Multikey", "publicKeyMultibase": text}
    signs = [] if key.curve is Curve.X25519 else [own]
    return {"id": did, "authentication": signs, "keyAgreement": [agreement]}


def _related(did: str, methods: Mapping[str, PublicKey], listed: object) -> Mapping[str, PublicKey]:
    """The methods of one relation, under every id that the same key has in the document."""
    named = [
        fragment
        for entry in islice(_list(listed), METHODS_MAX)
        if (fragment := _own_fragment(did, entry.get("id") if isinstance(entry, dict) else entry))
    ]
    keys = [methods[fragment] for fragment in named if fragment in methods]
    first = {fragment: methods[fragment] for fragment in named if fragment in methods}
    return first | {fragment: key for fragment, key in methods.items() if key in keys}


def _own_fragment(did: str, reference: object) -> str | None:
    """The fragment of an id in a document; None where the id is another DID's."""
    if not isinstance(reference, str):
        return None
    subject, _, fragment = reference.partition("#")
    is_own = not subject or subject == did or peer4_short(subject) == peer4_short(did)
    return fragment if fragment and is_own else None


def _routing_keys(value: object) -> list[str] | None:
    """DIDs or ids of keys; empty for what is missing, None for what cannot be used."""
    items = [] if value is None else value
    if not isinstance(items, list) or len(items) > ROUTING_KEYS_MAX:
        return None
    # A fetched document may be long, and an account keeps what stands here.
    are_right = all(isinstance(item, str) and len(item) <= DID_CHARS_MAX for item in items)
    return items if are_right else None


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []
