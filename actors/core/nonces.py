"""The nonces of commands (DCTRL-0004 5.2 to 5.4): those that are proven, and those that are not.

Rules of this file: no clock, no IO.

``NonceWindow`` holds the nonces of one partition that are also in the log. It keeps each until
``max(received, timestamp) + window``, rounded up to the next bucket: longer than the specification
asks, never shorter. Buckets make the sweep free: it drops a whole bucket at once.

**Clocks may jump and differ.** A nonce that had expired by a fast clock may be in time again by a
correct one. So a window remembers which nonces it may have dropped: all of them were stamped before
``forgotten_before_ms``, and a command stamped before that is refused, whatever a clock says. While
clocks agree, this refuses nothing that the timestamp window admits.

**A sender of many commands leaves room for others.** Nonces claimed while a window is crowded count
for their sender, who may use only a part of the room that is left (``actors.host.nonce_claims``).

``UnprovenNonces`` holds the nonces of commands that had no effect: no signature was verified, or
the sender is unknown here. They are in memory alone, and the oldest make room.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import msgspec

BUCKET_MS: Final = 32_000
SENDERS_MAX: Final = 4_096
"""Senders whose nonces one window counts separately; it counts all others together."""
_OTHERS: Final = b""
_KEY_BYTES: Final = 16


class Proof(IntEnum):
    """What the edge knows of a command's signature when it claims the nonce."""

    HOLDS = 0
    NOT_YET = 1
    """The edge checks the signature, or whether the command is allowed, after the claim; until then
    the nonce is kept in memory alone."""
    HOLDS_NOW = 2
    """The same request has claimed the nonce before, as ``NOT_YET``."""


class NonceClaim(msgspec.Struct, frozen=True, array_like=True):
    """The sender's nonce, to be claimed before anything else (5.4).

    ``key`` is ``eventstore.log.seal.command_key``; ``timestamp_ms`` is the header's. ``sender_did``
    is empty if it comes from an edge of an earlier release.
    """

    partition: str
    key: bytes
    timestamp_ms: float
    proof: Proof = Proof.HOLDS
    sender_did: str = ""


@dataclass(slots=True)
class _Share:
    """How many nonces of a window count for one sender."""

    sender: bytes
    nonces: int = 0


class NonceWindow:
    """A set of command keys that forgets each one after its expiry.

    Attributes:
        forgotten_before_ms: every dropped nonce belonged to a command stamped before this.
    """

    def __init__(self) -> None:
        self._buckets: dict[int, dict[bytes, _Share | None]] = {}
        self._shares: dict[bytes, _Share] = {}
        self._count = 0
        self.forgotten_before_ms = 0

    def __len__(self) -> int:
        """How many nonces are kept, including expired ones not yet swept."""
        return self._count

    def holds(self, key: bytes, now_ms: int) -> bool:
        """Was this key claimed, and is the claim still in force?"""
        oldest = now_ms // BUCKET_MS
        for bucket, keys in self._buckets.items():  # noqa: SIM110 - a generator takes twice as long
            if key in keys and bucket >= oldest:
                return True
        return False

    def add(self, key: bytes, expires_ms: int, counted_for: bytes | None = None) -> None:
        """Keep a key until ``expires_ms`` (Unix milliseconds), rounded up.

        ``counted_for`` is the sender that the key counts for, if any.
        """
        keys = self._buckets.setdefault(expires_ms // BUCKET_MS, {})
        if key in keys:
            return
        share = None if counted_for is None else self._share_of(counted_for)
        if share is not None:
            self._shares[share.sender] = share
            share.nonces += 1
        keys[key] = share
        self._count += 1

    def discard(self, key: bytes, expires_ms: int) -> None:
        """Drop a key that was added with this expiry: its command was not carried out."""
        keys = self._buckets.get(expires_ms // BUCKET_MS, {})
        if key in keys:
            self._uncount(keys.pop(key))
            self._count -= 1

    def counted_for(self, sender: bytes) -> int:
        """How many nonces count for this sender."""
        return self._share_of(sender).nonces

    def packed(self) -> dict[int, bytes]:
        """All keys, joined, by bucket: the form of a snapshot, which omits their senders."""
        return {bucket: b"".join(keys) for bucket, keys in self._buckets.items()}

    def add_packed(self, packed: dict[int, bytes]) -> None:
        """Add the keys of a snapshot."""
        for bucket, joined in packed.items():
            keys = self._buckets.setdefault(bucket, {})
            before = len(keys)
            for i in range(0, len(joined), _KEY_BYTES):
                keys.setdefault(joined[i : i + _KEY_BYTES], None)
            self._count += len(keys) - before

    def sweep(self, now_ms: int, window_ms: int) -> None:
        """Drop expired nonces and advance ``forgotten_before_ms`` past their timestamps.

        ``window_ms`` is at most the window that the nonces were added under.
        """
        oldest = now_ms // BUCKET_MS
        for bucket in [bucket for bucket in self._buckets if bucket < oldest]:
            gone = self._buckets.pop(bucket)
            self._count -= len(gone)
            for share in gone.values():
                self._uncount(share)
            self.forget_before((bucket + 1) * BUCKET_MS - window_ms)

    def forget_before(self, stamp_ms: int) -> None:
        """Note that nonces of commands stamped before this may be missing (Unix milliseconds)."""
        self.forgotten_before_ms = max(self.forgotten_before_ms, stamp_ms)

    def _uncount(self, share: _Share | None) -> None:
        if share is not None:
            share.nonces -= 1
            if not share.nonces:
                del self._shares[share.sender]

    def _share_of(self, sender: bytes) -> _Share:
        if sender not in self._shares and len(self._shares) >= SENDERS_MAX:
            sender = _OTHERS
        return self._shares.get(sender) or _Share(sender)


class UnprovenNonces:
    """The newest keys of commands without effect: the last ``keys_max / 2`` at least.

    Keys are in two generations; when the younger one is full, the older one is dropped. Dropping a
    key too early readmits only a command that had no effect.
    """

    def __init__(self, keys_max: int) -> None:
        """An empty set; a key takes about 150 bytes of memory."""
        self._generation_max = max(1, keys_max // 2)
        self._younger: dict[bytes, int] = {}
        self._older: dict[bytes, int] = {}

    def __len__(self) -> int:
        """How many keys are in memory, expired ones included."""
        return len(self._younger) + len(self._older)

    def holds(self, key: bytes, now_ms: int) -> bool:
        """Is this key kept and still in force?"""
        expires_ms = self._younger.get(key) or self._older.get(key)
        return expires_ms is not None and expires_ms >= now_ms

    def add(self, key: bytes, expires_ms: int) -> None:
        """Keep a key until ``expires_ms`` (Unix milliseconds); the oldest ones make room."""
        if len(self._younger) >= self._generation_max:
            self._older, self._younger = self._younger, {}
        self._younger[key] = expires_ms

    def discard(self, key: bytes) -> None:
        """Drop a key, if it is kept."""
        self._younger.pop(key, None)
        self._older.pop(key, None)


def expiry_ms(received_ms: int, timestamp_ms: float, window_ms: int) -> int:
    """When a nonce may be dropped: no later command with its timestamp can pass the window.

    A command stamped in the future stays valid longer than one window after its receipt.
    """
    return int(max(received_ms, timestamp_ms)) + window_ms + 1
