"""A did:webvh and its log, written by another hand than reads it; for tests."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any, Final

from base58 import b58encode
from rfc8785 import dumps

from http_edge.crypto.signatures import sign
from http_edge.didcomm.envelopes.keys import KeyPair
from http_edge.didcomm.envelopes.public_keys import Curve, PublicKey, write_multibase

PLACEHOLDER: Final = "{SCID}"


def multikey(pair: KeyPair) -> str:
    """The public half of a key as a log names it."""
    return write_multibase(PublicKey(Curve.ED25519, pair.public))


def multihash(content: bytes) -> str:
    """The hash by which a log names keys and entries."""
    return str(b58encode(b"\x12\x20" + sha256(content).digest()).decode())


class DidLog:
    """A log that grows by entries; ``did`` is known from the first one on."""

    def __init__(self, place: str) -> None:
        """The log of a DID at this place, for example ``agent.example%3A8443:alice``."""
        self._place = place
        self.entries: list[dict[str, Any]] = []
        self.scid = PLACEHOLDER

    @property
    def did(self) -> str:
        return f"did:webvh:{self.scid}:{self._place}"

    def add(
        self,
        state: dict[str, Any],
        signer: KeyPair,
        *,
        at: str = "",
        scid: str | None = "",
        **parameters: Any,
    ) -> None:
        """One entry more; ``{DID}`` in the state is the DID, ``scid`` claims another than is right.

        The first entry leaves its SCID out if ``scid`` is None.
        It comes a second after the one before, unless its time is ``at``.
        What it says is right as far as the arguments are: to break it, change ``entries``.
        """
        minutes, seconds = divmod(len(self.entries), 60)
        time = at or f"2026-01-01T00:{minutes:02}:{seconds:02}Z"
        entry: dict[str, Any] = {"versionTime": time, "parameters": parameters}
        if scid:
            entry["parameters"] = {**parameters, "scid": scid}
        if not self.entries:
            names = {} if scid is None else {"scid": PLACEHOLDER}
            entry["parameters"] = {"method": "did:webvh:1.0", **names, **parameters}
            entry["state"] = _filled(state, self.did)
            self.scid = scid or multihash(dumps({**entry, "versionId": PLACEHOLDER}))
            entry = json.loads(json.dumps(entry).replace(PLACEHOLDER, self.scid))
        entry["state"] = _filled(state, self.did)
        prior = self.entries[-1]["versionId"] if self.entries else self.scid
        number = len(self.entries) + 1
        entry["versionId"] = f"{number}-{multihash(dumps({**entry, 'versionId': prior}))}"
        self.entries.append({**entry, "proof": [proof_of(entry, signer)]})

    @property
    def text(self) -> bytes:
        """The file of it."""
        return b"\n".join(json.dumps(entry).encode() for entry in self.entries) + b"\n"


def proof_of(entry: dict[str, Any], signer: KeyPair, **other: Any) -> dict[str, Any]:
    """The signature of an entry (Data Integrity, eddsa-jcs-2022)."""
    key = multikey(signer)
    options = {
        "type": "DataIntegrityProof",
        "cryptosuite": "eddsa-jcs-2022",
        "verificationMethod": f"did:key:{key}#{key}",
        "created": "2026-01-01T00:00:00Z",
        "proofPurpose": "assertionMethod",
        **other,
    }
    unsigned = {name: value for name, value in entry.items() if name != "proof"}
    content = sha256(dumps(options)).digest() + sha256(dumps(unsigned)).digest()
    return {**options, "proofValue": "z" + b58encode(sign(signer.seed, content)).decode()}


def approval_of(version_id: str, *witnesses: KeyPair) -> dict[str, Any]:
    """One record of the file of witnesses: these have approved an entry."""
    content = {"versionId": version_id}
    return {**content, "proof": [proof_of(content, witness) for witness in witnesses]}


def _filled(state: dict[str, Any], did: str) -> dict[str, Any]:
    filled: dict[str, Any] = json.loads(json.dumps(state).replace("{DID}", did))
    return {"id": did, **filled}
