"""Defects put in on purpose: each of these functions breaks one promise of the mediator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import msgspec
import pytest

from actors.core import contracts, message_queue
from actors.core import evolve as evolution
from actors.core import saved_events as archive
from actors.core.commands import (
    AcknowledgeMessages,
    Command,
    DeletePublicEvents,
    QueryContracts,
    QueryMessages,
)
from actors.core.decide import RULES, Sender, correspondent, owner, unreplaced_owner
from actors.core.decision import Accepted, Decision, DecisionContext, MessageRefs
from actors.core.identity import ContractRecord, Identity
from actors.core.limits import IdentityLimits
from actors.core.nonces import NonceWindow
from actors.core.refusals import Refusal
from actors.core.replies import Refused
from actors.core.submissions import Submission
from actors.host import transaction
from actors.host.host import Host
from actors.host.owned_partition import OwnedPartition
from actors.host.state_cache import CachedIdentity, StateCache
from actors.host.stored_states import read_identity
from actors.host.transaction import Outcome, Transaction
from eventstore.log import seal
from eventstore.log.errors import AppendConflict
from eventstore.log.events import ContractStored, Event, MessagesRemoved
from eventstore.log.streams import identity_stream
from eventstore.read_models import queue_depths, saved_events
from eventstore.stores import sqlite_contents, sqlite_log
from tests.model import systems

Sabotage: TypeAlias = Callable[[pytest.MonkeyPatch], None]
_FIRST: Final = "did:example:alice"


def decide_by(
    patch: pytest.MonkeyPatch,
    command: type[Command],
    function: Callable[[Identity, Any, DecisionContext], Decision],
) -> None:
    """Replace the function that decides on a command."""
    patch.setitem(RULES, command, RULES[command]._replace(decide=function))


def reply_whatever_the_append_says(patch: pytest.MonkeyPatch) -> None:
    append = Host._append

    def careless(self: Host, gathered: Transaction) -> None:
        append(self, gathered)

    patch.setattr(Host, "_append", careless)


def take_every_conflict_for_our_own(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Host, "_resolve_conflict", lambda _self, _gathered, _conflict=None: None)


def keep_the_partition_after_a_failed_append(patch: pytest.MonkeyPatch) -> None:
    def forget(self: Host, gathered: Transaction) -> None:
        for partition in gathered.partitions:
            self.cache.drop_partition(partition.name)

    patch.setattr(Host, "_forget", forget)


def keep_the_states_after_a_failed_append(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StateCache, "drop_partition", lambda _self, _partition: None)


def never_give_up_a_partition_with_a_newer_epoch(patch: pytest.MonkeyPatch) -> None:
    resolve = Host._resolve_conflict

    def stubborn(
        self: Host, gathered: Transaction, conflict: AppendConflict | None = None
    ) -> Refusal | None:
        assigned = set(self.ownership._assigned)
        refusal = resolve(self, gathered, conflict)
        self.ownership._assigned |= assigned
        return refusal

    patch.setattr(Host, "_resolve_conflict", stubborn)


def decide_on_the_log_instead_of_the_batch(patch: pytest.MonkeyPatch) -> None:
    def loaded(self: StateCache, did: str, partition: str, now_ms: int) -> CachedIdentity:
        state, version = read_identity(self._log, stream := identity_stream(did))
        return CachedIdentity(did, stream, partition, state, version, now_ms)

    patch.setattr(StateCache, "get", loaded)


def skip_the_nonce_check(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(NonceWindow, "holds", lambda _self, _key, _now_ms: False)


def forget_nonces_at_a_restart(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(seal, "unpack_nonces", lambda _packed: iter(()))


def keep_a_nonce_by_its_receipt_alone(patch: pytest.MonkeyPatch) -> None:
    def too_short(received_ms: int, _timestamp_ms: float, window_ms: int) -> int:
        return received_ms + window_ms

    patch.setattr(transaction, "expiry_ms", too_short)


def sweep_nonces_that_are_in_force(patch: pytest.MonkeyPatch) -> None:
    sweep = NonceWindow.sweep

    def early(self: NonceWindow, now_ms: int, window_ms: int) -> None:
        sweep(self, now_ms + 600_000, window_ms)
        self.forgotten_before_ms = 0

    patch.setattr(NonceWindow, "sweep", early)


def check_the_signature_before_the_nonce(patch: pytest.MonkeyPatch) -> None:
    decide = Host._decide

    def hasty(self: Host, gathered: Transaction, request: Submission) -> Outcome:
        if request.refusal is not None:
            return Outcome(Refused(request.refusal))
        return decide(self, gathered, request)

    patch.setattr(Host, "_decide", hasty)


def tell_foreign_ids_from_own(patch: pytest.MonkeyPatch) -> None:
    acknowledge = message_queue.acknowledge_messages

    def telling(
        state: Identity, command: AcknowledgeMessages, context: DecisionContext
    ) -> Decision:
        if set(command.message_ids) <= set(state.messages):
            return acknowledge(state, command, context)
        return Refusal.INVALID_COMMAND

    decide_by(patch, AcknowledgeMessages, telling)


def serve_all_from_one_identity(patch: pytest.MonkeyPatch) -> None:
    get = StateCache.get

    def mixed_up(self: StateCache, _did: str, partition: str, now_ms: int) -> CachedIdentity:
        return get(self, _FIRST, partition, now_ms)

    patch.setattr(StateCache, "get", mixed_up)


def count_an_expired_registration(patch: pytest.MonkeyPatch) -> None:
    for command, rule in RULES.items():
        if rule.sender in (owner, unreplaced_owner, correspondent):
            sender = _who_ever_registered(rule.sender)
            patch.setitem(RULES, command, rule._replace(sender=sender))


def _who_ever_registered(sender: Sender) -> Sender:
    return lambda state, context: None if state.registered_until_s else sender(state, context)


def let_contracts_last_for_ever(patch: pytest.MonkeyPatch) -> None:
    keep = evolution._keep_contract

    def for_ever(state: Identity, event: ContractStored, version: int) -> None:
        keep(state, event, version)
        for party in state.correspondents.values():
            party.until_s = 1e12

    patch.setattr(evolution, "_keep_contract", for_ever)


def store_the_same_contract_twice(patch: pytest.MonkeyPatch) -> None:
    keep = evolution._keep_contract

    def forgetful(state: Identity, event: ContractStored, version: int) -> None:
        keep(state, event, version)
        state.contract_ids.clear()

    patch.setattr(evolution, "_keep_contract", forgetful)


def include_the_bounds_of_a_filter(patch: pytest.MonkeyPatch) -> None:
    matches = contracts._matches

    def inclusive(record: ContractRecord, query: QueryContracts) -> bool:
        bounds = (query.expires_before_s, query.expires_after_s)
        return record.expires_at_s in bounds or matches(record, query)

    patch.setattr(contracts, "_matches", inclusive)


def offer_the_newest_message_first(patch: pytest.MonkeyPatch) -> None:
    query = message_queue.query_messages

    def backwards(state: Identity, command: QueryMessages, context: DecisionContext) -> Accepted:
        decision = query(state, command, context)
        assert isinstance(decision, Accepted)
        refs = decision.reply
        assert isinstance(refs, MessageRefs)
        return Accepted(MessageRefs(refs.versions[::-1], refs.total, refs.size_bytes))

    decide_by(patch, QueryMessages, backwards)


def forget_the_caps(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(systems, "LIMITS", IdentityLimits())


def keep_the_bytes_of_removed_messages(patch: pytest.MonkeyPatch) -> None:
    def heavy(state: Identity, event: Event) -> None:
        before = state.queue_bytes
        evolution.evolve(state, event)
        if isinstance(event, MessagesRemoved):
            state.queue_bytes = before

    patch.setattr(systems, "evolve", heavy)


def leave_something_out_of_snapshots(patch: pytest.MonkeyPatch) -> None:
    read = evolution.from_snapshot

    def forgetful(data: bytes) -> Identity | None:
        state = read(data)
        return state and msgspec.structs.replace(state, requests={})

    patch.setattr(systems, "from_snapshot", forgetful)


def start_a_new_chain_with_every_seal(patch: pytest.MonkeyPatch) -> None:
    make = OwnedPartition.seal

    def unchained(self: OwnedPartition, *rows: Any, **fields: Any) -> Any:
        self.digest = seal.GENESIS
        return make(self, *rows, **fields)

    patch.setattr(OwnedPartition, "seal", unchained)


def seal_nothing(patch: pytest.MonkeyPatch) -> None:
    make = OwnedPartition.seal

    def empty(self: OwnedPartition, _rows: Any, _events: Any, *rest: Any, **fields: Any) -> Any:
        return make(self, [], [], *rest, **fields)

    patch.setattr(OwnedPartition, "seal", empty)


def leave_tags_as_they_were(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(saved_events, "update_tags", lambda *_: None)


def leave_the_depths_of_queues_as_they_were(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(queue_depths, "save", lambda *_: None)


def leave_contents_of_removed_messages(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sqlite_log, "erased_by", lambda *_: [])


def keep_no_contents(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sqlite_contents, "keep", lambda *_: None)


def erase_what_still_waits(patch: pytest.MonkeyPatch) -> None:
    removal = message_queue.removal

    def all_of_it(state: Identity, *of_some: Any) -> MessagesRemoved:
        versions = [message.version for message in state.messages.values()]
        return msgspec.structs.replace(removal(state, *of_some), versions=versions)

    patch.setattr(message_queue, "removal", all_of_it)


def withdraw_from_every_channel(patch: pytest.MonkeyPatch) -> None:
    delete = archive.delete_public_events

    def everywhere(
        state: Identity, command: DeletePublicEvents, context: DecisionContext
    ) -> Accepted:
        return delete(state, DeletePublicEvents(command.event_ids), context)

    decide_by(patch, DeletePublicEvents, everywhere)


IN_THE_CORE: Final[Sequence[Sabotage]] = (
    skip_the_nonce_check,
    tell_foreign_ids_from_own,
    count_an_expired_registration,
    let_contracts_last_for_ever,
    store_the_same_contract_twice,
    include_the_bounds_of_a_filter,
    offer_the_newest_message_first,
    forget_the_caps,
    keep_the_bytes_of_removed_messages,
    leave_something_out_of_snapshots,
    withdraw_from_every_channel,
)
IN_THE_HOST: Final[Sequence[Sabotage]] = (
    reply_whatever_the_append_says,
    take_every_conflict_for_our_own,
    keep_the_partition_after_a_failed_append,
    keep_the_states_after_a_failed_append,
    never_give_up_a_partition_with_a_newer_epoch,
    decide_on_the_log_instead_of_the_batch,
    forget_nonces_at_a_restart,
    keep_a_nonce_by_its_receipt_alone,
    sweep_nonces_that_are_in_force,
    check_the_signature_before_the_nonce,
    serve_all_from_one_identity,
    start_a_new_chain_with_every_seal,
    seal_nothing,
    leave_tags_as_they_were,
    leave_the_depths_of_queues_as_they_were,
    leave_contents_of_removed_messages,
    keep_no_contents,
    erase_what_still_waits,
)
