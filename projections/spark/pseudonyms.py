"""Pseudonyms: names replaced by a keyed hash, so that tables can be shown and still be joined.

A pseudonym is HMAC-SHA256 (RFC 2104) of the name, the first 128 bits: the same name and key give
the same pseudonym everywhere, and without the key the name cannot be found out, nor a guess
be tried. Spark computes it, as an expression of its own functions.

What is replaced (``NAMING``): all that names a peer, and all text that a peer chose. Ids that
the mediator made, times, sizes and digests stay, so that a row can still be found in the log by
any reader of the log. The keys of nonces stay, too: they are hashes over a sender and a nonce, and
identify a sender only if the nonce is known. The empty text and null stay.

Who sees the plan of a query (the pages and event logs of a Spark cluster) can read the key from it.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import stat
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that all of Spark's users know
from pyspark.sql.types import ArrayType, BinaryType, DataType, StringType, StructType

PREFIX: Final = "p:"
KEY_BYTES_MIN: Final = 32
KEY_BYTES_MAX: Final = 4_096
_BLOCK_BYTES: Final = 64
_DIGITS: Final = 32
_OUTER, _INNER = 0x5C, 0x36
_FINGERPRINT_OF: Final = b"poste pseudonyms, version 1"
_OTHERS: Final = 0o077
_WITH_KINDS: Final = ("identity", "shard", "partition")
"""Columns whose values say by a prefix what they name."""
_KINDS: Final = ("key:", "invitation:")
_OURS: Final = ("shard-", "edge:")

NAMING: Final[Mapping[str, str]] = {
    "identity": "a DID; of key:… and invitation:… what follows; edge:… is a name of ours",
    "stream": "it follows from the identity",
    "shard": "a DID, where an identity has a partition of its own; shard-… is a name of ours",
    "partition": "as shard",
    "sender_did": "a DID",
    "recipient_did": "a DID",
    "requestor_did": "a DID",
    "did": "a DID",
    "peer_did": "a DID",
    "owner_did": "a DID",
    "by_did": "a DID",
    "speaker_did": "a DID",
    "account_did": "a DID",
    "recipient_key": "a key belongs to one peer",
    "key": "as recipient_key",
    "keys_added": "as recipient_key",
    "keys_removed": "as recipient_key",
    "routing_keys": "keys of the peer's other mediators",
    "label": "what a peer calls itself",
    "endpoint": "where a peer is reached",
    "invitation_id": "who invited knows for whom it was",
    "channel_id": "text that a peer chose",
    "tags": "text that a peer chose",
    "refusals": "the senders in it",
}
"""The columns that name an identity or a peer, of events and of tables, each with the reason."""


class KeyRefused(Exception):
    """The key of the pseudonyms cannot be used."""


def read_key(path: str | Path) -> bytes:
    """The key in a file: its bytes as they are, line ends included.

    Raises:
        KeyRefused: the file cannot be read, others can read it, or it is too short or too long.
    """
    try:
        with Path(path).open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            key = file.read(KEY_BYTES_MAX + 1)
    except OSError as error:
        raise KeyRefused(f"the key of the pseudonyms cannot be read: {error}") from error
    if stat.S_ISREG(mode) and mode & _OTHERS:
        raise KeyRefused(f"{path} is open to others: chmod 600 {path}")
    if not KEY_BYTES_MIN <= len(key) <= KEY_BYTES_MAX:
        raise KeyRefused(
            f"{path} does not hold {KEY_BYTES_MIN} to {KEY_BYTES_MAX} bytes:"
            f" make a key with head -c {KEY_BYTES_MIN} /dev/urandom"
        )
    return key


def fingerprint(key: bytes | None) -> str:
    """Distinguishes one key from another and reveals nothing of it; empty for no key."""
    return _digest(key, _FINGERPRINT_OF) if key is not None else ""


def pseudonym_of(name: str, key: bytes) -> str:
    """The pseudonym of one name, here and without Spark; the empty text stays."""
    return PREFIX + _digest(key, name.encode()) if name else name


def pseudonym(column: Column, key: bytes) -> Column:
    """The pseudonyms of a column of texts: ``p:`` and 32 digits; empty and null stay."""
    return F.when(column == "", column).otherwise(
        F.concat(F.lit(PREFIX), _digests(column.cast("binary"), key))
    )


def pseudonymised(
    frame: DataFrame, key: bytes, columns: Collection[str] = NAMING.keys()
) -> DataFrame:
    """The rows with pseudonyms in those of the columns that they have.

    Binary values become the 16 bytes of the pseudonym; the elements of arrays are replaced one by
    one, and of an array of structs the members that are named in ``NAMING``.
    """
    replaced = {
        field.name: _replaced(F.col(field.name), field.dataType, key, field.name)
        for field in frame.schema
        if field.name in columns
    }
    return frame.withColumns(replaced)


def _replaced(column: Column, kind: DataType, key: bytes, name: str) -> Column:
    match kind:
        case StringType():
            return _of_kinds(column, key) if name in _WITH_KINDS else pseudonym(column, key)
        case BinaryType():
            return F.unhex(_digests(column, key))
        case ArrayType(elementType=element):
            return F.transform(column, lambda each: _replaced(each, element, key, ""))
        case StructType():
            for field in kind:
                if field.name in NAMING:
                    member = _replaced(column[field.name], field.dataType, key, field.name)
                    column = column.withField(field.name, member)
            return column
        case _:
            raise TypeError(f"{name}: no pseudonyms of {kind.simpleString()}")


def _of_kinds(column: Column, key: bytes) -> Column:
    is_ours, kind = F.lit(col=False), F.lit("")
    for prefix in _OURS:
        is_ours |= column.startswith(prefix)
    for prefix in _KINDS:
        kind = F.when(column.startswith(prefix), F.lit(prefix)).otherwise(kind)
    rest = F.substring(column, F.length(kind) + 1, F.length(column))
    return F.when(is_ours, column).otherwise(F.concat(kind, pseudonym(rest, key)))


def _digests(binary: Column, key: bytes) -> Column:
    """The first 128 bits of the HMAC of each value, as digits."""
    block = (hashlib.sha256(key).digest() if len(key) > _BLOCK_BYTES else key).ljust(
        _BLOCK_BYTES, b"\0"
    )
    inner, outer = (F.lit(bytes(b ^ pad for b in block)) for pad in (_INNER, _OUTER))
    inside = F.unhex(F.sha2(F.concat(inner, binary), 256))
    return F.substring(F.sha2(F.concat(outer, inside), 256), 1, _DIGITS)


def _digest(key: bytes, content: bytes) -> str:
    return hmac.new(key, content, hashlib.sha256).hexdigest()[:_DIGITS]
