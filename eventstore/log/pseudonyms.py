"""Pseudonyms: keyed hashes in place of names, so that the records can still be joined.

A pseudonym is the first 128 bits of HMAC-SHA256 (RFC 2104) of the name: the same name and key give
the same pseudonym everywhere, and no one without the key can find the name or test a guess.

Pseudonyms replace all names of peers, and all text that a peer chose (``NAMING``). Ids that
the mediator made, times, sizes and digests stay, so that a reader of the log can still find a row
there. The keys of nonces stay, too: they are hashes over a sender and a nonce, and
identify a sender only if the nonce is known. The empty text and null stay.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from eventstore.log.streams import KINDS

PREFIX: Final = "p:"
KEY_BYTES_MIN: Final = 32
KEY_BYTES_MAX: Final = 4_096
DIGITS: Final = 32
"""The hexadecimal digits of 128 bits."""
_FINGERPRINT_OF: Final = b"poste pseudonyms, version 2"
"""The version changes with the columns of ``NAMING``: a rebuild must not continue other tables."""
_SHOWN_AS: Final = {"seal_partition": "shard"}
_OTHERS: Final = 0o077
WITH_KINDS: Final = ("identity", "shard", "partition")
"""Columns whose values have a prefix that says what they name."""
OURS: Final = ("shard-", "edge:")

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
    "contract_id": "in saved events, text that a peer chose",
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
        raise KeyRefused(f"other users can read {path}: chmod 600 {path}")
    if not KEY_BYTES_MIN <= len(key) <= KEY_BYTES_MAX:
        raise KeyRefused(
            f"{path} does not hold {KEY_BYTES_MIN} to {KEY_BYTES_MAX} bytes:"
            f" make a key with head -c {KEY_BYTES_MIN} /dev/urandom"
        )
    return key


def fingerprint(key: bytes | None) -> str:
    """A digest that tells keys apart and reveals nothing of them; empty for no key."""
    return _digest(key, _FINGERPRINT_OF) if key is not None else ""


def pseudonym_of(name: str, key: bytes) -> str:
    """The pseudonym of one name, made without Spark; the empty text stays."""
    return PREFIX + _digest(key, name.encode()) if name else name


def pseudonymous(record: Mapping[str, Any], key: bytes) -> dict[str, Any]:
    """A record with pseudonyms in the columns of ``NAMING``, also in nested records."""
    return {name: _hidden(name, value, key) for name, value in record.items()}


def _hidden(name: str, value: Any, key: bytes) -> Any:
    if isinstance(value, Mapping):
        return pseudonymous(value, key)
    name = _SHOWN_AS.get(name, name)
    if name not in NAMING or value is None:
        return value
    if isinstance(value, list):
        return [pseudonym_of(one, key) for one in value]
    if name not in WITH_KINDS:
        return pseudonym_of(value, key)
    if value.startswith(OURS):
        return value
    kind = next((one for one in KINDS if value.startswith(one)), "")
    return kind + pseudonym_of(value.removeprefix(kind), key)


def _digest(key: bytes, content: bytes) -> str:
    return hmac.new(key, content, hashlib.sha256).hexdigest()[:DIGITS]
