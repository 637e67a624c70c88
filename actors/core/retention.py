"""Retention: the removal of an identity's records when they expire.

A message expires after the operator's age, its owner's, or the time that its sender set, whichever
comes first; a contract request and a public event after the operator's age. A contract is removed
some time after its own expiry. Some time after an identity's registration has ended, all that waits
for it is removed with its contracts. The account of an agent that has been silent too long ends
(``actors.core.idle_agents``). Rules of this file: pure; every removal is an event that says why;
the times that a state reports (``due_times``) depend on no setting, so that settings may change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice, takewhile
from math import ceil
from typing import Final, NamedTuple

import msgspec

from actors.core import erasure, idle_agents
from actors.core.commands import ExpireRecords
from actors.core.contracts import requests_expired
from actors.core.decision import Accepted, DecisionContext
from actors.core.identity import Identity, PublicEvent, WaitingRequest
from actors.core.limits import IdentityLimits
from actors.core.message_queue import EXPIRED, due_messages, lapsed_messages, removal
from actors.core.replies import Erased, Expired
from eventstore.log.event_log import Due
from eventstore.log.events import ContractExpired, Event, PublicEventsExpired, Seconds

UNREGISTERED: Final = "unregistered"
CONTRACTS_MAX: Final = 64
"""Contracts that one command removes; the fold scans all that are left once for them."""
PUBLIC_EVENTS_MAX: Final = 16
"""Public events that one command removes: each has up to 64 tags, on two lists per tag."""


class DueTimes(NamedTuple):
    """The times from which records of an identity may be due, in Unix milliseconds; None for none.

    ``expires_at_ms`` is when its first message expires by its sender's or its owner's rule. From
    each of the others an operator's age counts: the oldest contract request, the first expiry of a
    contract, the end of the registration (if the identity has anything to remove), the last sign of
    life of an agent, and the oldest public event.
    """

    expires_at_ms: int | None
    requests_since_ms: int | None
    contracts_until_ms: int | None
    registered_until_ms: int | None
    idle_since_ms: int | None
    published_since_ms: int | None


def due_times(state: Identity) -> DueTimes:
    """The times by which the search for due records finds this identity."""
    oldest = next(iter(state.requests.values()), None) if state.requests else None
    anything = state.messages or state.requests or state.contracts
    is_client = state.registered_until_s and state.connection is None
    return DueTimes(
        _expires_at_ms(state) if state.messages or state.erasing else None,
        None if oldest is None else oldest.at_ms,
        _ms(state.contracts_until_s) if state.contracts else None,
        _ms(state.registered_until_s) if is_client and anything else None,
        idle_agents.idle_from_ms(state),
        next((event.at_ms for event in state.public_events.values()), None),
    )


def due_until_ms(limits: IdentityLimits, now_ms: int) -> dict[Due, int]:
    """For each of these times, the latest value at which something is due now."""
    messages_s, requests_s = limits.queue_age_s_max, limits.contract_requests_age_s_max
    public_s = limits.public_events_age_s_max
    ages_ms = {
        Due.EXPIRING: 0,
        # Messages, requests and public events must exceed their age; the others need only reach it.
        Due.MESSAGES: messages_s and messages_s * 1000 + 1,
        Due.REQUESTS: requests_s and requests_s * 1000 + 1,
        Due.CONTRACTS: limits.expired_contracts_age_s_max * 1000,
        Due.REGISTRATION: limits.unregistered_age_s_max * 1000,
        Due.IDLE: idle_agents.ends_after_ms(limits),
        Due.PUBLIC_EVENTS: public_s and public_s * 1000 + 1,
    }
    if limits.idle_agents_since_ms + ages_ms[Due.IDLE] > now_ms:
        del ages_ms[Due.IDLE]
    return {
        time: now_ms - age_ms for time, age_ms in ages_ms.items() if age_ms or time is Due.EXPIRING
    }


def lapsed(state: Identity, context: DecisionContext) -> list[Event]:
    """The removals to make before any command, so that no client sees expired records."""
    messages = lapsed_messages(state, context)
    events: list[Event] = [] if messages is None else [messages]
    if state.requests and (requests := _old_requests(state, context)):
        events.append(requests_expired(state, requests, EXPIRED, context))
    return events


def expire(state: Identity, command: ExpireRecords, context: DecisionContext) -> Accepted:
    """Remove a bounded number of due records."""
    if state.erasing:
        step = erasure.next_step(state, command.records_max, context)
        assert isinstance(step.reply, Erased)
        return Accepted(Expired(step.reply.records + 1, 0, 0), step.events)
    if idle_agents.is_idle(state, context):
        return idle_agents.end(state, context)
    is_over, most = _is_unregistered(state, context), command.records_max
    if idle_agents.has_left_envelopes(state) and not is_over:
        return idle_agents.remove_left(state, most, context)
    reason = UNREGISTERED if is_over else EXPIRED
    messages = list(state.messages) if is_over else due_messages(state, context)
    messages = messages[:most]
    requests = list(state.requests) if is_over else _old_requests(state, context)
    requests = requests[: most - len(messages)]
    contracts = _contracts_expired(
        state, most - len(messages) - len(requests), reason, context, is_over=is_over
    )
    events: list[Event] = []
    if messages:
        events.append(removal(state, messages, reason, context))
    if requests:
        events.append(requests_expired(state, requests, reason, context))
    gone = Expired(len(messages), len(requests), len(contracts))
    if public_events := _old_public_events(state, most - gone.records, context):
        events.append(_public_events_expired(state, public_events, context))
        gone = msgspec.structs.replace(gone, public_events=len(public_events))
    return Accepted(gone, [*events, *contracts])


def _expires_at_ms(state: Identity) -> int | None:
    """When the first message expires by its sender's expiry or by the owner's rule for envelopes.

    0 for an identity that is being erased, or an idle account that has ended with envelopes left:
    its next step is always due.
    """
    if state.erasing or idle_agents.has_left_envelopes(state):
        return 0
    first = _ms(state.expires_first_s) if state.expires_first_s else None
    own_s = state.policy.age_s_max if state.policy is not None else 0
    if not own_s or not state.envelopes:
        return first
    oldest = state.messages[next(iter(state.envelopes))]
    by_rule = oldest.at_ms + own_s * 1000 + 1
    return by_rule if first is None else min(first, by_rule)


def _ms(at_s: Seconds) -> int:
    return ceil(at_s * 1000)


def _is_unregistered(state: Identity, context: DecisionContext) -> bool:
    """Has the registration been over for the operator's age? An agent has no registration."""
    age_s, until_s = context.limits.unregistered_age_s_max, state.registered_until_s
    if not age_s or not until_s or state.connection is not None:
        return False
    return until_s + age_s <= context.expiring_s


