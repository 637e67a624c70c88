"""Resolution of DIDs, and what DIDComm v2 takes from a DID document: keys and services.

Nothing is fetched here: a stranger's envelope must not make this server ask others. did:key,
did:peer:0, did:peer:2 and the long form of did:peer:4 contain their document. A did:peer:3 and the
short form of a did:peer:4 are hashes; they resolve if the hashed DID was seen before. did:web and
did:webvh resolve only if a document that another module fetched is passed in.

Keys are indexed by the fragment of their id, because agents write an id with or without the DID,
and with the DID's long or short form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, islice
from threading import Lock
from typing import Final, TypeAlias

import msgspec
from cachetools import LRUCache

from http_edge.didcomm.envelopes.keys import DID_KEY, curve_public, did_key, read_key
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
from http_edge.didcomm.envelopes.peer_documents import (
    ENDPOINT_CHARS_MAX,
    METHODS_MAX,
    ROUTING_KEYS_MAX,
    SERVICES_MAX,
    as_list,
    has_type,
    is_url,
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

KEYS_MAX: Final = 12
"""Different keys that are taken from one document, and unreadable methods that are skipped; the
rest of the document's keys are left out. A stranger's envelope may name any DID, and checking an
uncompressed point takes 30 us, even if it is not on the curve. Agents list two to nine."""
SERVICES_CHARS_MAX: Final = 16_384
"""Characters of the services that are taken from one document. A fetched document may be much
larger, and a stranger can have thousands of them cached."""
FRAGMENT_CHARS_MAX: Final = 128
"""Longest fragment in the id of a key; that of a key of P-521 has 96 characters."""
_REMEMBERED_MAX: Final = 2048
"""DIDs with remembered documents, most of them 2 KiB each."""
_REMEMBERED_CHARS_MAX: Final = 768
"""A did:peer:2 that names the DID of its mediator has some 600 characters."""
_SEEN_MAX: Final = 8192
"""Agents with a known short DID, some 2 KiB each."""
_SHORT: Final = ("did:peer:3", PEER_4)
FETCHED: Final = ("did:web:", "did:webvh:")
"""Prefixes of DIDs whose document must be fetched from the web."""
_RELATIONS: Final = ("verificationMethod", "authentication", "keyAgreement")
_MESSAGING: Final = "DIDCommMessaging"


class MessagingService(msgspec.Struct, frozen=True):
    """The service through which a DIDComm v2 agent receives messages (``DIDCommMessaging``).

    ``uri`` is as written: a URL, a DID, or empty. ``routing_keys`` are DIDs or ids of DIDs' keys,
    in the order of the document, from the outside inwards.
    """

    uri: str
    routing_keys: Sequence[str] = ()


class AgentDocument(msgspec.Struct, frozen=True):
    """A DID's document: its keys by the fragment of their id, and its services.

    ``authentication`` are the keys that sign for the DID; ``agreement`` are the keys to which
    messages for it are encrypted, in the order of the document. ``short`` is the DID's short form.
    """

    did: str
    short: str
    authentication: Mapping[str, PublicKey]
    agreement: Mapping[str, PublicKey]
    services: Sequence[MessagingService] = ()

    def signing_twin(self, key: PublicKey) -> bytes | None:
        """Return the Ed25519 key that signs for this DID and maps to the X25519 ``key``, if any."""
        if key.curve is not Curve.X25519:
            return None
        signing = (one.raw for one in self.authentication.values() if one.curve is Curve.ED25519)
        return next((raw for raw in signing if curve_public(raw) == key.raw), None)

    def preferred_agreement(self) -> str | None:
        """Return the fragment of the key to encrypt to: X25519 if there is one, else the first."""
        of_25519 = (name for name, key in self.agreement.items() if key.curve is Curve.X25519)
        return next(of_25519, next(iter(self.agreement), None))


def own_document(did: str) -> Json | None:
    """Return the DID document that a DID contains, with relative ids; None if it contains none."""
    if did.startswith(DID_KEY):
        return _key_document(did, did.removeprefix(DID_KEY))
    if did.startswith(PEER_0):
        return _key_document(did, did.removeprefix(PEER_0))
    if did.startswith(PEER_2):
        return peer2_document(did)
    return peer4_document(did) if did.startswith(PEER_4) else None


Fetched: TypeAlias = Callable[[str], AgentDocument | Fetch | None]
"""Returns a DID's fetched document, or what keeps it from being known. Called in threads."""


def is_remembered(text: str) -> bool:
    """Say whether what follows from a DID or a key id is cached.

    Not from a long one, nor from one that is not ASCII and so no DID: a stranger can make up any
    number of them.
    """
    return len(text) <= _REMEMBERED_CHARS_MAX and text.isascii()


def resolve_document(did: str) -> AgentDocument | None:
    """Return the document that a DID contains, or None."""
    return (_remembered_document if is_remembered(did) else _document)(did)


def _document(did: str) -> AgentDocument | None:
    document = own_document(did)
    return None if document is None else read_agent_document(did, document)


_remembered_document: Final = lru_cache(_REMEMBERED_MAX)(_document)


