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
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import msgspec

from http_edge.crypto import aes_gcm, key_agreement
from http_edge.crypto.canonical_json import canonical, members_in, object_of
from http_edge.crypto.encoding import b64decode, b64decode_exactly, b64encode
from http_edge.crypto.signatures import SIGNATURE_BYTES, sign, sign_object, verify
from http_edge.crypto.strict_json import JsonRefused, parse, rule_of
from http_edge.dids.document import DidDocument, signing_key_id

Resolve: TypeAlias = Callable[[str], DidDocument | None]
Role: TypeAlias = Literal["requestor", "recipient"]
Seconds: TypeAlias = int | float
JsonObject: TypeAlias = dict[str, Any]

CONTRACT: Final = "communication_contract"
_SIGNATURES: Final = ("recipient_signature", "requestor_signature")
"""Behind the contract, and in this order, in the canonical form of a signed contract."""
_NO_SIGNATURE: Final = b64encode(bytes(SIGNATURE_BYTES))
EXPIRES_AT: Final = "expires_at"
EXPIRES_AT_S_MAX: Final = 1e11
"""The year 5138: a later time must be in milliseconds."""
_EPHEMERAL_KEYS: Final[Mapping[Role, tuple[str, str]]] = {
    "requestor": ("requestor_ephemeral_public_key", "requestor_encryption_public_key"),
    "recipient": ("recipient_ephemeral_public_key", "recipient_encryption_public_key"),
}
"""Both names are read; the first one is written."""
_OF_STATEMENTS: Final = frozenset({
    "first", "last", "rows", "files", "heads", "replaces", "stands_for", "previous", "signed_by",
    "tree", "rewritten", "contents", "pruned", "digest", "mediator_did", "shards", "public_key",
    "position", "manifest", "since", "summary", "summary_sha256", "checkpoint", "index", "commit",
    "complete_position", "complete_until_ms",
})  # fmt: skip
"""The members of the mediator's own statements about an export, but for four names of any document.

The same key signs them in the same form, so a registration contract has none of them. The four are
``format``, ``schema``, ``version`` and ``signature``, with which alone no statement says anything.
"""


@dataclass(frozen=True, slots=True)
class ContractRejection:
    """Why a request or a contract is rejected: the member and the rule, never a value.

    ``unsigned`` says that a DID does not resolve, a key is missing or a signature is invalid; all
    other rejections mean that the request or the contract is malformed or expired.
    """

    rule: str
    unsigned: bool = False


class _Terms(msgspec.Struct):
    """The members of a contract that have a meaning here."""

    requestor_did: str
    recipient_did: str
    expires_at: Seconds
    requestor_signing_key_id: str | None = None
    recipient_signing_key_id: str | None = None


class _Requested(msgspec.Struct):
    communication_contract: _Terms
    requestor_signature: str


class _Signed(_Requested):
    recipient_signature: str


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


def accept_registration(
    request: ContractRequest,
    mediator_did: str,
    sender_did: str,
    signing_seed: bytes,
    resolve: Resolve,
    *,
    bytes_max: int,
) -> RegistrationAccepted | ContractRejection:
    """Check a registration request and sign it as recipient (DCTRL-0004 8.1).

    ``bytes_max`` bounds the signed contract in canonical JSON, and comes before the signatures. The
    mediator's ephemeral private key is forgotten here: no command uses the root secret.
    """
    if request.requestor_did != sender_did:
        return ContractRejection(f"{CONTRACT}.requestor_did: is not the sender")
    if request.recipient_did != mediator_did:
        return ContractRejection(f"{CONTRACT}.recipient_did: is not this mediator")
    if _key_id(request, "recipient") != signing_key_id(mediator_did):
        return ContractRejection(
            f"{CONTRACT}.recipient_signing_key_id: is not this mediator's signing key"
        )
    stated = _OF_STATEMENTS.intersection(request.contract)
    if stated:
        return ContractRejection(f"{CONTRACT}.{min(stated)}: is for statements of the mediator")
    signed = _with_additions(request, key_agreement.new_key_pair().public)
    text = canonical(signed[CONTRACT])
    if len(_signed_text(signed, text)) > bytes_max:
        return ContractRejection(f"makes a contract of more than {bytes_max} bytes")
    requested = {name: each for name, each in members_in(text).items() if name in request.contract}
    unsigned = _unsigned(request, "requestor", resolve, _requestor_terms(requested))
    if unsigned is not None:
        return unsigned
    signed["recipient_signature"] = b64encode(sign(signing_seed, text))
    return RegistrationAccepted(signed, _stored(signed, text, request))