def _old_requests(state: Identity, context: DecisionContext) -> list[str]:
    return list(_old(state.requests, context.limits.contract_requests_age_s_max, context))


def _old_public_events(state: Identity, most: int, context: DecisionContext) -> list[str]:
    """Public events that were published too long ago, oldest first.

    Only ``ExpireRecords`` removes them, not every command: taking one off its lists costs more than
    removing a message, and pages of public events are read outside of transactions.
    """
    old = _old(state.public_events, context.limits.public_events_age_s_max, context)
    return list(islice(old, min(most, PUBLIC_EVENTS_MAX)))


def _old(
    records: Mapping[str, WaitingRequest | PublicEvent], age_s: int, context: DecisionContext
) -> Iterator[str]:
    """The ids of the first records, as far as they are older than ``age_s``; none if that is 0."""
    before_ms = context.expiring_ms - age_s * 1000 if age_s else 0
    old = takewhile(lambda one: one[1].at_ms < before_ms, records.items())
    return (record_id for record_id, _ in old)


def _public_events_expired(
    state: Identity, event_ids: list[str], context: DecisionContext
) -> PublicEventsExpired:
    return PublicEventsExpired(
        at_ms=context.now_ms,
        command=context.command,
        event_ids=event_ids,
        reason=EXPIRED,
        versions=[state.public_events[event_id].version for event_id in event_ids],
    )


def _contracts_expired(
    state: Identity, most: int, reason: str, context: DecisionContext, *, is_over: bool
) -> list[Event]:
    """The events that remove expired contracts, or all contracts if ``is_over``."""
    age_s = context.limits.expired_contracts_age_s_max
    until_s = context.expiring_s - age_s
    if not is_over and not (age_s and 0 < state.contracts_until_s <= until_s):
        return []
    due = (i for i, kept in state.contracts.items() if is_over or kept.expires_at_s <= until_s)
    chosen = list(islice(due, min(most, CONTRACTS_MAX)))
    digests = {contract_id: digest for digest, contract_id in state.contract_ids.items()}
    return [
        ContractExpired(
            at_ms=context.now_ms,
            command=context.command,
            contract_id=contract_id,
            digest=digests.get(contract_id, b""),
            reason=reason,
        )
        for contract_id in chosen
    ]
