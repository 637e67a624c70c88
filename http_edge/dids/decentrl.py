"""did:decentrl: a DID that is its own document (DCTRL-0001).

``did:decentrl:{alias}:{signing key}:{pre-key}:{mediator DID}``: alias and mediator DID in base64,
the keys in multibase. Resolution is parsing; nothing is fetched. Two texts can name the same
keys, so DIDs are compared as exact strings and never normalised.
"""

from __future__ import annotations

from typing import Final

from http_edge.crypto.encoding import (
    ED25519_PREFIX,
    X25519_PREFIX,
    b64decode,
    b64encode,
    multibase_decode,
    multibase_encode,
)
from http_edge.dids.document import DID_CHARS_MAX, DidDocument, signing_key_id

PREFIX: Final = "did:decentrl:"
ALIAS_BYTES_MAX: Final = 256


def make_did(alias: str, signing_public: bytes, pre_public: bytes, mediator_did: str) -> str:
    """The DID of an identity with these two 32-byte public keys.

    Raises:
        ValueError: the parts do not make a DID that resolves.
    """
    parts = (
        b64encode(alias.encode()),
        multibase_encode(ED25519_PREFIX, signing_public),
        multibase_encode(X25519_PREFIX, pre_public),
        b64encode(mediator_did.encode()),
    )
    did = PREFIX + ":".join(parts)
    if resolve(did) is None:
        raise ValueError("these parts make no did:decentrl")
    return did


def resolve(did: str) -> DidDocument | None:
    """The document that ``did`` encodes, or None if it is malformed."""
    found = read(did)
    return found if isinstance(found, DidDocument) else None


def read(did: str) -> DidDocument | str:
    """The document that ``did`` encodes, or which rule of the method ``did`` breaks."""
    if len(did) > DID_CHARS_MAX:
        return f"has more than {DID_CHARS_MAX} characters"
    parts = did.removeprefix(PREFIX).split(":")
    if not did.startswith(PREFIX) or len(parts) != 4:  # noqa: PLR2004 - as in the next line
        return "is not did:decentrl:ALIAS:SIGNING:PRE:MEDIATOR"
    alias, signing_key, pre_key, mediator_did = parts
    rule = f"has no alias of 1 to {ALIAS_BYTES_MAX} bytes of UTF-8, in base64"
    try:
        if not 0 < len(_text(alias).encode()) <= ALIAS_BYTES_MAX:
            return rule
        rule = "does not end with the DID of a mediator, in base64"
        if not _text(mediator_did).startswith("did:"):
            return rule
        rule = "has no Ed25519 key in multibase (z6Mk) as its signing key"
        signing_keys = {signing_key_id(did): multibase_decode(signing_key, ED25519_PREFIX)}
        rule = "has no X25519 key in multibase (z6LS) as its pre-key"
        return DidDocument(did, signing_keys, multibase_decode(pre_key, X25519_PREFIX))
    except ValueError:
        return rule


def mediator_of(did: str) -> str | None:
    """The DID of the mediator that a did:decentrl names; None for any other DID."""
    return None if resolve(did) is None else _text(did.rpartition(":")[2])


def _text(encoded: str) -> str:
    """Decode base64 to a UTF-8 text; raises ``ValueError`` for anything else."""
    return b64decode(encoded).decode()