def verify_signed_contract(
    value: object,
    now_s: float,
    resolve: Resolve,
    *,
    text: bytes | None = None,
    bytes_max: int | None = None,
) -> VerifiedContract | ContractRejection:
    """Check a contract that both parties signed (DCTRL-0003 section 8).

    ``text`` is the canonical JSON of ``value``, if that is written already: the signatures are
    verified over its bytes. ``bytes_max`` bounds the signed contract, and comes before them.
    """
    request = _read(value, _Signed, now_s)
    if isinstance(request, ContractRejection):
        return request
    contract = canonical(request.contract) if text is None else members_in(text)[CONTRACT]
    if bytes_max is not None and len(_signed_text(request.signed, contract)) > bytes_max:
        return ContractRejection(f"has more than {bytes_max} bytes")
    return (
        _unsigned(request, "requestor", resolve, _requestor_terms(members_in(contract)))
        or _unsigned(request, "recipient", resolve, [contract])
        or _stored(request.signed, contract, request)
    )


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
        sealed = b64decode(encrypted_request)
    except ValueError:
        return ContractRejection("is not base64")
    key = b64decode_exactly(requestor_ephemeral_public_key, key_agreement.KEY_BYTES)
    secret = None if key is None else key_agreement.shared_secret(pre_private, key)
    plaintext = None if secret is None else aes_gcm.open_sealed(secret, sealed)
    if plaintext is None:
        return ContractRejection(
            "does not decrypt with the X25519 secret of the requestor's ephemeral key and the "
            "recipient's pre-key"
        )
    try:
        value = parse(plaintext)
    except JsonRefused as error:
        return ContractRejection(f"plaintext: {error.rule}")
    if not isinstance(value, dict):
        return ContractRejection("plaintext: is not an object")
    if CONTRACT not in value:  # the bare form, the signature inside
        beside = {name: value.pop(name) for name in _Requested.__struct_fields__ if name in value}
        value = {CONTRACT: value, **beside}
    request = _read(value, _Requested, now_s)
    if isinstance(request, ContractRequest) and any(
        name in request.contract for name in _EPHEMERAL_KEYS["recipient"]
    ):
        # The requestor cannot know it.
        return ContractRejection(f"{CONTRACT}: a request names the recipient's ephemeral key")
    return request


def verify_request(request: ContractRequest, resolve: Resolve) -> bool:
    """Whether the requestor signed the request."""
    terms = _requestor_terms(members_in(canonical(request.contract)))
    return _unsigned(request, "requestor", resolve, terms) is None


def accept_request(
    request: ContractRequest, signing_seed: bytes, ephemeral_public: bytes
) -> JsonObject:
    """The signed contract: the request, the recipient's ephemeral key and its signature."""
    signed = _with_additions(request, ephemeral_public)
    return {**signed, "recipient_signature": sign_object(signed[CONTRACT], signing_seed)}


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


# ---- both


