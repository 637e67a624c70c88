"""One identity at its mediator: registration, contracts, messages, history, publications.

``Account`` combines the protocol's commands (``commands``) into the flows of the companion page,
section 8. It verifies everything that comes from a mediator before it returns it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Final

from http_edge.clients.decentrl import contracts, events
from http_edge.clients.decentrl.backoff import PATIENT, Backoff
from http_edge.clients.decentrl.commands import Commands
from http_edge.clients.decentrl.contracts import Contract
from http_edge.clients.decentrl.errors import NotAuthentic
from http_edge.clients.decentrl.events import Envelope
from http_edge.clients.decentrl.identity import Identity
from http_edge.clients.decentrl.mediator import Mediator
from http_edge.clients.decentrl.records import (
    PAGE_SIZE,
    EventToSave,
    PendingContractRequest,
    PendingEvent,
    SavedEvent,
    Seconds,
    drained,
    each,
    member,
)
from http_edge.clients.decentrl.socket import NoticeSocket
from http_edge.crypto.encoding import b64encode
from http_edge.crypto.key_agreement import X25519KeyPair, new_key_pair
from http_edge.dids.contract_profile import ContractRequest, ephemeral_key

_SIGNATURE: Final = "requestor_signature"


class Account(Commands):
    """An identity and its mediator; made by ``MediatorClient.as_``.

    Every method can raise the errors of a command (see ``commands``); NotAuthentic means that the
    received data are not what they claim to be.
    """

    def __init__(
        self,
        identity: Identity,
        mediator: Mediator,
        save: Callable[[Identity], object] | None = None,
    ) -> None:
        """The account of an identity at its mediator.

        ``save`` is called with the identity each time it gains an ephemeral key, before the key is
        sent to anyone: with ``lambda identity: identity.save(path)`` no crash costs a contract. If
        it raises, nothing is sent.
        """
        super().__init__(identity, mediator)
        self._save_identity = save

    # Registration: 8.1.

    async def register(self, *, expires_at_s: Seconds, invitation: str | None = None) -> Contract:
        """Register until ``expires_at_s`` by a contract with the mediator.

        Repeating is harmless; a later time renews, and the old contract stays valid until it
        expires. ``invitation`` is the id of an invitation, if the mediator asks for one.

        Raises:
            NotAuthentic: the returned contract is not the requested one.
        """
        document = await self.mediator.document()
        # Do not keep the ephemeral key: no message is ever encrypted for the mediator.
        ephemeral = new_key_pair()
        answer = await self.request_communication_contract(
            document.did,
            contracts.sealed_request(self.identity, ephemeral, document, expires_at_s),
            b64encode(ephemeral.public),
            at=self.mediator,
            repeat=True,
            invitation=invitation,
        )
        payload = member(answer, "payload", dict[str, object])
        signed = member(payload, "signed_communication_contract", dict[str, object])
        contract = contracts.verified(signed, document)
        terms = (contract.requestor_did, contract.recipient_did, contract.expires_at_s)
        if terms != (self.identity.did, document.did, expires_at_s):
            raise NotAuthentic("the mediator signed another contract than the one of the request")
        return contract

    # Contracts: 8.1 to 8.6.

    async def request_contract(
        self, recipient_did: str, *, expires_at_s: Seconds, at: Mediator | None = None
    ) -> None:
        """Ask another identity for a contract; its answer arrives among ``contracts()``.

        The identity gains an ephemeral key, without which the contract is useless; see ``save`` of
        the account.

        Raises:
            NotAuthentic: the recipient's DID names no usable pre-key.
        """
        recipient = contracts.resolve(recipient_did)
        if recipient is None:
            raise NotAuthentic(f"{recipient_did} does not resolve")
        ephemeral = self._new_contract_key()
        await self.request_communication_contract(
            recipient_did,
            contracts.sealed_request(self.identity, ephemeral, recipient, expires_at_s),
            b64encode(ephemeral.public),
            at=at,
        )

    def contract_requests(self) -> AsyncIterator[PendingContractRequest]:
        """Iterate over waiting contract requests, oldest first; acknowledge none meanwhile."""
        return each(self.query_pending_communication_contract_requests)

    def read_contract_request(self, waiting: PendingContractRequest) -> ContractRequest:
        """Read a waiting request: the verified requestor, and the expiry.

        Raises:
            NotAuthentic: the request does not open or verify, or it has expired.
        """
        return contracts.opened_request(self.identity, waiting, self._now_s())

    async def answer_contract(
        self, waiting: PendingContractRequest, *, at: Mediator | None = None
    ) -> Contract:
        """Agree to a contract: counter-sign, save, hand to the requestor's mediator, acknowledge.

        In this order, so that after a failure the request still waits and can be answered again,
        by the contract that was saved. ``at`` is the requestor's mediator if its DID does not lead
        there. The identity gains an ephemeral key, without which the contract is useless; see
        ``save`` of the account.

        Raises:
            NotAuthentic: the request does not open or verify, or it has expired.
        """
        request = self.read_contract_request(waiting)
        contract = await self._saved_answer(request)
        if contract is None:
            contract = contracts.countersigned(self.identity, request, self._new_contract_key())
            await self.save_communication_contract(contract.signed)
        await self.communication_contract_response(contract.requestor_did, contract.signed, at=at)
        await self.acknowledge_pending_communication_contract_requests([waiting.id])
        return contract

    async def contracts(self, *, did: str | None = None) -> AsyncIterator[Contract]:
        """The identity's unexpired contracts (those with ``did``, if given), each verified.

        Raises:
            NotAuthentic: the mediator returned a contract that does not verify.
        """
        now_s = self._now_s()
        query = partial(self.query_communication_contracts, did=did, expires_after_s=now_s)
        async for stored in each(query):
            yield contracts.verified(stored.signed)

    # Private events: section 7, 8.7, 8.8.

    def encrypt(
        self, event: dict[str, object], contract: Contract, *, tags: Sequence[str] = ()
    ) -> str:
        """Sign an event and encrypt it for the other party of the contract.

        Raises:
            UnusableIdentity: the identity lacks its ephemeral key of this contract.
        """
        envelope = events.sign_event(self.identity, event, tags, int(self._now_s()))
        secret = contracts.root_secret(self.identity, contract)
        return events.seal_for_transit(events.encode(envelope), secret)

    def decrypt(self, pending: PendingEvent, contract: Contract) -> Envelope:
        """Decrypt the event in a waiting message, and verify its author.

        Raises:
            NotAuthentic: the message does not open, or the author of the event is not the sender
                or did not sign it.
            UnusableIdentity: the identity lacks its ephemeral key of this contract.
        """
        secret = contracts.root_secret(self.identity, contract)
        envelope = events.decode(events.open_from_transit(pending.payload, secret))
        if envelope.sender_did != pending.sender_did:
            raise NotAuthentic(f"{pending.sender_did} sent an event of {envelope.sender_did}")
        return envelope

    def take_pending_events(self, *, sender_did: str | None = None) -> AsyncIterator[PendingEvent]:
        """Iterate over the waiting events, and acknowledge each page after it; see ``drained``."""
        query = partial(self.query_pending_events, sender_did=sender_did)
        return drained(query, self.acknowledge_pending_events)

    def socket(self, *, backoff: Backoff = PATIENT) -> NoticeSocket:
        """A socket for live notices (section 10): ``async with account.socket() as notices``.

        ``backoff`` says how often it tries to reconnect after a loss.
        """
        return NoticeSocket(self.identity, self.mediator, backoff)

    # The own history: 8.9 to 8.11.

    async def save(
        self,
        envelope: Envelope,
        contract: Contract,
        *,
        tags: Sequence[str] = (),
        repeat: bool = False,
    ) -> None:
        """Save an event of this contract in the own history, encrypted for storage.

        ``tags`` are encrypted, too: the mediator can only compare them. An event of another author
        counts as unprocessed until its tags are updated.
        """
        event = EventToSave(
            sender_did=envelope.sender_did,
            recipient_did=contract.other(envelope.sender_did),
            contract_id=contract.id,
            timestamp_s=envelope.timestamp_s,
            payload=self.identity.seal_for_storage(events.encode(envelope)),
            encrypted_tags=[self.identity.encrypt_tag(tag) for tag in tags],
        )
        await self.save_events([event], repeat=repeat)

    def saved_events(
        self,
        *,
        tags: Sequence[str] = (),
        participant_did: str | None = None,
        unprocessed_only: bool = False,
        page_size: int = PAGE_SIZE,
    ) -> AsyncIterator[SavedEvent]:
        """Iterate over the own history, oldest first: events with any of the plaintext ``tags``.

        With ``unprocessed_only`` update no tags meanwhile: the iteration would skip events.
        """
        query = partial(
            self.query_events,
            encrypted_tags=[self.identity.encrypt_tag(tag) for tag in tags],
            participant_did=participant_did,
            unprocessed_only=unprocessed_only,
        )
        return each(query, page_size)

    def open_saved(self, saved: SavedEvent) -> Envelope:
        """Decrypt the event in a saved record, and verify its author.

        Raises:
            NotAuthentic: the record does not open with the storage key, or does not verify.
        """
        return events.decode(self.identity.open_from_storage(saved.payload))

    async def tag(self, event_id: str, tags: Sequence[str]) -> None:
        """Replace the tags of one saved event (plaintext here) and mark it processed."""
        encrypted = [self.identity.encrypt_tag(tag) for tag in tags]
        await self.update_event_tags({event_id: encrypted})

    # Publications by DCTRL-0007.

    async def publish(
        self, channel_id: str, event: str, *, tags: Sequence[str] = (), repeat: bool = False
    ) -> str:
        """Publish a signed event (JSON text) for all readers; return its id."""
        return await self.publish_public_event(
            channel_id, event, tags=tags, timestamp_s=int(self._now_s()), repeat=repeat
        )

    async def _saved_answer(self, request: ContractRequest) -> Contract | None:
        """The contract that an earlier answer to this request saved, if its key was kept."""
        async for contract in self.contracts(did=request.requestor_did):
            own = b64encode(ephemeral_key(contract.signed, "recipient") or b"")
            same = contract.signed[_SIGNATURE] == request.signed[_SIGNATURE]
            if same and own in self.identity.contract_keys:
                return contract
        return None

    def _new_contract_key(self) -> X25519KeyPair:
        ephemeral = new_key_pair()
        self.identity.contract_keys[b64encode(ephemeral.public)] = ephemeral.private
        if self._save_identity is not None:
            self._save_identity(self.identity)
        return ephemeral

    def _now_s(self) -> float:
        return self.mediator.sources.now_ms() / 1000


class MediatorClient(Mediator):
    """One mediator at one URL, and accounts there; see ``Mediator`` for the arguments."""

    def as_(
        self, identity: Identity, *, save: Callable[[Identity], object] | None = None
    ) -> Account:
        """The account of one identity whose home is this mediator; ``save`` as in ``Account``."""
        return Account(identity, self, save)
