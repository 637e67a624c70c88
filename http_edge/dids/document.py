"""DID documents: what is read of them.

Signing keys are read only from ``verificationMethod``, so a pre-key can never verify a signature;
the pre-key is embedded in ``keyAgreement`` (DCTRL-0004 3.2).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import Final

from http_edge.crypto.encoding import ED25519_PREFIX, X25519_PREFIX, multibase_decode

DID_CHARS_MAX: Final = 1024
"""A longer DID does not resolve: the longest did:decentrl has about 900 characters."""
SIGNING_KEYS_MAX: Final = 16
"""Signing keys that are read from one document; further ones are ignored."""
_KEY_ID_CHARS_MAX: Final = DID_CHARS_MAX + 256


@dataclass(frozen=True, slots=True)
class DidDocument:
    """A resolved DID.

    ``signing_keys`` holds the Ed25519 keys by absolute key id, ``pre_key`` the X25519 key; all
    have 32 bytes. Key ids and DIDs are compared as exact strings.
    """

    did: str
    signing_keys: Mapping[str, bytes]
    pre_key: bytes | None


class Fetch(Enum):
    """Stands for a document of the network that is not known."""

    NEEDED = "needed"
    """The document must be fetched."""
    FAILED = "failed"
    """Its host did not answer; it may do so later."""


def signing_key_id(did: str) -> str:
    """The id of the signing key of a did:decentrl or of a mediator (DCTRL-0004 4.1, 3.2)."""
    return did + "#signing"


def read_document(did: str, value: object) -> DidDocument | None:
    """Read a JSON document; None if it is not the document of ``did``.

    Keys in other forms than Ed25519 and X25519 multibase are skipped.
    """
    if not isinstance(value, dict) or value.get("id") != did:
        return None
    signing_keys = _keys(did, value.get("verificationMethod"), ED25519_PREFIX)
    pre_keys = _keys(did, value.get("keyAgreement"), X25519_PREFIX)
    return DidDocument(
        did=did,
        signing_keys=dict(islice(signing_keys, SIGNING_KEYS_MAX)),
        pre_key=next((key for _, key in pre_keys), None),
    )


def _keys(did: str, methods: object, prefix: bytes) -> Iterator[tuple[str, bytes]]:
    for method in methods if isinstance(methods, list) else ():
        match method:
            case {"id": str(key_id), "publicKeyMultibase": str(multibase)}:
                absolute = did + key_id if key_id.startswith("#") else key_id
                if not absolute.startswith(did + "#") or len(absolute) > _KEY_ID_CHARS_MAX:
                    continue
                try:
                    yield absolute, multibase_decode(multibase, prefix)
                except ValueError:
                    continue
            case _:
                continue
