"""The contract profile: every guessed name and rule of DCTRL-0003, in one place.

The text of DCTRL-0003 is not public. This profile is inferred from the public documents; if the
text differs, only this module has to change. Contracts stay opaque: signatures are verified over
the contract as received, with its unknown members, which are kept. Members beside the contract,
which no party has signed, are dropped. Readers are lenient, writers strict. ``strict_json`` has
parsed every JSON value here.

A signed contract is ``{communication_contract, requestor_signature, recipient_signature}``. The
requestor signs the contract without the recipient's additions; the recipient adds its ephemeral
key and signs the whole. ``expires_at`` is in Unix seconds and may be fractional.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Literal, TypeAlias

from http_edge.crypto import aes_gcm, key_agreement
from http_edge.crypto.canonical_json import canonical
from http_edge.crypto.encoding import b64decode, b64decode_exactly, b64encode
from http_edge.crypto.mediator_keys import MediatorKeys
from http_edge.crypto.signatures import sign_object, verify_object
from http_edge.crypto.strict_json import JsonRefused, parse
from http_edge.dids.document import DidDocument, signing_key_id

Resolve: TypeAlias = Callable[[str], DidDocument | None]
Role: TypeAlias = Literal["requestor", "recipient"]
Seconds: TypeAlias = int | float
JsonObject: TypeAlias = dict[str, Any]

CONTRACT: Final = "communication_contract"
_SIGNED: Final = (CONTRACT, "requestor_signature", "recipient_signature")
EXPIRES_AT: Final = "expires_at"
EXPIRES_AT_S_MAX: Final = 1e11
"""The year 5138: a later time must be in milliseconds."""
_EPHEMERAL_KEYS: Final[Mapping[Role, tuple[str, str]]] = {
    "requestor": ("requestor_ephemeral_public_key", "requestor_encryption_public_key"),
    "recipient": ("recipient_ephemeral_public_key", "recipient_encryption_public_key"),
}
"""Both names are read; the first one is written."""


class ContractRejection(Enum):
    """Why a request or a contract is rejected: the member and the rule."""

    NOT_OPENED = "does not decrypt to a JSON object"
    MALFORMED = "communication_contract: lacks a member or has one of another type"
    ONE_DID_TWICE = "communication_contract: requestor_did and recipient_did are the same"
    EXPIRED = "communication_contract.expires_at: has passed"
    TOO_LATE = "communication_contract.expires_at: is too late to be in Unix seconds"
    RECIPIENT_KEY_GIVEN = "communication_contract: a request names the recipient's ephemeral key"
    OTHER_REQUESTOR = "communication_contract.requestor_did: is not the sender"
    OTHER_RECIPIENT = "communication_contract: names another recipient or another key of it"
    NOT_SIGNED = "communication_contract: a party's DID, key or signature does not verify"


@dataclass(frozen=True, slots=True)
class VerifiedContract:
    """A contract that both parties signed.

    ``signed`` is the canonical JSON of the contract with both signatures. ``digest`` is the SHA-256
    of the contract without them, and identifies it.
    """

    requestor_did: str
    recipient_did: str
    expires_at_s: Seconds
    digest: bytes
    signed: bytes


@dataclass(frozen=True, slots=True)
class ContractRequest:
    """A contract request, decrypted and well-formed.

    ``signed`` is ``{communication_contract, requestor_signature}`` and any other received members.
    """

    requestor_did: str
    recipient_did: str
    expires_at_s: Seconds
    signed: JsonObject

    @property
    def contract(self) -> JsonObject:
        """The contract as received."""
        contract: JsonObject = self.signed[CONTRACT]
        return contract


@dataclass(frozen=True, slots=True)
class RegistrationAccepted:
    """A registration: the signed contract to return, and the same contract to store."""

    signed: JsonObject
    contract: VerifiedContract


# ---- the mediator's side


def open_registration(  # noqa: PLR0913, PLR0917 - each is a fact of the one command
    encrypted_request: str,
    requestor_ephemeral_public_key: str,
    keys: MediatorKeys,
    mediator_did: str,
    sender_did: str,
    now_s: float,
    resolver: Resolve,
) -> RegistrationAccepted | ContractRejection:
    """Decrypt a registration request, check it and sign it as recipient (DCTRL-0004 8.1).

    The mediator's ephemeral private key is forgotten here: no command uses the root secret.
    """
    request = open_request(
        encrypted_request, requestor_ephemeral_public_key, keys.pre_private, now_s
    )
    if isinstance(request, ContractRejection):
        return request
    named_key = request.contract.get("recipient_signing_key_id")
    if request.requestor_did != sender_did:
        return ContractRejection.OTHER_REQUESTOR
    if request.recipient_did != mediator_did or named_key not in {
        None,
        signing_key_id(mediator_did),
    }:
        return ContractRejection.OTHER_RECIPIENT
    if not verify_request(request, resolver):
        return ContractRejection.NOT_SIGNED
    signed = accept_request(request, keys.signing_seed, key_agreement.new_key_pair().public)
    return RegistrationAccepted(signed, _stored(signed, request))


def verify_signed_contract(
    value: object, now_s: float, resolve: Resolve
) -> VerifiedContract | ContractRejection:
    """Check a contract that both parties signed (DCTRL-0003 section 8).

    ``NOT_SIGNED`` means that a DID does not resolve, a key is missing or a signature is invalid;
    all other rejections mean that the contract is malformed or expired.
    """
    request = _read(value, now_s)
    if isinstance(request, ContractRejection):
        return request
    recipient_signature = request.signed.get("recipient_signature")
    if not isinstance(recipient_signature, str):
        return ContractRejection.MALFORMED
    recipient_key = _signing_key(request, "recipient", resolve)
    if (
        recipient_key is None
        or not verify_request(request, resolve)
        or not verify_object(recipient_key, request.contract, recipient_signature)
    ):
        return ContractRejection.NOT_SIGNED
    return _stored(request.signed, request)


def participants(value: object) -> tuple[str, str] | None:
    """The requestor's and the recipient's DID in a signed contract, before any check."""
    match value:
        case {"communication_contract": {"requestor_did": str(one), "recipient_did": str(two)}}:
            return one, two
        case _:
            return None


# ---- the identities' side


def new_request(
    requestor_did: str,
    recipient_did: str,
    expires_at_s: Seconds,
    signing_seed: bytes,
    ephemeral_public: bytes,
) -> JsonObject:
    """A request signed by the requestor, whose signing key is ``<DID>#signing``.

    Raises:
        NotCanonical: ``expires_at_s`` is not finite, or an integer beyond 2^53.
    """
    contract: JsonObject = {
        "requestor_did": requestor_did,
        "requestor_signing_key_id": signing_key_id(requestor_did),
        _EPHEMERAL_KEYS["requestor"][0]: b64encode(ephemeral_public),
        "recipient_did": recipient_did,
        EXPIRES_AT: expires_at_s,
    }
    return {CONTRACT: contract, "requestor_signature": sign_object(contract, signing_seed)}


def seal_request(
    request: JsonObject, ephemeral_private: bytes, recipient_pre_key: bytes
) -> str | None:
    """The encrypted request in base64, or None for a pre-key of low order."""
    secret = key_agreement.shared_secret(ephemeral_private, recipient_pre_key)
    return None if secret is None else b64encode(aes_gcm.seal(secret, canonical(request)))


def open_request(
    encrypted_request: str,
    requestor_ephemeral_public_key: str,
    pre_private: bytes,
    now_s: float,
) -> ContractRequest | ContractRejection:
    """Decrypt a request with the recipient's pre-key and read it, but not verify its signature.

    ``requestor_ephemeral_public_key`` need not be the key that the contract names.
    """
    try:
        secret = key_agreement.shared_secret(pre_private, b64decode(requestor_ephemeral_public_key))
        sealed = b64decode(encrypted_request)
        plaintext = None if secret is None else aes_gcm.open_sealed(secret, sealed)
        value = None if plaintext is None else parse(plaintext)
    except (ValueError, JsonRefused):
        return ContractRejection.NOT_OPENED
    if not isinstance(value, dict):
        return ContractRejection.NOT_OPENED
    if CONTRACT not in value:  # the bare form, the signature inside
        bare = {name: member for name, member in value.items() if name != "requestor_signature"}
        value = {CONTRACT: bare, "requestor_signature": value.get("requestor_signature")}
    request = _read(value, now_s)
    if isinstance(request, ContractRequest) and any(
        name in request.contract for name in _EPHEMERAL_KEYS["recipient"]
    ):
        return ContractRejection.RECIPIENT_KEY_GIVEN  # which the requestor cannot know
    return request


def verify_request(request: ContractRequest, resolve: Resolve) -> bool:
    """Whether the requestor signed the request."""
    key = _signing_key(request, "requestor", resolve)
    signature = request.signed["requestor_signature"]
    return key is not None and any(
        verify_object(key, terms, signature) for terms in _requestor_terms(request.contract)
    )


def accept_request(
    request: ContractRequest, signing_seed: bytes, ephemeral_public: bytes
) -> JsonObject:
    """The signed contract: the request, the recipient's ephemeral key and its signature."""
    contract = {
        "recipient_signing_key_id": _key_id(request, "recipient"),
        **request.contract,  # with a key id of its own, null too, which the requestor has signed
        _EPHEMERAL_KEYS["recipient"][0]: b64encode(ephemeral_public),
    }
    return {
        CONTRACT: contract,
        "requestor_signature": request.signed["requestor_signature"],
        "recipient_signature": sign_object(contract, signing_seed),
    }


