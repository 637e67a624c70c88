"""did:webvh: a DID whose document is the last state of a self-certifying log (did:webvh 1.0).

A host serves the log, one entry per line. The DID contains the hash of the first entry. Each entry
contains the hash of the one before, and a signature by a key that the log has authorized. So a host
can withhold new entries but cannot forge any. If the log names witnesses, a threshold of them must
have approved each entry, in a file beside the log (``webvh_proofs``).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from hashlib import sha256
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType
from yarl import URL

from http_edge.crypto.canonical_json import canonical
from http_edge.crypto.encoding import base58_encode
from http_edge.crypto.strict_json import parse
from http_edge.dids import web
from http_edge.dids.webvh_proofs import Proof, Witnesses, are_approved, is_proven, read_witnesses

PREFIX: Final = "did:webvh:"
ENTRIES_MAX: Final = 64
"""Entries of one log, two hashes and a signature each; a longer log is not read."""
KEYS_MAX: Final = 32
"""Keys that one entry may authorize, and hashes that it may announce; with more the log is not
read: each key is compared with the announced hashes, and with every proof of later entries."""
_METHOD: Final = "did:webvh:1.0"
_FILE: Final = "did.jsonl"
_WITNESS_FILE: Final = "did-witness.json"
_SCID: Final = re.compile(r"Qm[1-9A-HJ-NP-Za-km-z]{44}\Z")
_PLACEHOLDER: Final = "{SCID}"
_SHA2_256: Final = b"\x12\x20"
"""Multihash: SHA2-256, of 32 bytes."""
_PROOFS_MAX: Final = 4


class _Parameters(msgspec.Struct, frozen=True, rename="camel"):
    """What an entry says of the log; unset is as before.

    Early logs write null for a default, which ends announced keys and witnesses.
    """

    method: str | None = None
    scid: str | None = None
    update_keys: list[str] | None = None
    next_key_hashes: list[str] | UnsetType | None = UNSET
    portable: bool | None = None
    deactivated: bool | None = None
    witness: dict[str, Any] | UnsetType | None = UNSET


class _State(msgspec.Struct, frozen=True, rename="camel"):
    id: str
    also_known_as: Any = None


class _Entry(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    version_id: str
    version_time: datetime
    parameters: _Parameters
    state: _State
    proof: list[Proof]


class _Authority(msgspec.Struct, frozen=True):
    """The state of the log after some entries: its version, its DID, and who may append."""

    version_id: str
    at: datetime | None = None
    did: str = ""
    portable: bool = False
    keys: Sequence[str] = ()
    next_hashes: Sequence[str] = ()
    witnesses: Witnesses = Witnesses()


def log_url(did: str) -> URL | None:
    """The URL of a did:webvh's log, or None if the DID is malformed."""
    scid, _, place = did.removeprefix(PREFIX).partition(":")
    if not did.startswith(PREFIX) or not _SCID.match(scid):
        return None
    url = web.document_url(web.PREFIX + place)
    return None if url is None else url.with_name(_FILE)


def witness_url(did: str, body: bytes) -> URL | None:
    """The URL of the witness proofs that the log in ``body`` requires; None if it requires none."""
    try:
        entries = [parse(line) for line in body.strip().splitlines()[:ENTRIES_MAX]]
    except ValueError:
        return None
    url = log_url(did)
    named = (each.get("parameters") for each in entries if isinstance(each, dict))
    if url is None or not any(isinstance(each, dict) and each.get("witness") for each in named):
        return None
    return url.with_name(_WITNESS_FILE)


