"""did:webvh: a DID whose document is the last state of a log that proves itself (did:webvh 1.0).

The log stands with a host, one entry in a line. The DID holds the hash of the first entry; each
entry holds the hash of the one before, and a signature by a key that the log authorized before it.
So a host can keep back what is new and can forge nothing. A log that names witnesses is not read:
their proofs stand in another file, and without them it says less than it promises.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from hashlib import sha256
from typing import Any, Final, Literal

import msgspec
from base58 import b58decode, b58encode
from yarl import URL

from http_edge.crypto.canonical_json import canonical
from http_edge.crypto.encoding import ED25519_PREFIX, multibase_decode
from http_edge.crypto.signatures import verify
from http_edge.crypto.strict_json import parse
from http_edge.dids import web

PREFIX: Final = "did:webvh:"
ENTRIES_MAX: Final = 64
"""Entries of one log, two hashes and a signature each; with more it is not read."""
_METHOD: Final = "did:webvh:1.0"
_FILE: Final = "did.jsonl"
_SCID: Final = re.compile(r"Qm[1-9A-HJ-NP-Za-km-z]{44}\Z")
_PLACEHOLDER: Final = "{SCID}"
_SHA2_256: Final = b"\x12\x20"
"""Multihash: SHA2-256, of 32 bytes."""
_PROOFS_MAX: Final = 4
_SIGNATURE_CHARS_MAX: Final = 100
_PROOF_VALUE: Final = "proofValue"


class _Parameters(msgspec.Struct, frozen=True, rename="camel"):
    method: str | None = None
    scid: str | None = None
    update_keys: list[str] | None = None
    next_key_hashes: list[str] | None = None
    portable: bool | None = None
    deactivated: bool | None = None
    witness: dict[str, object] | None = None


class _State(msgspec.Struct, frozen=True):
    id: str


class _Proof(msgspec.Struct, frozen=True, rename="camel"):
    type: Literal["DataIntegrityProof"]
    cryptosuite: Literal["eddsa-jcs-2022"]
    verification_method: str
    proof_purpose: Literal["assertionMethod"]
    proof_value: str


class _Entry(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    version_id: str
    version_time: datetime
    parameters: _Parameters
    state: _State
    proof: list[_Proof]


class _Authority(msgspec.Struct, frozen=True):
    """What the log says so far: where it stands, and who may go on."""

    version_id: str
    at: datetime | None = None
    did: str = ""
    portable: bool = False
    keys: Sequence[str] = ()
    next_hashes: Sequence[str] = ()


def log_url(did: str) -> URL | None:
    """Where the log of a did:webvh is, or None if it is malformed."""
    scid, _, place = did.removeprefix(PREFIX).partition(":")
    if not did.startswith(PREFIX) or not _SCID.match(scid):
        return None
    url = web.document_url(web.PREFIX + place)
    return None if url is None else url.with_name(_FILE)


def read_log(did: str, body: bytes, now_s: float) -> dict[str, Any] | None:
    """The document of ``did`` as of the last entry of its log; None where any part is not right.

    ``now_s`` is the time, Unix seconds: no entry is later.
    """
    scid = did.removeprefix(PREFIX).partition(":")[0]
    lines = body.splitlines()
    if not did.startswith(PREFIX) or not 0 < len(lines) <= ENTRIES_MAX:
        return None
    so_far = _Authority(scid)
    value: Any = None
    try:
        for number, line in enumerate(lines, 1):
            value = parse(line)
            following = _followed(number, so_far, value, scid)
            if following is None:
                return None
            so_far = following
    except ValueError:  # also what JsonRefused, NotCanonical and msgspec.ValidationError are
        return None
    if so_far.did != did or so_far.at is None or so_far.at.timestamp() > now_s:
        return None
    document: dict[str, Any] = value["state"]
    return document


def _followed(number: int, so_far: _Authority, value: Any, scid: str) -> _Authority | None:
    """What the log says with one entry more; None where the entry is not right."""
    entry = msgspec.convert(value, _Entry)
    said, did = entry.parameters, entry.state.id
    if number == 1 and (said.method != _METHOD or said.scid != scid or not _is_first(value, scid)):
        return None
    if said.method not in {None, _METHOD} or said.scid not in {None, scid}:
        return None
    if said.deactivated or said.witness or entry.version_time.tzinfo is None:
        return None
    if so_far.at is not None and entry.version_time < so_far.at:
        return None
    is_moved = bool(so_far.did) and did != so_far.did
    if not did.startswith(f"{PREFIX}{scid}:") or (is_moved and not so_far.portable):
        return None
    if entry.version_id != f"{number}-{_hash_of({**value, 'versionId': so_far.version_id})}":
        return None
    keys = _authorized(number, so_far, said)
    if keys is None or not _is_signed(value, entry.proof, keys):
        return None
    return _Authority(
        entry.version_id,
        entry.version_time,
        did,
        portable=bool(said.portable) if number == 1 else so_far.portable,
        keys=so_far.keys if said.update_keys is None else said.update_keys,
        next_hashes=so_far.next_hashes if said.next_key_hashes is None else said.next_key_hashes,
    )


def _authorized(number: int, so_far: _Authority, said: _Parameters) -> Sequence[str] | None:
    """The keys that may sign an entry; None where it lacks those that were announced by hash.

    They are its own if it is the first or they were announced, else those of before.
    """
    own = said.update_keys or ()
    if so_far.next_hashes:
        announced = all(_multihash(key.encode()) in so_far.next_hashes for key in own)
        return own if own and announced else None
    return own if number == 1 else so_far.keys


def _is_first(value: dict[str, Any], scid: str) -> bool:
    """Is the DID's own part the hash of this entry, with a placeholder for itself?"""
    text = canonical({**_unsigned(value), "versionId": _PLACEHOLDER}).decode()
    return _multihash(text.replace(scid, _PLACEHOLDER).encode()) == scid


def _is_signed(value: dict[str, Any], proofs: Sequence[_Proof], keys: Sequence[str]) -> bool:
    """Has one of the keys signed the entry (Data Integrity, eddsa-jcs-2022)?"""
    content = sha256(canonical(_unsigned(value))).digest()
    for proof, raw in zip(proofs[:_PROOFS_MAX], value["proof"], strict=False):
        named = (key for key in keys if proof.verification_method == f"did:key:{key}#{key}")
        key, text = next(named, None), proof.proof_value
        if key is None or not text.startswith("z") or len(text) > _SIGNATURE_CHARS_MAX:
            continue
        options = {name: each for name, each in raw.items() if name != _PROOF_VALUE}
        signed = sha256(canonical(options)).digest() + content
        if verify(multibase_decode(key, ED25519_PREFIX), signed, b58decode(text[1:])):
            return True
    return False


def _hash_of(value: dict[str, Any]) -> str:
    return _multihash(canonical(_unsigned(value)))


def _unsigned(value: dict[str, Any]) -> dict[str, Any]:
    return {name: each for name, each in value.items() if name != "proof"}


def _multihash(content: bytes) -> str:
    digits: bytes = b58encode(_SHA2_256 + sha256(content).digest())
    return digits.decode("ascii")
