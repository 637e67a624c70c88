"""Seals: one row per partition and transaction that does three jobs.

1. Replay protection: it carries the nonces that the transaction accepted (DCTRL-0004 5.2, 12.2).
2. Fence: two owners of one partition collide on the seal's version; the loser stores nothing. A
   store accepts a seal only behind the one whose digest it has, so an owner whose commits were
   lost stores nothing behind another's claim.
3. Tamper evidence: its digest chains all rows of the transaction to the previous seal. It covers
   the redacted state of each row, in which digests replace names
   (``eventstore.log.redaction``). Seals of earlier releases cover states as they stand.

A *partition* is a set of identities with one owner: a shard (``shard-3``) or one dedicated
identity (``did:…``). A nonce is kept as a 16-byte key, BLAKE2b over sender and nonce, so that
the log names no sender that is not registered here.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeAlias

import msgspec
from eventsourcing.persistence import StoredEvent

from eventstore.log.events import BatchSealed, Event
from eventstore.log.redaction import redacted_state

GENESIS: Final = bytes(32)
COMMAND_KEY_BYTES: Final = 16
_NONCE: Final = struct.Struct(">16sQ")
_ROW: Final = struct.Struct(">16sQII")
_HEAD: Final = struct.Struct(">QQQI")
_REDACTED: Final = b"poste seal over redacted states\n"
"""Prefix of the hashed bytes. Those of an earlier release begin with the previous digest, which is
not this text."""

SealedRow: TypeAlias = tuple[bytes, int, str, bytes]
"""What a seal covers of a row: stream (16 bytes), version, topic, state (redacted, or whole)."""


def command_key(sender_did: str, nonce: str) -> bytes:
    """The 16-byte key of a (nonce, sender) pair, also the id of the command in its events."""
    text = f"{sender_did}\n{nonce}".encode()
    return hashlib.blake2b(text, digest_size=COMMAND_KEY_BYTES).digest()


def pack_nonces(nonces: Sequence[tuple[bytes, int]]) -> bytes:
    """Pack (command key, expiry in Unix milliseconds) pairs."""
    return b"".join(_NONCE.pack(key, expires_ms) for key, expires_ms in nonces)


def unpack_nonces(packed: bytes) -> Iterator[tuple[bytes, int]]:
    """The (command key, expiry in Unix milliseconds) pairs of a seal."""
    yield from _NONCE.iter_unpack(packed)


def seal(  # noqa: PLR0913 - each is a field of the seal
    rows: Sequence[StoredEvent],
    events: Sequence[Event],
    *,
    partition: str,
    epoch: int,
    at_ms: int,
    window_ms: int,
    nonces: bytes,
    previous: bytes,
) -> BatchSealed:
    """The seal over the rows that a transaction stores for one partition.

    ``events`` are the events in the rows; ``previous`` is the digest of the partition's last seal,
    ``GENESIS`` for its first.
    """
    sealed = BatchSealed(
        at_ms=at_ms,
        command=b"",
        partition=partition,
        epoch=epoch,
        window_ms=window_ms,
        nonces=nonces,
        rows=len(rows),
        previous=previous,
        digest=b"",
    )
    digest = chain_digest(sealed, sealed_rows(rows, events), are_redacted=True)
    return msgspec.structs.replace(sealed, digest=digest)


def chain_digest(sealed: BatchSealed, rows: Iterable[SealedRow], *, are_redacted: bool) -> bytes:
    """SHA-256 over the previous digest, the seal's own fields and the rows, length-prefixed.

    ``are_redacted``: the states of the rows are redacted, as in the seals of this release.

    Raises:
        struct.error: no seal can hold these fields or rows.
    """
    name = sealed.partition.encode()
    head = _HEAD.pack(sealed.epoch, sealed.at_ms, sealed.window_ms, len(name))
    begin = _REDACTED if are_redacted else b""
    nonces = sealed.nonces
    parts = [begin, sealed.previous, head, name, len(nonces).to_bytes(4, "big"), nonces]
    for stream, version, topic, state in rows:
        name = topic.encode()
        parts += (_ROW.pack(stream, version, len(name), len(state)), name, state)
    # One call: with few rows, a call for each part takes longer than the hash.
    return hashlib.sha256(b"".join(parts)).digest()


def has_digest_over(sealed: BatchSealed, rows: Iterable[SealedRow], *, are_redacted: bool) -> bool:
    """Whether the digest in a seal is that over its fields and these rows."""
    try:
        return sealed.digest == chain_digest(sealed, rows, are_redacted=are_redacted)
    except struct.error:
        return False


def sealed_rows(rows: Iterable[StoredEvent], events: Iterable[Event]) -> Iterator[SealedRow]:
    """The parts of rows to store that their seal covers; ``events`` are the events in the rows.

    Raises:
        ValueError: the state of a row is not in the form of the codec.
    """
    for row, event in zip(rows, events, strict=True):
        stream = row.originator_id
        key = bytes.fromhex(stream) if isinstance(stream, str) else stream.bytes
        state = redacted_state(row.topic, row.state, event)
        if state is None:
            raise ValueError(f"{row.topic}: not written as states are")
        yield key, row.originator_version, row.topic, state