def ephemeral_key(signed: JsonObject, role: Role) -> bytes | None:
    """The ephemeral X25519 key of one party of a contract, or None if there is none."""
    for name in _EPHEMERAL_KEYS[role]:
        text = signed[CONTRACT].get(name)
        if isinstance(text, str):
            return b64decode_exactly(text, key_agreement.KEY_BYTES)
    return None


def root_secret(own_ephemeral_private: bytes, their_ephemeral_public: bytes) -> bytes | None:
    """The 32-byte key of all messages under a contract, or None for a key of low order."""
    return key_agreement.shared_secret(own_ephemeral_private, their_ephemeral_public)


def contract_id(signed: JsonObject) -> str:
    """The id of a contract: lower-case hex SHA-256 of the contract in canonical JSON.

    Raises:
        NotCanonical: the contract has no canonical form.
    """
    return hashlib.sha256(canonical(signed[CONTRACT])).hexdigest()


# ---- both


def _read(value: object, now_s: float) -> ContractRequest | ContractRejection:
    """The well-formed request in ``value``; members that the recipient adds are not checked."""
    match value:
        case {
            "communication_contract": {
                "requestor_did": str(requestor),
                "recipient_did": str(recipient),
                "expires_at": int(expires_at_s) | float(expires_at_s),
            } as contract,
            "requestor_signature": str(),
        } if (
            isinstance(value, dict)
            and isinstance(contract.get("requestor_signing_key_id"), str | None)
            and isinstance(contract.get("recipient_signing_key_id"), str | None)
        ):
            if requestor == recipient:
                return ContractRejection.ONE_DID_TWICE
            if not expires_at_s <= EXPIRES_AT_S_MAX:  # in this form NaN is too late
                return ContractRejection.TOO_LATE
            if expires_at_s <= now_s:
                return ContractRejection.EXPIRED
            return ContractRequest(requestor, recipient, expires_at_s, value)
        case _:
            return ContractRejection.MALFORMED


