"""The one loop: load, decide, append, evolve, reply, in that order, in this place alone.

A ``Host`` owns partitions and runs their commands, one transaction for each batch. It runs on a
single thread (that of ``actors.host.writer``) and knows nothing of Ray. The outcome of the append
decides the answer:

- stored: the replies go out;
- conflict: the host looks for its own seal in the log. If the seal is there, the batch is stored.
  Otherwise another owner has claimed the partition: the host gives it up, and as nothing of the
  batch is stored, the edge sends its commands to the new owner. If no other owner is there, the
  log is at fault, which the host reports;
- any other failure: the outcome is unknown, and all touched states are read from the log again.

A transaction that took longer than ``DECISION_S_MAX`` to decide is not appended: its events carry
the time at which it began, and an export may have said by now that it is complete until then. It
ends long before if it has many identities to read from a slow log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Final

from msgspec.structs import replace

from actors.core.charges import Charges
from actors.core.decide import is_of_owner, is_step_of_adding
from actors.core.decision import Accepted, DecisionContext
from actors.core.limits import DECISION_S_MAX, READING_S_MAX, HostLimits
from actors.core.nonces import Proof
from actors.core.refusals import Refusal
from actors.core.replies import NOT_OWNER, UNAVAILABLE, Done, EnvelopesWaiting, Push, Refused, Reply
from actors.core.submissions import Submission
from actors.host import owned_partition as partitions
from actors.host.clock import Ahead, Clock, NewId, uptime_s
from actors.host.disk_floor import DiskFloor, MeasureDisk, unknown_disk
from actors.host.log_outage import LogOutage, reason
from actors.host.measures import CommandRates, HostMeasures, HostStats
from actors.host.nonce_claims import NonceClaims
from actors.host.owned_partition import OwnedPartition
from actors.host.ownership import Ownership
from actors.host.pages import PageReader
from actors.host.partition_moves import PartitionMoves
from actors.host.session_registry import SessionRegistry
from actors.host.state_cache import CachedIdentity, StateCache
from actors.host.transaction import Outcome, Transaction, request_ids
from actors.host.unknown_outcomes import UnknownOutcomes
from eventstore.log.errors import AppendConflict, AppendUnknown, LogError, LogUnavailable
from eventstore.log.event_log import DueSnapshot, EventLog

_LOG = logging.getLogger(__name__)
_SWEEP_MS = 60_000
_MORE_PAGES: Final = 16
"""Pages of damaged envelopes alone that one question passes over; each is a transaction."""


class Host:
    """The single writer of its partitions."""

    def __init__(  # noqa: PLR0913 - what a host works with, each part by itself
        self,
        name: str,
        log: EventLog,
        limits: HostLimits,
        *,
        clock: Clock,
        new_id: NewId,
        secret: bytes,
        is_placed: bool = False,
        measure_disk: MeasureDisk = unknown_disk,
        ahead_ms: Ahead = lambda: 0,
        uptime_s: Callable[[], float] = uptime_s,
    ) -> None:
        """A host that owns nothing yet; see ``ownership``.

        The salts of contents are derived from ``secret``, which is stored nowhere.
        ``is_placed``: a placer assigns partitions, so an identity may leave its shard and return;
        the host serves it only under the partition that its state names. The host calls
        ``measure_disk`` at most once a second, for the disk of the log. ``uptime_s`` tells seconds
        that pass whatever the clock does.
        """
        self._log = log
        self._limits = limits
        self._clock, self._ahead_ms, self._uptime_s = clock, ahead_ms, uptime_s
        self._begun_s = 0.0
        self._new_id, self._secret = new_id, secret
        self.cache = StateCache(log, limits)
        self.registry = SessionRegistry()
        self._nonces = NonceClaims(limits, self._is_known)
        self.ownership = Ownership(log, clock, limits.timestamp_window_ms, on_lost=self._lost)
        self._unknown = UnknownOutcomes(log, self.ownership, self.registry)
        self._pages = PageReader(log, bytes_max=limits.pages_bytes_max)
        self.charges = Charges(limits)
        self._is_placed = is_placed
        self._swept_ms = 0
        self._looked_ms = clock()
        self._due_snapshots: list[DueSnapshot] = []
        self.outage = LogOutage(clock)
        self.moves = PartitionMoves(
            log, self.now_ms, new_id,
            ownership=self.ownership,
            cache=self.cache,
            registry=self.registry,
            unknown=self._unknown,
            outage=self.outage,
        )  # fmt: skip
        self.stats = HostStats(name)
        self.measures = HostMeasures()
        self.disk = DiskFloor(measure_disk, limits.free_bytes_min)
        self.rates = CommandRates(limits.dedicate_above_commands_per_s, self._looked_ms)

    def execute(
        self, items: Sequence[tuple[str, Submission]]
    ) -> tuple[list[Reply], list[tuple[str, Push]]]:
        """Run commands, each with the edge that sent it, in one transaction, as far as they fit.

        Return a reply to each that ran, in order, and the pushes as (edge, push) pairs. Deliveries
        of damaged envelopes alone run again, in transactions that follow.
        """
        replies, pushes, passed = self._execute(items)
        for _ in range(_MORE_PAGES):
            if not passed:
                break
            # Not only at the next question: by then they may be offered again, before all others.
            again = [(items[n][0], replace(items[n][1], claim=None, charge=0.0)) for n in passed]
            others, more, still = self._execute(again)
            for number, reply in zip(passed, others, strict=False):
                replies[number] = reply
            pushes += more
            passed = [passed[n] for n in still]
        return replies, pushes

    def _execute(
        self, items: Sequence[tuple[str, Submission]]
    ) -> tuple[list[Reply], list[tuple[str, Push]], list[int]]:
        """Run one transaction; also return the numbers of deliveries of damaged envelopes alone."""
        self._begun_s = self._uptime_s()
        now_ms = self.now_ms()
        self.registry.expire(now_ms)
        transaction = Transaction(items, now_ms, self._limits.timestamp_window_ms)
        transaction.is_short_of_disk = self.disk.look(now_ms)
        transaction.ahead_ms = self._ahead_ms()
        owned = self.ownership.owned
        self.cache.read_ahead(self._nonces.identities(items, owned), owned)
        taken = transaction.submissions(self.cache, lambda: self._is_after(READING_S_MAX))
        outcomes = [self._run(transaction, one) for one in taken]
        items = transaction.items
        self.stats.commands += len(items)
        self._pages.fill_before(transaction, outcomes)
        is_too_late = self._is_after(DECISION_S_MAX) and not transaction.is_empty
        failed = self._give_up(transaction) if is_too_late else self._append(transaction)
        for did in transaction.misplaced:
            # This host would not see what the identity's owner does to it.
            self.cache.drop(did)
        if failed is not None:
            # A partition whose nonces the log may have all the same is read again (``_forget``).
            self._nonces.give_back(transaction)
            return [Refused(failed)] * len(items), [], []
        replies = self._pages.replies(transaction, outcomes)
        pushes: list[tuple[str, Push]] = []
        passed: list[int] = []
        damaged: list[CachedIdentity] = []
        ran = zip(items, outcomes, replies, strict=True)
        for number, ((_, submission), outcome, reply) in enumerate(ran):
            if submission.charge and outcome.units:
                self.charges.add_page(submission.source, outcome.units, now_ms)
            is_damaged = outcome.cached is not None and bool(outcome.cached.damaged)
            if outcome.leasing is not None and isinstance(reply, Refused):
                self.registry.unlease(submission.target_did, outcome.leasing.message_ids)
                passed += [number] * is_damaged
            if outcome.cached is not None and is_damaged:
                damaged.append(outcome.cached)
            self.registry.follow(submission, reply)
            if outcome.notice is not None:
                pushes += self.registry.pushes(submission.target_did, outcome.notice)
        for cached in damaged:  # once each: ``take_damaged`` leaves none
            self.measures.damaged.add(count=len(cached.damaged))
            self.registry.hold_back(cached.did, cached.take_damaged(), now_ms)
        return replies, pushes, [] if transaction.log_failed else passed

    def run_housekeeping(self) -> list[DueSnapshot]:
        """Between batches: passivate and drop expired nonces; return the snapshots that are due."""
        now_ms = self.now_ms()
        due = self._due_snapshots + self.cache.passivate(now_ms, self.ownership.owned)
        self._due_snapshots = []
        self.rates.report(now_ms, self.stats)
        if now_ms - self._swept_ms >= _SWEEP_MS:
            self._swept_ms = now_ms
            self.registry.sweep(now_ms)
            for partition in self.ownership.owned.values():
                partition.nonces.sweep(now_ms, self._limits.timestamp_window_ms)
        return due

    def due_pushes(self) -> list[tuple[str, Push]]:
        """Between batches: pushes for leases that are over, and of stored appends that failed."""
        now_ms = self.now_ms()
        self.registry.expire(now_ms)
        self._unknown.look(now_ms)
        due = self._unknown.pushes()
        for did in self.registry.offered_again():
            due += self.registry.pushes(did, EnvelopesWaiting())
        return due

    def forget_everything(self) -> None:
        """Drop all that is in memory; partitions are read from the log and claimed again."""
        for name in list(self.ownership.owned):
            self.ownership.forget(name)
            self.cache.drop_partition(name)
        self.registry.lose_leases()

    def snapshot_stats(self) -> HostStats:
        """Update the counters with what the host holds now, and return them."""
        # Also those that the next command claims again: after an outage none may come for long.
        self.stats.partitions = sorted(self.ownership.holdings)
        self.cache.count_in(self.stats)
        self.stats.nonces = sum(len(p.nonces) for p in self.ownership.owned.values())
        self.registry.count_in(self.stats)
        self.stats.short_of_disk = self.disk.look(self.now_ms())
        self.stats.free_bytes = self.disk.free_bytes
        return self.stats

    def now_ms(self) -> int:
        """Unix milliseconds by the clock of this host.

        If it was set back, so are the ends of all that lasts for a time: nothing lasts longer.
        """
        now_ms = self._clock()
        back_ms = self._looked_ms - now_ms
        if back_ms > 0:
            self.registry.set_back(back_ms)
            self.cache.set_back(back_ms)
            self._swept_ms -= back_ms
            self.rates.set_back(back_ms)
        self._looked_ms = now_ms
        return now_ms

    def _run(self, transaction: Transaction, submission: Submission) -> Outcome:
        if transaction.log_failed:
            return Outcome(UNAVAILABLE)
        try:
            return self._decide(transaction, submission)
        except LogError as error:
            # A conflict is that of a claim, and with no other owner: another claim fails as well.
            failures = LogUnavailable | AppendUnknown | AppendConflict
            transaction.log_failed = isinstance(error, failures)
            if transaction.log_failed:
                ids = request_ids([("", submission)])
                self.outage.failed("cannot serve an identity", error, ids)
            else:
                extra = {"request_id": submission.request_id}
                _LOG.error("cannot serve an identity: %s", reason(error), extra=extra)
            return Outcome(UNAVAILABLE)

    def _decide(self, transaction: Transaction, submission: Submission) -> Outcome:
        claim = submission.claim
        runs = submission.refusal is None and submission.command is not None
        # Check both partitions before using up the nonce, so that a refused command can be resent.
        shard = None if claim is None else self._partition(transaction, claim.partition)
        partition = self._partition(transaction, submission.partition) if runs else None
        if (claim is not None and shard is None) or (runs and partition is None):
            return Outcome(NOT_OWNER)
        target = submission.target_did
        if partition is not None and self._drop_if_moved(transaction, target, partition):
            return Outcome(NOT_OWNER)
        if claim is not None and shard is not None:
            refusal = self._nonces.check(transaction, shard, claim)
            if refusal is not None:
                return Outcome(Refused(refusal))
        if transaction.is_short_of_disk and is_step_of_adding(submission):
            # Before anything, even the nonce, is kept: the same command may be sent again.
            return Outcome(Refused(Refusal.INSUFFICIENT_STORAGE))
        limited = self.charges.refusal(submission, transaction.now_ms)
        if limited is not None:
            return Outcome(limited)
        if partition is None:
            if claim is not None and shard is not None:
                is_proven = submission.refusal is None and claim.proof is not Proof.NOT_YET
                self._nonces.keep(transaction, shard, claim, is_durable=is_proven)
            return Outcome(Done() if submission.refusal is None else Refused(submission.refusal))
        return self._act(transaction, submission, partition, shard)

    def _act(
        self,
        transaction: Transaction,
        submission: Submission,
        partition: OwnedPartition,
        shard: OwnedPartition | None,
    ) -> Outcome:
        """Let the identity decide on the command; keep the nonce in ``shard`` with its effect."""
        assert submission.command is not None
        did = submission.target_did
        self.registry.precede(did, submission.command)
        part = transaction.part(partition)
        cached = self.cache.get(did, partition.name, transaction.now_ms)
        self.rates.count(did, is_known=cached.state.is_known)
        context = DecisionContext(
            did,
            transaction.now_ms,
            submission.command_key,
            self._new_id(),
            self._secret,
            self._limits.identity,
            leases=self.registry.leases.of(did),
            listening=bool(self.registry.sessions.edges_of(did)),
            live=self.registry.sessions.live_of(did),
            implicit=self.registry.sessions.implicit_of(did),
            speaker=submission.speaker,
            listed=cached.listed(self._log),
            saved=cached.saved(submission.command, self._log),
            page_bytes_max=transaction.page_bytes_max,
            ahead_ms=transaction.ahead_ms,
        )
        if self._is_after(DECISION_S_MAX):
            return Outcome(UNAVAILABLE)  # what was read stays in memory: it may be sent again
        decision = cached.run(submission.command, context, part.record)
        if submission.claim is not None and shard is not None:
            # A refusal stores no nonce if the target has no state or another identity sent it.
            is_durable = submission.claim.proof is not Proof.NOT_YET and (
                not isinstance(decision, Refusal)
                or (cached.state.version > 0 and is_of_owner(submission.command))
            )
            self._nonces.keep(transaction, shard, submission.claim, is_durable=is_durable)
        if isinstance(decision, Refusal):
            return Outcome(Refused(decision))
        if decision.events:
            self._drop_if_moved(transaction, did, partition)
        self._lease(transaction, submission, decision)
        return transaction.outcome(decision, cached)

    def _is_known(self, transaction: Transaction, did: str, shard: OwnedPartition) -> bool:
        """Does an identity of this shard have any events here?"""
        self._drop_if_moved(transaction, did, shard)
        return self.cache.get(did, shard.name, transaction.now_ms).state.version > 0

    def _drop_if_moved(self, transaction: Transaction, did: str, owned: OwnedPartition) -> bool:
        """Drop an identity after the commit if another partition holds it; return whether so."""
        if not self._is_placed:
            return False
        state = self.cache.get(did, owned.name, transaction.now_ms).state
        is_here = bool(state.dedicated_by) == (owned.name == did)
        if is_here and not self.registry.is_expected(did, transaction.now_ms):
            return False
        transaction.misplaced.add(did)
        return True

    def _lease(self, transaction: Transaction, submission: Submission, decision: Accepted) -> None:
        if decision.leasing is not None:
            self.registry.lease(submission, decision.leasing)
            transaction.leased.append((submission.target_did, decision.leasing))

    def _partition(self, transaction: Transaction, name: str) -> OwnedPartition | None:
        is_owned = name in self.ownership.owned
        found = self.ownership.find(name)
        transaction.has_claimed |= found is not None and not is_owned
        return found

    def _lost(self, name: str) -> None:
        self.stats.partitions_lost += 1
        self.cache.drop_partition(name)
        self.registry.lose([name])

    def _append(self, transaction: Transaction) -> Refusal | None:
        """Append a transaction to the log; return why it was not stored, or None."""
        if transaction.is_empty:
            return self._prove(transaction)
        rows, events = transaction.sealed()
        depths = transaction.depths()
        started = perf_counter()
        try:
            self._log.append(rows, events, depths)
        except AppendConflict as error:
            refusal = self._resolve_conflict(transaction, error)
            if refusal is not None:
                return refusal
        except LogError as error:
            ids = request_ids(transaction.items)
            self.outage.failed("append failed, outcome unknown", error, ids)
            self._forget(transaction)
            return Refusal.TEMPORARILY_UNAVAILABLE
        finally:
            self.measures.commit.observe(perf_counter() - started)
        for partition in transaction.partitions:
            nonces = partition.snapshot_if_due(self._limits.timestamp_window_ms)
            if nonces is not None:
                self._due_snapshots.append(nonces)
        self.outage.stored(rows, events)
        self.stats.commits += 1
        self.stats.rows += len(rows)
        self.measures.count_removed(events)
        for did, event in transaction.removed:
            self.registry.removed(did, event)
        for cached in transaction.touched.values():
            self.cache.settle(cached)
            snapshot = self.cache.snapshot_if_due(cached, self.ownership.owned)
            if snapshot is not None:
                self._due_snapshots.append(snapshot)
        return None

    def _is_after(self, elapsed_s: float) -> bool:
        return self._uptime_s() - self._begun_s > elapsed_s

    def _give_up(self, transaction: Transaction) -> Refusal:
        """Drop a transaction that took too long, of which nothing is stored."""
        late = LogUnavailable(f"it took longer than {DECISION_S_MAX:g} s to read")
        self.outage.failed("cannot append in time", late, request_ids(transaction.items))
        self._undo(transaction)
        for did in transaction.touched:
            self.cache.drop(did)
        return Refusal.TEMPORARILY_UNAVAILABLE

    def _prove(self, transaction: Transaction) -> Refusal | None:
        """Check that this host still owns the partitions, so that answers without an append count.

        Another owner's claim would be the next row of the partition's stream, after our own seal.
        """
        try:
            for partition in transaction.partitions:
                if not partitions.is_newest(self._log, partition):
                    return self._resolve_conflict(transaction)
        except LogError as error:
            self.outage.failed("cannot read the log", error, request_ids(transaction.items))
            self._forget(transaction)
            return Refusal.TEMPORARILY_UNAVAILABLE
        if transaction.has_used_log and not transaction.log_failed:
            self.outage.worked(has_stored=transaction.has_claimed)
        return None

    def _resolve_conflict(
        self, transaction: Transaction, conflict: AppendConflict | None = None
    ) -> Refusal | None:
        """Return None if the transaction is stored; else give up what another owner has claimed."""
        ids = request_ids(transaction.items)
        try:
            held, is_empty = transaction.partitions, transaction.is_empty
            partitions.log_losses(self._log, held, are_confirmed=is_empty)
            newest = {p: partitions.newest_seal(self._log, p.name) for p in held}
            stored = not is_empty and any(partitions.is_sealed(self._log, p.place) for p in held)
        except LogError as error:
            self.outage.failed("cannot read the log", error, ids)
            self._forget(transaction)
            return Refusal.TEMPORARILY_UNAVAILABLE
        if all(seal is not None and seal.digest == p.digest for p, seal in newest.items()):
            return None
        self._forget(transaction)
        lost = [p.name for p, seal in newest.items() if seal is not None and seal.epoch > p.epoch]
        for name in lost:
            self.ownership.give_up(name)
        if not lost and conflict is not None:
            # Seals are lost, or another row is in the way, for example a content: perhaps for ever.
            self.outage.failed("append conflicts, and with no other owner", conflict, ids)
        # Nothing of the transaction is in the log, so the new owners can run the same commands.
        return Refusal.NOT_OWNER if lost and not stored else Refusal.TEMPORARILY_UNAVAILABLE

    def _undo(self, transaction: Transaction) -> None:
        self.stats.append_failures += 1
        self.registry.undo(transaction.leased, transaction.touched)

    def _forget(self, transaction: Transaction) -> None:
        self._undo(transaction)
        self._unknown.note(transaction)
        for partition in transaction.partitions:
            self.ownership.forget(partition.name)
            self.cache.drop_partition(partition.name)