def read_log(did: str, body: bytes, now_s: float, proofs: bytes = b"") -> dict[str, Any] | None:
    """The document of ``did`` by the last entry of its log; None if any part of it is invalid.

    ``now_s`` is the current time in Unix seconds: no entry may be later. ``proofs`` is the file of
    witness proofs, if the log has witnesses (``witness_url``).
    """
    scid = did.removeprefix(PREFIX).partition(":")[0]
    lines = body.strip().splitlines()
    if len(lines) > ENTRIES_MAX:
        return None
    so_far = _Authority(scid)
    required: dict[str, Witnesses] = {}
    value: Any = None
    try:
        for number, line in enumerate(lines, 1):
            value = parse(line)
            following = _followed(number, so_far, value, scid)
            if following is None:
                return None
            # The witnesses in force before an entry approve it; the first ones also approve the
            # entry that names them.
            required[following.version_id] = (
                so_far.witnesses if so_far.witnesses.keys else following.witnesses
            )
            so_far = following
        if not are_approved(required, proofs):
            return None
    except ValueError:  # includes JsonRefused, NotCanonical and msgspec.ValidationError
        return None
    if so_far.did != did or so_far.at is None or so_far.at.timestamp() > now_s:
        return None
    document: dict[str, Any] = value["state"]
    return document


def _followed(number: int, so_far: _Authority, value: Any, scid: str) -> _Authority | None:
    """The state of the log after one more entry; None if the entry is invalid."""
    entry = msgspec.convert(value, _Entry)
    said, did = entry.parameters, entry.state.id
    if number == 1 and (said.method != _METHOD or said.scid != scid or not _is_first(value, scid)):
        return None
    if said.method not in {None, _METHOD} or said.scid not in {None, scid}:
        return None
    if said.deactivated or entry.version_time.tzinfo is None:
        return None
    if max(len(said.update_keys or ()), len(said.next_key_hashes or ())) > KEYS_MAX:
        return None
    is_unset = isinstance(said.witness, UnsetType)
    witnesses = so_far.witnesses if is_unset else read_witnesses(said.witness or {})
    if witnesses is None:
        return None
    if so_far.at is not None and entry.version_time <= so_far.at:
        return None
    # Only the first entry can make a log portable; a later one can end that for good.
    portable = (
        bool(said.portable) if number == 1 else so_far.portable and said.portable is not False
    )
    if not did.startswith(f"{PREFIX}{scid}:") or not _stays(
        so_far.did, entry.state, portable=portable
    ):
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
        portable=portable,
        keys=so_far.keys if said.update_keys is None else said.update_keys,
        next_hashes=(
            so_far.next_hashes if said.next_key_hashes is UNSET else said.next_key_hashes or ()
        ),
        witnesses=witnesses,
    )


def _stays(prior_did: str, state: _State, *, portable: bool) -> bool:
    """Does an entry keep the DID, or move it by the rules (section "DID Portability")?"""
    if prior_did in {"", state.id}:
        return True
    return portable and isinstance(state.also_known_as, list) and prior_did in state.also_known_as


def _authorized(number: int, so_far: _Authority, said: _Parameters) -> Sequence[str] | None:
    """The keys that may sign an entry; None if hashes were announced and it does not follow them.

    Such an entry has keys with these hashes, and announces the next ones or none. The entry's own
    keys may sign it if it is the first or they were announced, else the keys of the log before it.
    """
    own = said.update_keys or ()
    if so_far.next_hashes:
        announced = all(_multihash(key.encode()) in so_far.next_hashes for key in own)
        return own if announced and said.next_key_hashes is not UNSET else None
    return own if number == 1 else so_far.keys


def _is_first(value: dict[str, Any], scid: str) -> bool:
    """Is the SCID of the DID the hash of this entry, with a placeholder for the SCID?"""
    text = canonical({**_unsigned(value), "versionId": _PLACEHOLDER}).decode()
    return _multihash(text.replace(scid, _PLACEHOLDER).encode()) == scid


def _is_signed(value: dict[str, Any], proofs: Sequence[Proof], keys: Sequence[str]) -> bool:
    """Has one of the keys signed the entry (Data Integrity, eddsa-jcs-2022)?"""
    content = _unsigned(value)
    for proof, written in zip(proofs[:_PROOFS_MAX], value["proof"], strict=False):
        key = next(filter(proof.is_by, keys), None)
        if key is not None and is_proven(proof, written, key, content):
            return True
    return False


def _hash_of(value: dict[str, Any]) -> str:
    return _multihash(canonical(_unsigned(value)))


def _unsigned(value: dict[str, Any]) -> dict[str, Any]:
    return {name: each for name, each in value.items() if name != "proof"}


def _multihash(content: bytes) -> str:
    return base58_encode(_SHA2_256 + sha256(content).digest())
