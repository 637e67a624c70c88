"""Streams: the ids that group the rows of a log, and the erased form of stream names."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final
from uuid import NAMESPACE_URL, UUID, uuid5

STREAM_BYTES: Final = 16
NAMESPACE: Final = uuid5(NAMESPACE_URL, "urn:poste-restante:stream")
ERASED: Final = "erased:"
"""Prefix of the erased form of a name; the id of its stream follows, in hexadecimal."""
KINDS: Final = ("key:", "invitation:")
"""Prefixes of the names of the streams of keys and invitations."""
_NAME: Final = re.compile(rf"({'|'.join(KINDS)})?{ERASED}([0-9a-f]{{32}})")


def identity_stream(did: str) -> UUID:
    """The stream id of an identity: UUIDv5 of its DID, compared as an exact string."""
    return uuid5(NAMESPACE, "identity:" + did)


@lru_cache(maxsize=4_096)
def partition_stream(partition: str) -> UUID:
    """The stream id that holds the seals of a partition."""
    return uuid5(NAMESPACE, "partition:" + partition)


def stream_of(name: str) -> bytes:
    """The stream (16 bytes) of a name or of the erased form of one."""
    erased = _NAME.fullmatch(name)
    return bytes.fromhex(erased[2]) if erased else identity_stream(name).bytes


def is_erased_name(name: str) -> bool:
    """Whether this is the erased form of a name."""
    return _NAME.fullmatch(name) is not None


def erased_name(name: str) -> str:
    """The erased form of the name of a stream."""
    kind = next((one for one in KINDS if name.startswith(one)), "")
    return f"{kind}{ERASED}{stream_of(name).hex()}"


def is_same_name(name: str | None, other: str | None) -> bool:
    """Whether two names of streams are equal, or one is the erased form of the other."""
    if name == other or name is None or other is None:
        return name == other
    return erased_name(name) == erased_name(other)
