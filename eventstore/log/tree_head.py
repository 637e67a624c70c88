"""Heads of the log's tree: its size and root, and the signed note that states them. Pure.

The leaves of the tree are the seals of one database, in the order of the log. A head is a
checkpoint of transparency logs (C2SP tlog-checkpoint): origin, size and root, a line each::

    did:web:mediator.example
    20852163
    CsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=

The origin is the mediator's DID, and ``/db-1`` behind it for one database of several. A published
head commits the mediator to all that was sealed before it: each later head is consistent with it.
"""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Callable
from typing import Final, NamedTuple

from eventstore.log.databases import databases_among, folder_name
from eventstore.log.events import BatchSealed
from eventstore.log.merkle import HASH_BYTES, leaf_hash
from eventstore.log.public_key import PublicKey
from eventstore.log.signed_note import NoteRefused, read_note, sign_note, verified_text

_SEAL: Final = struct.Struct(">BQQQ32s")
_SEAL_FORMAT: Final = 1
_SIZE: Final = re.compile(r"0|[1-9][0-9]{0,19}")
_LINES_MIN: Final = 3


class TreeHead(NamedTuple):
    """The origin of a tree, which names it, its size and its root."""

    origin: str
    size: int
    root: bytes


def origin_of(mediator_did: str, database: int | None = None) -> str:
    """The origin of a mediator's log, or of one of its databases if it has several."""
    return mediator_did if database is None else f"{mediator_did}/{folder_name(database)}"


def is_origin_of(origin: str, mediator_did: str) -> bool:
    """Whether this is the origin of this mediator's log, or of a database of the log."""
    did, _, folder = origin.partition("/")
    return origin == mediator_did or (did == mediator_did and databases_among([folder]) > 0)


def seal_leaf(position: int, version: int, sealed: BatchSealed) -> bytes:
    """The leaf hash of a seal.

    The entry is a format byte (1), the seal's position in the log, its version in its partition's
    stream and its epoch (8 bytes each, big-endian), its digest (32 bytes), and the name of the
    partition in UTF-8.

    Raises:
        ValueError: no seal has these values.
    """
    try:
        numbers = _SEAL.pack(_SEAL_FORMAT, position, version, sealed.epoch, sealed.digest)
    except struct.error as error:
        raise ValueError(f"position {position} holds no seal of ours") from error
    if len(sealed.digest) != HASH_BYTES:
        raise ValueError(f"position {position} holds no seal of ours")
    return leaf_hash(numbers + sealed.partition.encode())


def sign_head(head: TreeHead, key: PublicKey, sign: Callable[[bytes], bytes]) -> bytes:
    """Sign the note of a head, under the origin as the name of the key.

    Raises:
        ValueError: the origin cannot be the name of a key.
    """
    root = base64.b64encode(head.root).decode("ascii")
    return sign_note(f"{head.origin}\n{head.size}\n{root}\n", head.origin, key, sign)


def read_head(content: bytes) -> TreeHead:
    """Read the head in a note without a check of its signatures.

    Raises:
        NoteRefused: it is no note, or its text is no head.
    """
    return _head(read_note(content).text)


def verified_head(content: bytes, key: PublicKey) -> TreeHead:
    """Read the head in a note, and verify that this key signed it under its origin's name.

    Raises:
        NoteRefused: it is no head, or the key has not signed it.
    """
    return _head(verified_text(content, read_head(content).origin, key))


def _head(text: str) -> TreeHead:
    origin, *rest = text.removesuffix("\n").split("\n")
    if len(rest) < _LINES_MIN - 1 or not all((origin, *rest)):
        raise NoteRefused("not a head: it must have origin, size and root on separate lines")
    size, root = rest[:2]
    try:
        decoded = base64.b64decode(root, validate=True)
    except ValueError as error:
        raise NoteRefused("the root is not base64") from error
    if not _SIZE.fullmatch(size):
        raise NoteRefused("the size is not a number")
    if len(decoded) != HASH_BYTES or base64.b64encode(decoded).decode("ascii") != root:
        raise NoteRefused(f"the root is not {HASH_BYTES} bytes in base64")
    return TreeHead(origin, int(size), decoded)
