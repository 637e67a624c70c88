"""The root of a Merkle tree as RFC 6962 defines it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence


def by_definition(leaves: Sequence[bytes]) -> bytes:
    """RFC 6962 section 2.1, word for word, over leaf hashes."""
    if not leaves:
        return hashlib.sha256(b"").digest()
    if len(leaves) == 1:
        return leaves[0]
    middle = 1
    while middle * 2 < len(leaves):
        middle *= 2
    left, right = by_definition(leaves[:middle]), by_definition(leaves[middle:])
    return hashlib.sha256(b"\x01" + left + right).digest()
