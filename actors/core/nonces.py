"""The nonces in force of one partition (DCTRL-0004 5.2, 5.3).

Rules of this file: no clock, no IO. A nonce is kept until ``max(received, timestamp) + window``,
rounded up to the next bucket: longer than the text asks, never shorter. Buckets make the sweep
free: a whole bucket is dropped at once.
"""

from __future__ import annotations

from typing import Final

BUCKET_MS: Final = 32_000
_KEY_BYTES: Final = 16


class NonceWindow:
    """A set of command keys that forgets each one after its expiry."""

    def __init__(self) -> None:
        """An empty window."""
        self._buckets: dict[int, set[bytes]] = {}
        self._count = 0

    def __len__(self) -> int:
        """How many nonces are kept, a bucket of expired ones not yet swept included."""
        return self._count

    def holds(self, key: bytes, now_ms: int) -> bool:
        """Was this key claimed, and is the claim still in force?"""
        oldest = now_ms // BUCKET_MS
        return any(key in keys for bucket, keys in self._buckets.items() if bucket >= oldest)

    def add(self, key: bytes, expires_ms: int) -> None:
        """Keep a key until ``expires_ms`` (Unix milliseconds), rounded up."""
        keys = self._buckets.setdefault(expires_ms // BUCKET_MS, set())
        before = len(keys)
        keys.add(key)
        self._count += len(keys) - before

    def packed(self) -> dict[int, bytes]:
        """All keys, joined, by bucket: the form for a snapshot."""
        return {bucket: b"".join(keys) for bucket, keys in self._buckets.items()}

    def add_packed(self, packed: dict[int, bytes], now_ms: int) -> None:
        """Add the keys of a snapshot that are still in force."""
        oldest = now_ms // BUCKET_MS
        for bucket, joined in packed.items():
            if bucket < oldest:
                continue
            keys = self._buckets.setdefault(bucket, set())
            before = len(keys)
            keys.update(joined[i : i + _KEY_BYTES] for i in range(0, len(joined), _KEY_BYTES))
            self._count += len(keys) - before

    def sweep(self, now_ms: int) -> None:
        """Forget what has expired."""
        oldest = now_ms // BUCKET_MS
        for bucket in [bucket for bucket in self._buckets if bucket < oldest]:
            self._count -= len(self._buckets.pop(bucket))


def expiry_ms(received_ms: int, timestamp_ms: float, window_ms: int) -> int:
    """When a nonce may be forgotten: no later command with its timestamp can pass the window.

    A command stamped in the future stays valid longer than one window after its receipt.
    """
    return int(max(received_ms, timestamp_ms)) + window_ms + 1
