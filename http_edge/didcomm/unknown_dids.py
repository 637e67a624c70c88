"""Learning of DIDs that a message depends on and that do not contain their document.

The short form of a DID is a hash of the long form, which its account has stored: the owner of the
name knows it. The document of a did:web or did:webvh is on a web host. If the operator allows it
(``settings.sections.DidWeb``), the edge fetches the document; fetches belong to no request and are
few at a time (``http_edge.dids.fetched``). A message waits for a fetch only while few others do.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Final, TypeAlias

from actors.core.commands import FindKeyOwner, QueryConnection
from actors.core.refusals import Refusal
from actors.core.replies import Connected, KeyOwner
from actors.host.clock import Clock
from http_edge.crypto.strict_json import object_in
from http_edge.didcomm.envelopes.agent_documents import (
    FETCHED,
    AgentDocument,
    MessagingService,
    SeenDids,
    read_agent_document,
)
from http_edge.didcomm.envelopes.messages import Message
from http_edge.didcomm.envelopes.recipient_names import canonical_name
from http_edge.didcomm.identities import TO_RETRY, Identities, key_target
from http_edge.didcomm.rejections import RejectionReason
from http_edge.dids import web, webvh
from http_edge.dids.address_slots import AddressSlots
from http_edge.dids.document import Fetch
from http_edge.dids.fetched import FetchedDids, FetchedMethod
from http_edge.listener.address_charge import charge_unproven, paying_address

AgentDids: TypeAlias = FetchedDids[AgentDocument]
"""Fetches the documents of agents."""
_PASSING: Final = frozenset({RejectionReason.TRY_AGAIN, RejectionReason.SENDER_UNRESOLVED})
"""Why a document is not known now, but may be soon."""
_WAITING_MAX: Final = 64
"""Messages of one edge that may wait for fetches at once; each holds a request for seconds."""


def _of_web(did: str, body: bytes, _beside: bytes) -> AgentDocument | None:
    """Read the document of a did:web; None if its ``id`` is not this DID."""
    document = object_in(body)
    if document is None or document.get("id") != did:
        return None
    return read_agent_document(did, document)


def methods(clock: Clock) -> Mapping[str, FetchedMethod[AgentDocument]]:
    """Return how agents' documents are fetched and read, by DID prefix."""

    def of_webvh(did: str, body: bytes, proofs: bytes) -> AgentDocument | None:
        document = webvh.read_log(did, body, clock() / 1000, proofs)
        return None if document is None else read_agent_document(did, document)

    return {
        web.PREFIX: FetchedMethod(web.document_url, _of_web),
        webvh.PREFIX: FetchedMethod(webvh.log_url, of_webvh, webvh.witness_url),
    }


class UnknownDids:
    """Learns DIDs for the messages of one edge."""

    def __init__(
        self,
        identities: Identities,
        seen: SeenDids,
        fetched: AgentDids | None,
        own_names: Container[str] = (),
    ) -> None:
        """Learn DIDs for ``seen``.

        Ask ``identities`` for hashed DIDs, and ``fetched``, unless None, for web documents.
        ``own_names`` are the names of this mediator (``recipient_names``).
        """
        self._identities = identities
        self._seen = seen
        self._fetched = fetched
        self._own_names = own_names
        self._slots = AddressSlots(_WAITING_MAX)

    async def learn(self, did: str, command: bytes) -> RejectionReason | None:
        """Learn a DID; return None, or the reason why the DID remains unknown.

        ``command`` is the key of the message in the log.
        """
        if did.startswith(FETCHED):
            return await self._fetch(did)
        whole = await self._whole(did, command)
        if isinstance(whole, Refusal):
            is_over = whole not in TO_RETRY
            return RejectionReason.UNDECRYPTABLE if is_over else RejectionReason.TRY_AGAIN
        self._seen.learn(whole)
        return None

    async def service_of(self, message: Message) -> MessagingService | Refusal | None:
        """Return the service of a message's sender from its document or its mediator's document.

        ``TEMPORARILY_UNAVAILABLE`` if the mediator's document cannot be fetched now: an agent that
        is taken for one without a service would lose the endpoint that it has. None if the mediator
        is this one: it needs no document to leave the agent's messages in its queue.
        """
        mediator = self._seen.mediator_to_learn(message.sender_did)
        if mediator and canonical_name(mediator) in self._own_names:
            return None
        if mediator and await self._fetch(mediator) in _PASSING:
            return Refusal.TEMPORARILY_UNAVAILABLE
        return self._seen.service_of(message.sender_did)

    async def _whole(self, did: str, command: bytes) -> str | Refusal:
        """Return the long form of the hashed ``did``, as its account has stored it.

        The owner of the name knows it: every account registers its own DID, whose name stays its
        own without an entry in the keylist, and keeps the DIDs that it gave up last, so that a
        sender is refused by name. ``KEY_UNKNOWN`` if no account has it.
        """
        owner = await self._identities.ask(key_target(did), FindKeyOwner(), command, KeyOwner)
        if isinstance(owner, Refusal):
            return owner
        known = await self._identities.ask(
            owner.owner_did, QueryConnection(), command, Connected, by_mediator=True
        )
        if isinstance(known, Refusal):
            return known
        stored = [known.connection.peer_did, *known.prior_dids]
        whole = (each for each in stored if canonical_name(each) == did)
        return next(whole, Refusal.KEY_UNKNOWN)

    async def _fetch(self, did: str) -> RejectionReason | None:
        """Wait for a document; return TRY_AGAIN if too many messages wait, or of this address.

        A host that did not answer is not asked again for some time; until then the refusal costs a
        look-up in the cache.
        """
        fetched = self._fetched
        if fetched is None:
            return RejectionReason.UNDECRYPTABLE
        address = paying_address() or None
        if not self._slots.has_one_for(address):
            return RejectionReason.TRY_AGAIN
        charge_unproven(0)
        with self._slots.held_by(address):
            found = await fetched.resolve(did)
        if found is not None:
            return None
        match fetched.known(did):
            case Fetch.NEEDED:
                return RejectionReason.TRY_AGAIN
            case Fetch.FAILED:
                return RejectionReason.SENDER_UNRESOLVED
            case _:
                return RejectionReason.UNDECRYPTABLE
