"""Defects put in on purpose where DIDComm's agents, keys and envelopes are decided and kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import msgspec
import pytest

from actors.core import agents, envelopes, forwarded, idle_agents, retention
from actors.core import evolve as evolution
from actors.core.commands import (
    ClaimKey,
    DeliverMessages,
    QueueEnvelopes,
    ReleaseKey,
    RemoveMessages,
    SeeAgent,
    SetQueuePolicy,
    UseInvitation,
)
from actors.core.decision import Accepted, Decision, DecisionContext, DeliveryRefs
from actors.core.identity import Identity, QueuedMessage
from actors.core.leases import Leases
from actors.core.refusals import Refusal
from actors.core.replies import QueueState
from actors.core.sessions import NO_LIVE_MODE, LiveMode, Sessions
from actors.core.submissions import Submission
from actors.host.host import Host
from actors.host.pages import PageReader
from actors.host.session_registry import SessionRegistry
from actors.host.transaction import Transaction
from eventstore.log.events import Event, MessageQueued, MessagesRemoved, QueueRefused
from tests.model import systems
from tests.model.sabotages import Sabotage, decide_by

_replace = msgspec.structs.replace


def _evolve_else(patch: pytest.MonkeyPatch, afterwards: Callable[[Identity, Event], None]) -> None:
    def evolve(state: Identity, event: Event) -> None:
        evolution.evolve(state, event)
        afterwards(state, event)

    patch.setattr(systems, "evolve", evolve)


def hand_out_what_is_leased(patch: pytest.MonkeyPatch) -> None:
    deliver = envelopes.deliver

    def careless(state: Identity, command: DeliverMessages, context: DecisionContext) -> Decision:
        own = {i: held for i, held in context.leases.items() if held.session == command.session}
        return deliver(state, command, _replace(context, leases=own))

    decide_by(patch, DeliverMessages, careless)


def remove_what_is_handed_out(patch: pytest.MonkeyPatch) -> None:
    deliver = envelopes.deliver

    def final(state: Identity, command: DeliverMessages, context: DecisionContext) -> Decision:
        decision = deliver(state, command, context)
        if isinstance(decision, Accepted) and decision.leasing is not None:
            removal = RemoveMessages([*decision.leasing.message_ids], "delivered")
            removed = envelopes.remove(state, removal, context)
            assert isinstance(removed, Accepted)
            return _replace(decision, events=[*decision.events, *removed.events])
        return decision

    decide_by(patch, DeliverMessages, final)


def hand_out_the_newest_first(patch: pytest.MonkeyPatch) -> None:
    offered = envelopes._offered

    def backwards(*request: Any) -> Iterator[tuple[str, QueuedMessage]]:
        return reversed([*offered(*request)])

    patch.setattr(envelopes, "_offered", backwards)


def let_a_claim_overwrite_another(patch: pytest.MonkeyPatch) -> None:
    claim = agents.claim_key

    def bold(state: Identity, command: ClaimKey, context: DecisionContext) -> Decision:
        is_own = state.owner_did == command.owner_did
        free = _replace(state, owner_did="")
        return claim(state if is_own else free, command, context)

    decide_by(patch, ClaimKey, bold)


def let_any_peer_release_a_key(patch: pytest.MonkeyPatch) -> None:
    release = agents.release_key

    def generous(state: Identity, command: ReleaseKey, context: DecisionContext) -> Decision:
        owner = state.owner_did or "none"
        return release(state, ReleaseKey(owner, command.claim), context)

    decide_by(patch, ReleaseKey, generous)


def let_a_late_release_end_a_later_claim(patch: pytest.MonkeyPatch) -> None:
    release = agents.release_key

    def late(state: Identity, command: ReleaseKey, context: DecisionContext) -> Decision:
        return release(state, _replace(command, claim=state.claim), context)

    decide_by(patch, ReleaseKey, late)


def let_any_peer_use_the_invitation(patch: pytest.MonkeyPatch) -> None:
    use = agents.use_invitation

    def again(_state: Identity, command: UseInvitation, context: DecisionContext) -> Decision:
        return use(Identity(), command, context)

    decide_by(patch, UseInvitation, again)


def queue_for_unknown_keys(patch: pytest.MonkeyPatch) -> None:
    queue = forwarded.queue_envelopes

    def lenient(state: Identity, command: QueueEnvelopes, context: DecisionContext) -> Decision:
        if state.connection is None or command.recipient_key in state.keylist:
            return queue(state, command, context)
        return queue(state, _replace(command, recipient_key=""), context)

    decide_by(patch, QueueEnvelopes, lenient)


def count_the_cap_by_protocol(patch: pytest.MonkeyPatch) -> None:
    def is_full(
        state: Identity,
        _depths: object,
        _origin: str,
        size_bytes: int,
        messages_max: int,
        bytes_max: int,
        _share: float,
        others: int = 0,
    ) -> bool:
        too_heavy = state.envelope_bytes + size_bytes > bytes_max
        return too_heavy or len(state.envelopes) + others >= messages_max

    patch.setattr(envelopes, "is_full", is_full)


def let_the_owner_go_beyond_the_operator(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(envelopes, "_stricter", lambda own, bound: own or bound)


def forget_rules_that_a_change_does_not_name(patch: pytest.MonkeyPatch) -> None:
    set_policy = envelopes.set_policy

    def anew(state: Identity, command: SetQueuePolicy, context: DecisionContext) -> Decision:
        return set_policy(_replace(state, policy=None), command, context)

    decide_by(patch, SetQueuePolicy, anew)


def queue_for_who_wants_nothing_queued(patch: pytest.MonkeyPatch) -> None:
    queue = forwarded.queue_envelopes

    def deaf(state: Identity, command: QueueEnvelopes, context: DecisionContext) -> Decision:
        return queue(state, command, _replace(context, listening=True))

    decide_by(patch, QueueEnvelopes, deaf)


def record_every_refusal(patch: pytest.MonkeyPatch) -> None:
    def forget(state: Identity, event: Event) -> None:
        if isinstance(event, QueueRefused):
            state.refusing = False

    _evolve_else(patch, forget)


def expire_a_second_early(patch: pytest.MonkeyPatch) -> None:
    lapsed = retention.lapsed

    def hasty(state: Identity, context: DecisionContext) -> list[Event]:
        found = lapsed(state, _replace(context, now_ms=context.now_ms + 1_000))
        return [_replace(event, at_ms=context.now_ms) for event in found]

    patch.setattr(systems, "lapsed", hasty)


def expire_decentrls_messages_by_the_owners_rule(patch: pytest.MonkeyPatch) -> None:
    lapsed = retention.lapsed

    def strict(state: Identity, context: DecisionContext) -> list[Event]:
        return lapsed(_replace(state, envelopes=dict.fromkeys(state.messages)), context)

    patch.setattr(systems, "lapsed", strict)


def end_silent_agents_an_hour_early(patch: pytest.MonkeyPatch) -> None:
    is_idle = idle_agents.is_idle

    def hasty(state: Identity, context: DecisionContext) -> bool:
        return is_idle(state, _replace(context, now_ms=context.now_ms + 3_600_000))

    patch.setattr(idle_agents, "is_idle", hasty)


def count_what_others_send_as_traffic(patch: pytest.MonkeyPatch) -> None:
    def flattered(state: Identity, event: Event) -> None:
        if isinstance(event, MessageQueued):
            state.seen_ms = event.at_ms

    _evolve_else(patch, flattered)


def forget_polls(patch: pytest.MonkeyPatch) -> None:
    def deaf(state: Identity, command: SeeAgent, context: DecisionContext) -> Accepted:
        return _replace(idle_agents.see(state, command, context), events=[])

    decide_by(patch, SeeAgent, deaf)


def record_every_poll(patch: pytest.MonkeyPatch) -> None:
    def eager(state: Identity, command: SeeAgent, context: DecisionContext) -> Accepted:
        return idle_agents.see(_replace(state, seen_ms=0), command, context)

    decide_by(patch, SeeAgent, eager)


def leave_the_envelopes_of_an_agent_that_ended(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(idle_agents, "has_left_envelopes", lambda _state: False)


def expire_public_events_a_second_early(patch: pytest.MonkeyPatch) -> None:
    old = retention._old_public_events

    def hasty(state: Identity, most: int, context: DecisionContext) -> list[str]:
        return old(state, most, _replace(context, now_ms=context.now_ms + 1_000))

    patch.setattr(retention, "_old_public_events", hasty)


def end_an_agent_that_is_registered(patch: pytest.MonkeyPatch) -> None:
    is_idle = idle_agents.is_idle

    def strict(state: Identity, context: DecisionContext) -> bool:
        return is_idle(_replace(state, registered_until_s=0), context)

    patch.setattr(idle_agents, "is_idle", strict)


def remove_ids_of_the_other_protocol(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(envelopes, "_is_envelope", lambda state, message_id: message_id in state.messages)


def record_ids_that_are_not_there(patch: pytest.MonkeyPatch) -> None:
    remove = envelopes.remove

    def telling(state: Identity, command: RemoveMessages, context: DecisionContext) -> Decision:
        decision = remove(state, command, context)
        if not decision.events:
            nothing = MessagesRemoved(
                at_ms=context.now_ms,
                command=context.command,
                message_ids=[],
                reason=command.reason,
                versions=[],
            )
            return _replace(decision, events=[nothing])
        return decision

    decide_by(patch, RemoveMessages, telling)


def deliver_live_to_any_session(patch: pytest.MonkeyPatch) -> None:
    deliver = envelopes.deliver

    def anyone(state: Identity, command: DeliverMessages, context: DecisionContext) -> Decision:
        return deliver(state, command, _replace(context, live=LiveMode("edge-0", command.session)))

    decide_by(patch, DeliverMessages, anyone)


def deliver_implicitly_after_a_takeover(patch: pytest.MonkeyPatch) -> None:
    deliver = envelopes.deliver

    def late(state: Identity, command: DeliverMessages, context: DecisionContext) -> Decision:
        return deliver(state, command, _replace(context, implicit=""))

    decide_by(patch, DeliverMessages, late)


def deliver_implicitly_beside_a_newer_live_mode(patch: pytest.MonkeyPatch) -> None:
    deliver = envelopes.deliver

    def beside(state: Identity, command: DeliverMessages, context: DecisionContext) -> Decision:
        live = NO_LIVE_MODE if command.implicit else context.live
        return deliver(state, command, _replace(context, live=live))

    decide_by(patch, DeliverMessages, beside)


def keep_what_was_held_implicitly_at_a_takeover(patch: pytest.MonkeyPatch) -> None:
    start = Sessions.start_implicit

    def keeping(self: Sessions, did: str, edge: str, session: str) -> str:
        start(self, did, edge, session)
        return ""

    patch.setattr(Sessions, "start_implicit", keeping)


def deliver_live_without_a_bound(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(envelopes, "_held_live", lambda _state, _moment: -100)


def push_past_what_waits_before(patch: pytest.MonkeyPatch) -> None:
    goes_live = forwarded._goes_live

    def hasty(state: Identity, size_bytes: int, context: DecisionContext) -> bool:
        return goes_live(_replace(state, messages={}), size_bytes, context)

    patch.setattr(forwarded, "_goes_live", hasty)


def push_to_a_session_that_is_full(patch: pytest.MonkeyPatch) -> None:
    goes_live = forwarded._goes_live

    def generous(state: Identity, size_bytes: int, context: DecisionContext) -> bool:
        bounds = _replace(context.limits, live_in_flight_max=99)
        return goes_live(state, size_bytes, _replace(context, limits=bounds))

    patch.setattr(forwarded, "_goes_live", generous)


def push_without_a_lease(patch: pytest.MonkeyPatch) -> None:
    delivered_live = forwarded._delivered_live

    def careless(*decided: Any) -> Accepted:
        return _replace(delivered_live(*decided), leasing=None)

    patch.setattr(forwarded, "_delivered_live", careless)


def count_what_is_leased_as_available(patch: pytest.MonkeyPatch) -> None:
    standing = envelopes.queue_state

    def hopeful(state: Identity, context: DecisionContext, *rest: Any, **more: Any) -> QueueState:
        return standing(state, _replace(context, leases={}), *rest, **more)

    patch.setattr(envelopes, "queue_state", hopeful)


def leave_the_keylist_out_of_snapshots(patch: pytest.MonkeyPatch) -> None:
    def forgetful(data: bytes) -> Identity | None:
        state = evolution.from_snapshot(data)
        return state and _replace(state, keylist={})

    patch.setattr(systems, "from_snapshot", forgetful)


def keep_leases_of_a_failed_append(patch: pytest.MonkeyPatch) -> None:
    forget = Host._forget

    def stubborn(self: Host, gathered: Transaction) -> None:
        gathered.leased.clear()
        forget(self, gathered)

    patch.setattr(Host, "_forget", stubborn)


def lease_after_the_transaction(patch: pytest.MonkeyPatch) -> None:
    append, requests = Host._append, list[Submission]()

    def note(_self: Host, gathered: Transaction, request: Submission, decision: Accepted) -> None:
        if decision.leasing is not None:
            gathered.leased.append((request.target_did, decision.leasing))
            requests.append(request)

    def late(self: Host, gathered: Transaction) -> Refusal | None:
        refusal = append(self, gathered)
        for request, (_, leasing) in zip(requests, gathered.leased, strict=True):
            if refusal is None:
                self.registry.lease(request, leasing)
        requests.clear()
        return refusal

    patch.setattr(Host, "_lease", note)
    patch.setattr(Host, "_append", late)


def hand_over_no_leases(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Leases, "put", lambda _self, _did, _taken, _now_ms: None)


def hand_over_no_sessions(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Sessions, "put", lambda _self, _did, _taken: None)


def never_end_a_lease(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Leases, "expire", lambda _self, _now_ms: set())


def keep_what_a_session_holds_that_ended(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Leases, "release", lambda _self, _did, _session: False)


def keep_what_was_in_flight_at_a_takeover(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SessionRegistry, "_release", lambda *_: None)


def release_what_everybody_holds(patch: pytest.MonkeyPatch) -> None:
    def all_of_it(self: Leases, did: str, _session: str) -> bool:
        self.end(did, [*self.of(did)])
        return True

    patch.setattr(Leases, "release", all_of_it)


def deliver_another_payload(patch: pytest.MonkeyPatch) -> None:
    fill = PageReader.fill

    def shuffled(self: PageReader, owner: Any, refs: Any, known: Any) -> Any:
        if isinstance(refs, DeliveryRefs):
            return fill(self, owner, _replace(refs, versions=refs.versions[::-1]), known)
        return fill(self, owner, refs, known)

    patch.setattr(PageReader, "fill", shuffled)


def leave_out_the_removal_of_what_expired(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("actors.host.state_cache.lapsed", lambda _state, _moment: [])


IN_THE_CORE: Final[Sequence[Sabotage]] = (
    hand_out_what_is_leased,
    remove_what_is_handed_out,
    hand_out_the_newest_first,
    let_a_claim_overwrite_another,
    let_any_peer_release_a_key,
    let_a_late_release_end_a_later_claim,
    let_any_peer_use_the_invitation,
    queue_for_unknown_keys,
    count_the_cap_by_protocol,
    let_the_owner_go_beyond_the_operator,
    forget_rules_that_a_change_does_not_name,
    queue_for_who_wants_nothing_queued,
    record_every_refusal,
    expire_a_second_early,
    expire_decentrls_messages_by_the_owners_rule,
    end_silent_agents_an_hour_early,
    count_what_others_send_as_traffic,
    forget_polls,
    record_every_poll,
    leave_the_envelopes_of_an_agent_that_ended,
    end_an_agent_that_is_registered,
    expire_public_events_a_second_early,
    remove_ids_of_the_other_protocol,
    record_ids_that_are_not_there,
    deliver_live_to_any_session,
    deliver_implicitly_after_a_takeover,
    deliver_implicitly_beside_a_newer_live_mode,
    keep_what_was_held_implicitly_at_a_takeover,
    deliver_live_without_a_bound,
    push_past_what_waits_before,
    push_to_a_session_that_is_full,
    push_without_a_lease,
    count_what_is_leased_as_available,
    leave_the_keylist_out_of_snapshots,
    never_end_a_lease,
    release_what_everybody_holds,
)
IN_THE_HOST: Final[Sequence[Sabotage]] = (
    keep_leases_of_a_failed_append,
    lease_after_the_transaction,
    keep_what_a_session_holds_that_ended,
    keep_what_was_in_flight_at_a_takeover,
    hand_over_no_leases,
    hand_over_no_sessions,
    deliver_another_payload,
    leave_out_the_removal_of_what_expired,
)