def _key_id(request: ContractRequest, role: Role) -> str:
    named: str | None = request.contract.get(f"{role}_signing_key_id")
    did = request.requestor_did if role == "requestor" else request.recipient_did
    return signing_key_id(did) if named is None else named


def _signing_key(request: ContractRequest, role: Role, resolve: Resolve) -> bytes | None:
    document = resolve(request.requestor_did if role == "requestor" else request.recipient_did)
    return None if document is None else document.signing_keys.get(_key_id(request, role))


def _requestor_terms(contract: JsonObject) -> Iterator[JsonObject]:
    """The contracts that the requestor may have signed: without the recipient's additions.

    The contract does not show which party named the recipient's signing key: yield both forms.
    """
    added = set(_EPHEMERAL_KEYS["recipient"])
    yield {name: member for name, member in contract.items() if name not in added}
    if "recipient_signing_key_id" in contract:
        added.add("recipient_signing_key_id")
        yield {name: member for name, member in contract.items() if name not in added}


def _stored(signed: JsonObject, request: ContractRequest) -> VerifiedContract:
    # The digest covers the contract alone, and only the signed members are stored. Otherwise
    # unsigned members and other spellings of a signature could make one contract count as many, and
    # the first sender could make its owner store and read members that neither party signed.
    return VerifiedContract(
        requestor_did=request.requestor_did,
        recipient_did=request.recipient_did,
        expires_at_s=request.expires_at_s,
        digest=bytes.fromhex(contract_id(signed)),
        signed=canonical({name: signed[name] for name in _SIGNED}),
    )