def _read(
    value: object, schema: type[_Requested], now_s: float
) -> ContractRequest | ContractRejection:
    """The well-formed request in ``value``, which has the members of ``schema``."""
    try:
        terms = msgspec.convert(value, schema).communication_contract
    except msgspec.ValidationError as error:
        return ContractRejection(rule_of(error))
    assert isinstance(value, dict), "the schema is an object"
    if terms.requestor_did == terms.recipient_did:
        return ContractRejection(f"{CONTRACT}: requestor_did and recipient_did are the same")
    if not terms.expires_at <= EXPIRES_AT_S_MAX:  # in this form NaN is too late
        return ContractRejection(f"{CONTRACT}.expires_at: is too late to be in Unix seconds")
    if terms.expires_at <= now_s:
        return ContractRejection(f"{CONTRACT}.expires_at: has passed")
    return ContractRequest(terms.requestor_did, terms.recipient_did, terms.expires_at, value)


def _key_id(request: ContractRequest, role: Role) -> str:
    named: str | None = request.contract.get(f"{role}_signing_key_id")
    did = request.requestor_did if role == "requestor" else request.recipient_did
    return signing_key_id(did) if named is None else named


def _with_additions(request: ContractRequest, ephemeral_public: bytes) -> JsonObject:
    """The contract that the recipient is to sign, with a text as long as its signature."""
    contract = {
        "recipient_signing_key_id": _key_id(request, "recipient"),
        **request.contract,  # with a key id of its own, null too, which the requestor has signed
        _EPHEMERAL_KEYS["recipient"][0]: b64encode(ephemeral_public),
    }
    return {
        CONTRACT: contract,
        "requestor_signature": request.signed["requestor_signature"],
        "recipient_signature": _NO_SIGNATURE,
    }


def _unsigned(
    request: ContractRequest, role: Role, resolve: Resolve, texts: Iterable[bytes]
) -> ContractRejection | None:
    """Why a party's signature holds over none of ``texts``, or None if it does."""
    document = resolve(request.requestor_did if role == "requestor" else request.recipient_did)
    if document is None:
        return ContractRejection(f"{CONTRACT}.{role}_did: does not resolve", unsigned=True)
    key = document.signing_keys.get(_key_id(request, role))
    if key is None:
        return ContractRejection(
            f"{CONTRACT}.{role}_signing_key_id: is not a signing key in the {role}'s document",
            unsigned=True,
        )
    signature = b64decode_exactly(request.signed[f"{role}_signature"], SIGNATURE_BYTES)
    if signature is None:
        return ContractRejection(
            f"{role}_signature: is not base64 of {SIGNATURE_BYTES} bytes", unsigned=True
        )
    if any(verify(key, text, signature) for text in texts):
        return None
    what = "the whole communication_contract"
    if role == "requestor":
        what = "communication_contract without what the recipient adds"
    return ContractRejection(f"{role}_signature: does not verify over {what}", unsigned=True)


def _requestor_terms(contract: Mapping[str, bytes]) -> Iterator[bytes]:
    """The texts that the requestor may have signed: without the recipient's additions.

    The contract does not show which party named the recipient's signing key: yield both forms.
    """
    added = set(_EPHEMERAL_KEYS["recipient"])
    yield object_of({name: text for name, text in contract.items() if name not in added})
    if "recipient_signing_key_id" in contract:
        added.add("recipient_signing_key_id")
        yield object_of({name: text for name, text in contract.items() if name not in added})


def _signed_text(signed: JsonObject, contract: bytes) -> bytes:
    """The canonical JSON of a signed contract, whose contract is written already."""
    return object_of({CONTRACT: contract} | {name: canonical(signed[name]) for name in _SIGNATURES})


def _stored(signed: JsonObject, contract: bytes, request: ContractRequest) -> VerifiedContract:
    # The digest covers the contract alone, and only the signed members are stored. Otherwise
    # unsigned members and other spellings of a signature could make one contract count as many, and
    # the first sender could make its owner store and read members that neither party signed.
    return VerifiedContract(
        requestor_did=request.requestor_did,
        recipient_did=request.recipient_did,
        expires_at_s=request.expires_at_s,
        digest=hashlib.sha256(contract).digest(),
        signed=_signed_text(signed, contract),
    )
