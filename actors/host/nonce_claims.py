"""Claims of nonces by commands (DCTRL-0004 5): which ones pass, and where each nonce is kept.

The nonce of an accepted command is stored in the commit of its effect. The nonce of a command that
is not proven, or that its target refuses while it has no state or is not the sender, is kept in the
memory of this host alone. Such a command has no effect, so repeating it is no replay, and the order
of 5.4 holds as long as the host lives. Otherwise senders made for one command each would fill the
log.

The command of a sender that is unknown here may have an effect at another host, so its nonce is
stored. Half of the room of a shard is for all senders. Of the other half a sender may use a quarter
of what stays free, and all unknown senders count as one. So ten senders that claim all they can
leave two sevenths of that half to others, a hundred leave a twenty-sixth, and two that send 200
commands a second are not held up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, TypeAlias

from actors.core.cost import source_key
from actors.core.limits import HostLimits
from actors.core.nonces import NonceClaim, Proof, UnprovenNonces
from actors.core.refusals import Refusal
from actors.core.submissions import Submission
from actors.host.owned_partition import OwnedPartition
from actors.host.transaction import Transaction

IsKnown: TypeAlias = Callable[[Transaction, str, OwnedPartition], bool]
"""Does an identity of this shard have any events here?"""
_UNKNOWN: Final = b"unknown"
_SHARES: Final = 4


class NonceClaims:
    """Checks and keeps the nonces of the commands that one host receives."""

    def __init__(self, limits: HostLimits, is_known: IsKnown) -> None:
        """Start without any nonces but those of the partitions."""
        self._window_ms = limits.timestamp_window_ms
        self._per_shard_max = limits.nonces_per_shard_max
        self._unproven = UnprovenNonces(limits.unproven_nonces_max)
        self._is_known = is_known

    def check(
        self, transaction: Transaction, shard: OwnedPartition, claim: NonceClaim
    ) -> Refusal | None:
        """Why a command with this nonce does not pass, or None; this does not keep the nonce."""
        now_ms, nonces = transaction.now_ms, shard.nonces
        is_in_time = abs(now_ms - claim.timestamp_ms) <= self._window_ms
        if not is_in_time or claim.timestamp_ms < nonces.forgotten_before_ms:
            # In time by the edge's clock, but this host may have dropped the nonce already, or
            # would drop it too early.
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
        """Keep a nonce that passed: in the transaction, or in memory alone."""
        if is_durable:
            sender = self._counted_for(transaction, shard, claim)
            transaction.claim_nonce(shard, claim, counted_for=sender)
        else:
            if not self._unproven.holds(claim.key, transaction.now_ms):
                transaction.unproven.append(claim.key)
            self._unproven.add(claim.key, transaction.expiry_ms(claim))

    def give_back(self, transaction: Transaction) -> None:
        """Forget the nonces of a transaction that failed: what the log lacks may be sent again."""
        for key in transaction.unproven:
            self._unproven.discard(key)
        for partition, key, expires_ms in transaction.claimed():
            partition.nonces.discard(key, expires_ms)

    def identities(
        self, items: Iterable[tuple[str, Submission]], owned: Mapping[str, OwnedPartition]
    ) -> Iterator[tuple[str, str]]:
        """The targets of a batch, and its senders in crowded shards, each with its partition."""
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
        """The sender that a nonce counts for; None unless the shard is crowded."""
        if not self._is_crowded(shard):
            return None
        # An edge of an earlier release does not name the sender.
        did = claim.sender_did
        return source_key(did) if did and self._is_known(transaction, did, shard) else _UNKNOWN
