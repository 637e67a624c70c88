"""Communication contracts as their parties see them (DCTRL-0003). Pure.

Contracts come from a mediator, so each one is verified before it is used: a forged contract with
another ephemeral key would let another party read the messages under it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from http_edge.clients.decentrl.errors import NotAuthentic, UnusableIdentity
from http_edge.clients.decentrl.identity import Identity
from http_edge.clients.decentrl.records import PendingContractRequest, Seconds
from http_edge.crypto import key_agreement
from http_edge.crypto.encoding import b64encode
from http_edge.dids import contract_profile, decentrl, key
from http_edge.dids.contract_profile import ContractRejection, ContractRequest, Role
from http_edge.dids.document import DidDocument

_EVER = 0.0
"""The time of verification: an expired contract still opens the messages sent under it."""


@dataclass(frozen=True, slots=True)
class Contract:
    """A contract that both parties signed; ``expires_at_s`` is in Unix seconds."""

    id: str
    requestor_did: str
    recipient_did: str
    expires_at_s: Seconds
    signed: dict[str, object]

    def other(self, did: str) -> str:
        """The other party."""
        return self.recipient_did if did == self.requestor_did else self.requestor_did


def resolve(did: str) -> DidDocument | None:
    """The document of a did:decentrl or did:key, which need no network; None for other DIDs."""
    return decentrl.resolve(did) or key.resolve(did)


def verified(signed: Mapping[str, object], *others: DidDocument) -> Contract:
    """Verify both signatures of a contract; ``others`` are documents fetched elsewhere.

    Raises:
        NotAuthentic: the contract is malformed, or a party did not sign it.
    """
    known = {document.did: document for document in others}
    received = dict(signed)
    found = contract_profile.verify_signed_contract(
        received, _EVER, lambda did: known.get(did) or resolve(did)
    )
    if isinstance(found, ContractRejection):
        raise NotAuthentic(f"a contract that does not verify: {found.rule}")
    return Contract(
        id=found.digest.hex(),
        requestor_did=found.requestor_did,
        recipient_did=found.recipient_did,
        expires_at_s=found.expires_at_s,
        signed=received,
    )


def sealed_request(
    identity: Identity,
    ephemeral: key_agreement.X25519KeyPair,
    recipient: DidDocument,
    expires_at_s: Seconds,
) -> str:
    """Make a contract request, signed by ``identity`` and encrypted for ``recipient``.

    Raises:
        NotAuthentic: the recipient's document has no usable pre-key.
    """
    request = contract_profile.new_request(
        identity.did, recipient.did, expires_at_s, identity.signing_seed, ephemeral.public
    )
    sealed = recipient.pre_key and contract_profile.seal_request(
        request, ephemeral.private, recipient.pre_key
    )
    if not sealed:
        raise NotAuthentic(f"{recipient.did} has no usable pre-key")
    return sealed


def opened_request(
    identity: Identity, waiting: PendingContractRequest, now_s: float
) -> ContractRequest:
    """Decrypt and verify a waiting request: the requestor and the expiry.

    Raises:
        NotAuthentic: the request does not open, has expired, is for another identity, or the
            requestor is not the sender or did not sign it.
    """
    request = contract_profile.open_request(
        waiting.encrypted_contract_request,
        waiting.requestor_ephemeral_public_key,
        identity.prekey_private,
        now_s,
    )
    if isinstance(request, ContractRejection):
        raise NotAuthentic(f"contract request {waiting.id}: {request.rule}")
    parties = (request.requestor_did, request.recipient_did)
    if parties != (waiting.sender_did, identity.did):
        raise NotAuthentic(f"contract request {waiting.id} names other parties")
    if not contract_profile.verify_request(request, resolve):
        raise NotAuthentic(f"contract request {waiting.id} is not signed by its requestor")
    return request


def countersigned(
    identity: Identity, request: ContractRequest, ephemeral: key_agreement.X25519KeyPair
) -> Contract:
    """Make the contract: the request with the recipient's ephemeral key and signature."""
    return verified(
        contract_profile.accept_request(request, identity.signing_seed, ephemeral.public)
    )


def root_secret(identity: Identity, contract: Contract) -> bytes:
    """The 32-byte key of all messages under the contract (DCTRL-0003 section 6).

    Raises:
        UnusableIdentity: the identity lacks its own ephemeral key of this contract.
        NotAuthentic: the other party's ephemeral key is missing or of low order.
    """
    own: Role = "requestor" if contract.requestor_did == identity.did else "recipient"
    their: Role = "recipient" if own == "requestor" else "requestor"
    own_public = contract_profile.ephemeral_key(contract.signed, own)
    own_private = identity.contract_keys.get(b64encode(own_public or b""))
    if own_private is None:
        raise UnusableIdentity(f"no ephemeral key for contract {contract.id}")
    their_public = contract_profile.ephemeral_key(contract.signed, their)
    secret = contract_profile.root_secret(own_private, their_public or b"")
    if secret is None:
        raise NotAuthentic(f"contract {contract.id} has no usable key of the other party")
    return secret
