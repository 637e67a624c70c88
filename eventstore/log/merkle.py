"""Merkle trees of RFC 6962 section 2 (RFC 9162 section 2.1): roots and proofs. Pure.

A tree is an ordered list of leaf hashes that only grows. Its root stands for all of them; an
inclusion proof shows that one leaf is in it, a consistency proof that an older tree is the
beginning of a newer one. Both have at most about two hashes for each doubling of the size.

Proofs are made from the hashes of complete subtrees (``Subtrees``), wherever those are kept
(``eventstore.log.tiles``). All hashes are SHA-256, 32 bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

HASH_BYTES: Final = 32
EMPTY_ROOT: Final = hashlib.sha256().digest()
"""The root of the tree without a leaf."""

Subtrees: TypeAlias = Callable[[int, int], bytes]
"""The root of a complete subtree by its height h and its number among those of the same height:
number i has the leaves from i * 2**h on, 2**h of them."""


def leaf_hash(entry: bytes) -> bytes:
    """The hash of a leaf, which represents an entry in the tree."""
    return hashlib.sha256(b"\x00" + entry).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """The hash of a node over the hashes of its two children."""
    return hashlib.sha256(b"\x01" + left + right).digest()


def complete_root(hashes: Sequence[bytes]) -> bytes:
    """The root of a complete subtree over the hashes of its 1, 2, 4, 8 … members."""
    level = list(hashes)
    while len(level) > 1:
        pairs = iter(level)
        level = [
            hashlib.sha256(b"\x01" + left + right).digest()
            for left, right in zip(pairs, pairs, strict=True)
        ]
    return level[0]


def tree_root(size: int, subtree: Subtrees) -> bytes:
    """The root of the tree of the first ``size`` leaves."""
    return _range_root(0, size, subtree) if size else EMPTY_ROOT


def inclusion_proof(index: int, size: int, subtree: Subtrees) -> list[bytes]:
    """Prove that the leaf at ``index``, from 0, is in the tree of the first ``size`` leaves.

    The proof has the siblings of the nodes from the leaf to the root, in this order
    (RFC 9162 2.1.3.1).

    Raises:
        ValueError: there is no such leaf.
    """
    if not 0 <= index < size:
        raise ValueError(f"no leaf {index} in a tree of {size}")
    proof: list[bytes] = []
    first, end = 0, size
    while end - first > 1:
        middle = first + _split(end - first)
        if index < middle:
            proof.append(_range_root(middle, end, subtree))
            end = middle
        else:
            proof.append(_range_root(first, middle, subtree))
            first = middle
    return proof[::-1]


def consistency_proof(old: int, new: int, subtree: Subtrees) -> list[bytes]:
    """Prove that the tree of ``old`` leaves is the beginning of that of ``new``.

    RFC 9162 2.1.4.1. The proof is empty if the trees are the same, or if the old one is empty.

    Raises:
        ValueError: the old tree is larger.
    """
    if not 0 <= old <= new:
        raise ValueError(f"a tree of {old} is no beginning of one of {new}")
    proof: list[bytes] = []
    first, end = 0, new
    while 0 < old < end:
        middle = first + _split(end - first)
        if old <= middle:
            proof.append(_range_root(middle, end, subtree))
            end = middle
        else:
            proof.append(_range_root(first, middle, subtree))
            first = middle
    if first > 0:  # otherwise the verifier has this hash: it is the old root
        proof.append(_range_root(first, end, subtree))
    return proof[::-1]


def is_included(leaf: bytes, index: int, size: int, proof: Sequence[bytes], root: bytes) -> bool:
    """Whether a proof shows that ``leaf``, a leaf hash, is at ``index`` of the tree of this root.

    RFC 9162 2.1.3.2.
    """
    if not 0 <= index < size:
        return False
    node, last, found = index, size - 1, leaf
    for sibling in proof:
        if last == 0:
            return False
        if node & 1 or node == last:
            found = node_hash(sibling, found)
            while not node & 1:
                node, last = node >> 1, last >> 1
        else:
            found = node_hash(found, sibling)
        node, last = node >> 1, last >> 1
    return last == 0 and found == root


def is_consistent(
    old: int, new: int, old_root: bytes, new_root: bytes, proof: Sequence[bytes]
) -> bool:
    """Whether a proof shows that the tree of ``old`` leaves is the beginning of that of ``new``.

    RFC 9162 2.1.4.2; an empty tree is the beginning of every tree.
    """
    if not 0 <= old <= new:
        return False
    if old in {0, new}:
        is_same = old_root == (new_root if old == new else EMPTY_ROOT)
        return is_same and not proof and (new > 0 or new_root == EMPTY_ROOT)
    # If its size is a power of two, the old tree is a subtree, and the proof omits its root.
    path = list(proof) if old & (old - 1) else [old_root, *proof]
    if not path:
        return False
    node, last = old - 1, new - 1
    while node & 1:
        node, last = node >> 1, last >> 1
    old_found = new_found = path[0]
    for sibling in path[1:]:
        if last == 0:
            return False
        if node & 1 or node == last:
            old_found = node_hash(sibling, old_found)
            new_found = node_hash(sibling, new_found)
            while not node & 1:
                node, last = node >> 1, last >> 1
        else:
            new_found = node_hash(new_found, sibling)
        node, last = node >> 1, last >> 1
    return last == 0 and old_found == old_root and new_found == new_root


def _split(count: int) -> int:
    """The largest power of two that is smaller than ``count``, which is at least 2."""
    return 1 << ((count - 1).bit_length() - 1)


def _range_root(first: int, end: int, subtree: Subtrees) -> bytes:
    """The root of the leaves from ``first`` to before ``end``.

    A complete subtree that is at least as large as the range must begin at ``first``.
    """
    hashes = []
    while first < end:
        height = (end - first).bit_length() - 1
        hashes.append(subtree(height, first >> height))
        first += 1 << height
    # Each subtree is smaller than the one before it.
    root = hashes.pop()
    while hashes:
        root = node_hash(hashes.pop(), root)
    return root