class SeenDids:
    """Resolves DIDs that contain their document, and the short forms of DIDs seen before.

    Remembers a bounded number of agents that have proven themselves. Threads may share it.
    """

    def __init__(self, dids_max: int = _SEEN_MAX, fetched: Fetched | None = None) -> None:
        """Remember at most ``dids_max`` DIDs; ``fetched`` is None if fetching is not permitted."""
        self._seen: LRUCache[str, AgentDocument] = LRUCache(dids_max)
        self._lock = Lock()
        self._fetched = fetched

    def resolve(self, did: str) -> AgentDocument | None:
        """Return the document of a DID, or None if it is not known without asking others."""
        if did.startswith(FETCHED):
            found = None if self._fetched is None else self._fetched(did)
            return None if isinstance(found, Fetch) else found
        return self._seen_as(did) if is_short(did) else resolve_document(did)

    def is_to_learn(self, did: str) -> bool:
        """Say whether an unknown DID can be learned, from the account that stored it or the web."""
        if did.startswith(FETCHED):
            return self._fetched is not None and isinstance(self._fetched(did), Fetch)
        return is_short(did) and canonical_name(did) == did and self.resolve(did) is None

    def service_of(self, did: str) -> MessagingService | None:
        """Return an agent's first service that leads to a URL, or None.

        If the endpoint is a DID, it is a mediator's: the DID goes before the routing keys, and the
        mediator's own service has the URL. Only one such step is taken.
        """
        services = self._services(did)
        return next((found for each in services if (found := self._reached(each))), None)

    def mediator_to_learn(self, did: str) -> str:
        """Return the mediator's DID to learn before the agent can be reached; empty for none."""
        for service in self._services(did):
            if self._reached(service) is not None:
                return ""
            if service.uri.startswith(FETCHED) and self.is_to_learn(service.uri):
                return service.uri
        return ""

    def _services(self, did: str) -> Sequence[MessagingService]:
        """Return the services of a DID; the long did:peer:4 of a seen agent is not read again."""
        seen = self._seen_as(peer4_short(did))
        document = seen if seen is not None and seen.did == did else self.resolve(did)
        return () if document is None else document.services

    def _seen_as(self, short: str) -> AgentDocument | None:
        with self._lock:
            return self._seen.get(short)

    def _reached(self, service: MessagingService) -> MessagingService | None:
        if is_url(service.uri):
            return service
        mediator = self.resolve(service.uri)
        if mediator is None:
            return None
        urls = (each.uri for each in mediator.services if is_url(each.uri))
        uri, keys = next(urls, ""), [service.uri, *service.routing_keys]
        return MessagingService(uri, keys) if uri else None

    def learn(self, did: str) -> None:
        """Remember a DID that contains its document, so that its short form resolves, too."""
        document = self.resolve(did)
        if document is not None:
            self.remember(document)

    def remember(self, keys: AgentDocument) -> None:
        """Remember the document of a DID that has a short form, under the short form."""
        if keys.short != keys.did and keys.short.startswith(_SHORT):
            with self._lock:
                self._seen[keys.short] = keys


def account_did(did: str) -> str:
    """Return the DID of an agent's identity: the short form of the agent's own DID.

    A DID whose document is fetched stays as it is spelled: its document has it in this spelling
    alone, and so have Decentrl and the accounts and speakers of earlier logs.
    """
    if did.startswith(FETCHED):
        return did
    name = canonical_name(did)
    key = None if name is None else read_key(name)
    return did_key(key) if key is not None else name or did


def is_short(did: str) -> bool:
    """Say whether a DID is the short form, a hash, of a DID that contains its document."""
    return did.startswith(_SHORT) and ":" not in did[len(PEER_4) :]


def read_agent_document(did: str, document: Json) -> AgentDocument:
    """Read a document of ``did``; keys that cannot be read or belong to others are left out."""
    listed = chain.from_iterable(as_list(document.get(name)) for name in _RELATIONS)
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
    """Return the DIDComm v2 services of a document, in its order, read in all spellings in use.

    An endpoint is an object, a list of objects (DIDComm 2.0), or a text with ``routingKeys`` beside
    it (older libraries).
    """
    services: list[MessagingService] = []
    left = SERVICES_CHARS_MAX
    for service in islice(_services(document), SERVICES_MAX):
        left -= len(service.uri) + sum(map(len, service.routing_keys))
        if left < 0:
            break
        services.append(service)
    return services


def _services(document: Json) -> Iterator[MessagingService]:
    for service in islice(as_list(document.get("service")), SERVICES_MAX):
        if not isinstance(service, dict) or not has_type(service, _MESSAGING):
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
    """Return the document of a did:key (W3C did:key 1.0, "Document Creation Algorithm")."""
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
    """Return the keys of one relation, under every id that each key has in the document."""
    named = [
        fragment
        for entry in islice(as_list(listed), METHODS_MAX)
        if (fragment := _own_fragment(did, entry.get("id") if isinstance(entry, dict) else entry))
    ]
    first = {fragment: methods[fragment] for fragment in named if fragment in methods}
    return first | {name: key for name, key in methods.items() if key in first.values()}


def _own_fragment(did: str, reference: object) -> str | None:
    """Return the fragment of an id in a document; None if the id belongs to another DID."""
    if not isinstance(reference, str):
        return None
    subject, _, fragment = reference.partition("#")
    is_own = not subject or subject == did or peer4_short(subject) == peer4_short(did)
    return fragment if is_own and 0 < len(fragment) <= FRAGMENT_CHARS_MAX else None


def _routing_keys(value: object) -> list[str] | None:
    """Return DIDs or ids of keys; empty if there are none, None if they cannot be used."""
    items = [] if value is None else value
    if not isinstance(items, list) or len(items) > ROUTING_KEYS_MAX:
        return None
    # A fetched document may have long texts, and an account stores these keys.
    are_right = all(isinstance(item, str) and len(item) <= DID_CHARS_MAX for item in items)
    return items if are_right else None
