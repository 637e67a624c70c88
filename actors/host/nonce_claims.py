"""The claims of nonces by commands (DCTRL-0004 5): which pass, and where each is kept.

A nonce is stored with the acceptance of its command, in the commit of its effect. What is not
proven, or refused by an identity without state or to another one than itself, has no effect, so its
repetition is no replay: its nonce is in the memory of this host alone, and the order of 5.4 is kept
as long as the host lives. Senders that are made for one command each would fill the log otherwise.

Who is unknown here may have an effect at another host, so such nonces are stored. Half of the room
of a shard is for all. Of the other half a sender may have a quarter of what stays free, and those
that are unknown here count as one. So ten that claim all they can leave two sevenths of it to
others, a hundred a twenty-sixth, and two that send 200 commands a second are not held up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, TypeAlias

from actors.core.commands import Submission
from actors.core.cost import source_key
from actors.core.limits import HostLimits
from actors.core.nonces import NonceClaim, Proof, UnprovenNonces
from actors.core.refusals import Refusal
from actors.host.owned_partition import OwnedPartition
from actors.host.transaction import Transaction

IsKnown: TypeAlias = Callable[[Transaction, str, OwnedPartition], bool]
"""Has an identity of this shard anything here?"""
_UNKNOWN: Final = b"unknown"
_SHARES: Final = 4


class NonceClaims:
    """Checks and keeps the nonces of the commands that one host is asked."""

    def __init__(self, limits: HostLimits, is_known: IsKnown) -> None:
        """No nonce is known but those of the partitions."""
        self._window_ms = limits.timestamp_window_ms
        self._per_shard_max = limits.nonces_per_shard_max
        self._unproven = UnprovenNonces(limits.unproven_nonces_max)
        self._is_known = is_known

    def check(
        self, transaction: Transaction, shard: OwnedPartition, claim: NonceClaim
    ) -> Refusal | None:
        """Why a command with this nonce does not pass, or None. Nothing is kept of it yet."""
        now_ms, nonces = transaction.now_ms, shard.nonces
        is_in_time = abs(now_ms - claim.timestamp_ms) <= self._window_ms
        if not is_in_time or claim.timestamp_ms < nonces.forgotten_before_ms:
            # In time for the edge's clock, but its nonce may be forgotten here, or would be early.
            return Refusal.TIMESTAMP_OUT_OF_RANGE
        if nonces.holds(claim.key, now_ms):
            return Refusal.DUPLICATE_NONCE
        if claim.proof is not Proof.HOLDS_NOW and self._unproven.holds(claim.key, now_ms):
            return Refusal.DUPLICATE_NONCE
        if self._is_crowded(shard):
            nonces.sweep(now_ms, self._window_ms)
        sender = self._counted_for(transaction, shard, claim)
        free = self._per_shard_max - len(nonces)
        if sender is not None and _SHARES * nonces.counted_for(sender) >= free:
            return Refusal.RATE_LIMITED
        return None

    def keep(
        self,
        transaction: Transaction,
        shard: OwnedPartition,
        claim: NonceClaim,
        *,
        is_durable: bool,
    ) -> None:
        """Take a nonce that passed: into the transaction, or into memory alone."""
        if is_durable:
            sender = self._counted_for(transaction, shard, claim)
            transaction.claim_nonce(shard, claim, counted_for=sender)
        else:
            self._unproven.add(claim.key, transaction.expiry_ms(claim))

    def identities(
        self, items: Iterable[tuple[str, Submission]], owned: Mapping[str, OwnedPartition]
    ) -> Iterator[tuple[str, str]]:
        """What a batch will ask for, with partitions: targets, and senders in crowded shards."""
        for _, one in items:
            if one.command is not None:
                yield one.target_did, one.partition
            claim = one.claim
            shard = owned.get(claim.partition) if claim is not None else None
            if claim and claim.sender_did and shard and self._is_crowded(shard):
                yield claim.sender_did, claim.partition

    def _is_crowded(self, shard: OwnedPartition) -> bool:
        return len(shard.nonces) >= self._per_shard_max // 2

    def _counted_for(
        self, transaction: Transaction, shard: OwnedPartition, claim: NonceClaim
    ) -> bytes | None:
        """Whom a nonce would count for, if the shard is crowded."""
        if not self._is_crowded(shard):
            return None
        # An edge of an earlier release does not say who sends.
        did = claim.sender_did
        return source_key(did) if did and self._is_known(transaction, did, shard) else _UNKNOWN
