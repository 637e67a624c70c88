"""Check the proofs of a did:webvh log: of its entries, and by its witnesses (did:webvh 1.0).

They are Data Integrity proofs (cryptosuite eddsa-jcs-2022) by did:key. Those of the witnesses are
in a file beside the log: one approves one entry and all before it. A host can rewrite a log only if
a threshold of its witnesses agrees.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, Final, Literal

import msgspec
from base58 import b58decode

from http_edge.crypto.canonical_json import canonical
from http_edge.crypto.encoding import ED25519_PREFIX, multibase_decode
from http_edge.crypto.signatures import verify
from http_edge.crypto.strict_json import parse

WITNESSES_MAX: Final = 16
"""Witnesses of one entry; a DID with more is not resolved."""
PROOFS_MAX: Final = 64
"""Signatures to check in one file, those of the newest entries first."""
_DID_KEY: Final = "did:key:"
_SIGNATURE_CHARS_MAX: Final = 100
_PROOF_VALUE: Final = "proofValue"


class Proof(msgspec.Struct, frozen=True, rename="camel"):
    """The members of a proof that are checked; the signature covers the others as well."""

    type: Literal["DataIntegrityProof"]
    cryptosuite: Literal["eddsa-jcs-2022"]
    verification_method: str
    proof_purpose: Literal["assertionMethod"]
    proof_value: str

    def is_by(self, key: str) -> bool:
        """Does the proof name this Ed25519 key, given as multibase?"""
        return self.verification_method == method_of(key)


def method_of(key: str) -> str:
    """The verification method by which a proof names an Ed25519 key, given as multibase."""
    return f"{_DID_KEY}{key}#{key}"


def is_proven(proof: Proof, written: dict[str, Any], key: str, content: object) -> bool:
    """Has ``key``, which the proof names, signed ``content``? ``written`` is the proof's JSON.

    Raises:
        ValueError: not a key, not a base58 signature, or a value without a canonical form.
    """
    text = proof.proof_value
    if not text.startswith("z") or len(text) > _SIGNATURE_CHARS_MAX:
        return False
    options = {name: each for name, each in written.items() if name != _PROOF_VALUE}
    signed = sha256(canonical(options)).digest() + sha256(canonical(content)).digest()
    return verify(multibase_decode(key, ED25519_PREFIX), signed, b58decode(text[1:]))


class _Witness(msgspec.Struct, frozen=True):
    id: str


class Witnesses(msgspec.Struct, frozen=True):
    """The witnesses of entries: their keys as multibase, and how many must approve; or none."""

    threshold: int = 0
    keys: Sequence[str] = ()


class _Parameter(msgspec.Struct, frozen=True):
    threshold: int
    witnesses: list[_Witness]


class _Approval(msgspec.Struct, frozen=True, rename="camel"):
    version_id: str
    proof: list[dict[str, Any]]


def read_witnesses(parameter: dict[str, Any]) -> Witnesses | None:
    """Read the parameter ``witness`` of a log; None if it is invalid.

    Raises:
        msgspec.ValidationError: the parameter has another shape.
    """
    if not parameter:
        return Witnesses()
    said = msgspec.convert(parameter, _Parameter)
    keys = [each.id.removeprefix(_DID_KEY) for each in said.witnesses]
    are_right = all(each.id.startswith(_DID_KEY) for each in said.witnesses)
    if not are_right or not len(set(keys)) == len(keys) <= WITNESSES_MAX:
        return None
    return Witnesses(said.threshold, keys) if 1 <= said.threshold <= len(keys) else None


def are_approved(required: Mapping[str, Witnesses], body: bytes) -> bool:
    """Have enough witnesses approved each entry of a log, by the proofs in the file ``body``?

    ``required`` are the witnesses of each entry by its version id, in the order of the log.

    Raises:
        ValueError: ``body`` is not a file of proofs.
    """
    if not any(witnesses.keys for witnesses in required.values()):
        return True
    approved = _approved(required, msgspec.convert(parse(body), list[_Approval]))
    return all(
        sum(approved.get(key, 0) >= number for key in witnesses.keys) >= witnesses.threshold
        for number, witnesses in enumerate(required.values(), 1)
    )


def _approved(
    required: Mapping[str, Witnesses], approvals: Sequence[_Approval]
) -> Mapping[str, int]:
    """The number of the last entry that each witness has approved."""
    numbers = {version_id: number for number, version_id in enumerate(required, 1)}
    # By verification method: a file may have thousands of proofs, a log hundreds of witnesses.
    keys = {method_of(key): key for witnesses in required.values() for key in witnesses.keys}
    # A proof for an entry that is not published yet does not approve the published ones.
    published = [each for each in approvals if each.version_id in numbers]
    published.sort(key=lambda each: numbers[each.version_id], reverse=True)
    approved: dict[str, int] = {}
    checked = 0
    for each in published:
        content = {"versionId": each.version_id}
        for written in each.proof:
            method = written.get("verificationMethod")
            signer = keys.get(method) if isinstance(method, str) else None
            if signer is None or signer in approved:
                continue
            checked += 1
            if checked > PROOFS_MAX:
                return approved
            if _is_signed(written, signer, content):
                approved[signer] = numbers[each.version_id]
    return approved


def _is_signed(written: dict[str, Any], key: str, content: object) -> bool:
    """Is a proof valid? An invalid one does not affect the others."""
    try:
        return is_proven(msgspec.convert(written, Proof), written, key, content)
    except ValueError:
        return False
