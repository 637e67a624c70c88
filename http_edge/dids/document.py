"""What this server takes from a DID document: the keys, by their ids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

DID_CHARS_MAX: Final = 1024
"""A longer DID does not resolve: the longest did:decentrl has about 900 characters."""


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
    """In place of a document: only the network knows."""

    NEEDED = "needed"


def signing_key_id(did: str) -> str:
    """The id of the signing key of a did:decentrl or of a mediator (DCTRL-0004 4.1, 3.2)."""
    return did + "#signing"
