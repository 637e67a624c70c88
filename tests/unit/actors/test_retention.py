"""The search finds what is due in the millisecond in which it may leave; a step is bounded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest

from actors.core.commands import Connection, ExpireRecords, RemoveMessages
from actors.core.decide import decide
from actors.core.decision import Accepted
from actors.core.evolve import evolve
from actors.core.identity import Identity
from actors.core.limits import IdentityLimits
from actors.core.replies import Expired
from actors.core.retention import CONTRACTS_MAX, PUBLIC_EVENTS_MAX, due_times, due_until_ms
from eventstore.log.event_log import Due, EventLog
from eventstore.log.events import (
    ConnectionEstablished,
    ContractRequested,
    ContractStored,
    Event,
    IdentityRegistered,
)
from tests.log.samples import AT_MS, COMMAND, OTHER_DID, content, message, published
from tests.unit.actors.didcomm import ME as AGENT
from tests.unit.actors.given import NOW_MS, HandClock, connection, context, host, run, unclaimed
from tests.unit.actors.test_leases import queue

ME: Final = "did:x:me"
AT_S: Final = AT_MS // 1000
AGE_S: Final = 86_400
AGED: Final = IdentityLimits(
    queue_age_s_max=AGE_S,
    contract_requests_age_s_max=AGE_S,
    expired_contracts_age_s_max=AGE_S,
    unregistered_age_s_max=AGE_S,
    public_events_age_s_max=AGE_S,
    idle_agents_age_s_max=AGE_S,
)


def requested(number: int) -> ContractRequested:
    return ContractRequested(
        at_ms=AT_MS,
        command=COMMAND,
        request_id=f"request {number}",
        sender_did=OTHER_DID,
        encrypted_contract_request=content(b"request"),
        requestor_ephemeral_public_key="key",
    )


def stored(number: int) -> ContractStored:
    return ContractStored(
        at_ms=AT_MS,
        command=COMMAND,
        contract_id=f"contract {number}",
        requestor_did=f"did:x:{number}",
        recipient_did=ME,
        expires_at_s=AT_S,
        digest=b"%d" % number,
        contract=b"c",
    )


def registered(until_s: int = AT_S) -> IdentityRegistered:
    return IdentityRegistered(
        at_ms=AT_MS, command=COMMAND, did=ME, expires_at_s=until_s, contract=b"{}"
    )


def connected(said: Connection) -> ConnectionEstablished:
    return ConnectionEstablished(
        at_ms=AT_MS,
        command=COMMAND,
        did=ME,
        peer_did=said.peer_did,
        label=said.label,
        endpoint=said.endpoint,
        routing_keys=list(said.routing_keys),
        protocol=said.protocol,
        invitation_id=said.invitation_id,
    )


def identity(*events: Event) -> Identity:
    state = Identity()
    for event in events:
        evolve(state, event)
    return state


def found(state: Identity, limits: IdentityLimits, now_ms: int) -> set[Due]:
    """By which times the search finds an identity now."""
    oldest_ms = next((one.at_ms for one in state.messages.values()), None)
    times = {**due_times(state)._asdict(), Due.MESSAGES.value: oldest_ms}
    until_ms = due_until_ms(limits, now_ms)
    at_ms = {due: times[due.value] for due in until_ms}
    return {due for due, since in at_ms.items() if since is not None and since <= until_ms[due]}


def expired(state: Identity, limits: IdentityLimits, now_ms: int, records_max: int = 64) -> Expired:
    decided = decide(state, ExpireRecords(records_max), context(now_ms, target=ME, limits=limits))
    assert isinstance(decided, Accepted)
    assert isinstance(decided.reply, Expired)
    return decided.reply


@pytest.mark.parametrize(
    ("due", "events", "age_s"),
    [
        (Due.MESSAGES, [message()], AGE_S + 0.001),
        (Due.REQUESTS, [requested(0)], AGE_S + 0.001),
        (Due.PUBLIC_EVENTS, [published("one")], AGE_S + 0.001),
        (Due.CONTRACTS, [stored(0)], AGE_S),
        (Due.REGISTRATION, [registered(), stored(0)], AGE_S),
        # A sign of life counts from the end of its hour.
        (Due.IDLE, [connected(connection())], AGE_S + AGE_S // 8 - AT_S % -3_600),
    ],
)
def test_what_is_due_is_found_in_the_millisecond_in_which_it_may_leave(
    due: Due, events: list[Event], age_s: float
) -> None:
    state, now_ms = identity(*events), AT_MS + round(age_s * 1000)
    assert found(state, AGED, now_ms - 1) == set()
    assert expired(state, AGED, now_ms - 1) == Expired(0, 0, 0)
    assert due in found(state, AGED, now_ms)
    assert expired(state, AGED, now_ms) != Expired(0, 0, 0)


def test_idle_agents_are_not_looked_for_before_an_age_has_passed_since_they_are_watched() -> None:
    state = identity(connected(connection()))
    since_ms, after_ms = AT_MS + 10 * AGE_S * 1000, (AGE_S + AGE_S // 8) * 1000
    limits = IdentityLimits(idle_agents_age_s_max=AGE_S, idle_agents_since_ms=since_ms)
    for now_ms, is_due in ((since_ms + after_ms - 1, False), (since_ms + after_ms, True)):
        assert (Due.IDLE in found(state, limits, now_ms)) is is_due
        assert bool(expired(state, limits, now_ms).agents) is is_due


def test_who_was_never_registered_is_not_taken_for_one_who_is_no_longer() -> None:
    limits = IdentityLimits(queue_age_s_max=0, unregistered_age_s_max=AGE_S)
    state = identity(message(), requested(0))
    assert expired(state, limits, AT_MS + 100 * AGE_S * 1000).messages == 0


def test_the_search_knows_the_oldest_message_that_waits_whatever_left_and_came(
    log: EventLog, clock: HandClock
) -> None:
    owner = host(log, clock=clock)

    def found_since() -> list[int]:
        page = log.due_identities(Due.MESSAGES, until_ms=clock.now_ms, after=None, limit=9)
        return [one.place.at_ms for one in page]

    (first,) = queue(owner, b"1")
    clock.now_ms += 1_000
    (second,) = queue(owner, b"2")
    assert found_since() == [NOW_MS]
    run(owner, unclaimed(AGENT, RemoveMessages([first], "acknowledged")))
    assert found_since() == [NOW_MS + 1_000]
    run(owner, unclaimed(AGENT, RemoveMessages([second], "acknowledged")))
    assert found_since() == []
    clock.now_ms += 1_000
    queue(owner, b"3")
    assert found_since() == [NOW_MS + 2_000]


@pytest.mark.parametrize("records_max", [1, 3, 5, 7])
def test_a_step_removes_no_more_records_than_it_may(records_max: int) -> None:
    state = identity(
        registered(),
        *[message(message_id=f"message {n}") for n in range(2)],
        *[requested(n) for n in range(2)],
        *[stored(n) for n in range(2)],
        *[published(f"event {n}") for n in range(2)],
    )
    now_ms = AT_MS + 2 * AGE_S * 1000
    for limits in (AGED, IdentityLimits(unregistered_age_s_max=AGE_S, public_events_age_s_max=1)):
        gone = expired(state, limits, now_ms, records_max)
        assert gone.records == records_max


@pytest.mark.parametrize(
    ("kind", "most"), [(stored, CONTRACTS_MAX), (lambda n: published(f"{n}"), PUBLIC_EVENTS_MAX)]
)
def test_a_step_removes_so_many_contracts_and_public_events_however_many_it_may(
    kind: Callable[[int], Event], most: int
) -> None:
    state = identity(*map(kind, range(most + 1)))
    gone = expired(state, AGED, AT_MS + 2 * AGE_S * 1000, 1_000)
    assert gone.contracts + gone.public_events == most
