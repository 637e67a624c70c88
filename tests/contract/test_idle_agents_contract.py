"""An agent from which nothing comes for too long ends by itself, in steps, on both stores."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Final

import pytest

from actors.core.commands import (
    ClaimedKey,
    Command,
    Connect,
    DedicateIdentity,
    DedicationReason,
    DeliverMessages,
    GrantMediation,
    NameSpeaker,
    PushDevice,
    QueryQueue,
    QueueEnvelopes,
    QueueMessage,
    RemoveMessages,
    RotateAccount,
    SaveContract,
    SeeAgent,
    SetPushDevice,
    SetQueuePolicy,
    StartLive,
    UpdateKeylist,
)
from actors.core.idle_agents import seen_every_s
from actors.core.limits import HostLimits, IdentityLimits, RetentionPace
from actors.core.refusals import Refusal
from actors.core.replies import (
    AgentNoted,
    Delivery,
    EnvelopeQueued,
    QueueState,
    Refused,
    Reply,
)
from actors.core.submissions import Submission
from actors.host.expiry import MARK, watched
from actors.host.measures import families
from eventstore.log.event_log import Due, EventLog
from eventstore.log.events import AccountExpired, AgentSeen, MessagesRemoved
from eventstore.read_models.queue_depths import DUE_COLUMNS
from eventstore.stores.open_log import open_store
from eventstore.stores.recorder_log import rebuild_read_models
from tests.contract.conftest import OpenLog
from tests.contract.test_erasure_contract import wrong
from tests.contract.test_retention_contract import Mediator, is_sound
from tests.log.faulty_log import ConflictNext, FailNext, FaultyLog, Plan, StoredButFailed
from tests.log.raw_sql import run_sql
from tests.unit.actors.didcomm import DEVICE, KEY, claimed
from tests.unit.actors.given import (
    NOW_S,
    connection,
    contract,
    registration,
    run,
    submission,
    unclaimed,
)

AGENT: Final = "did:key:z6MkAgent"
OTHER: Final = "did:key:z6MkOther"
NEW_DID: Final = "did:peer:4zNew"
FRIEND: Final = "did:x:friend"
DAY_S: Final = 86_400
HOUR_S: Final = 3_600
AGE_S: Final = 80 * DAY_S
EVERY_S: Final = seen_every_s(AGE_S)
LIMITS: Final = IdentityLimits(queue_age_s_max=0, idle_agents_age_s_max=AGE_S)
NOT_CONNECTED: Final = Refused(Refusal.NOT_CONNECTED)


def mediator_of(log: EventLog, limits: IdentityLimits = LIMITS) -> Mediator:
    return Mediator(log, limits=limits, pace=RetentionPace(records_per_step_max=2))


def settle(mediator: Mediator, *dids: str, waiting: int = 5) -> None:
    """Each of these is a mediated agent: a key, rules of its own, envelopes that wait, a device."""
    for did in dids:
        ask(
            mediator,
            did,
            GrantMediation(connection(label=did), claimed(KEY)),
            SetQueuePolicy(messages_max=50),
            *[QueueEnvelopes(KEY, [f"{n} for {did}".encode()]) for n in range(waiting)],
            SetPushDevice(DEVICE),
        )


def ask(mediator: Mediator, did: str, *commands: Command) -> list[Reply]:
    return run(mediator.host, *[unclaimed(did, command) for command in commands])


def settle_all(mediator: Mediator) -> int:
    """Look until nothing is due; how often something left."""
    steps = 0
    while mediator.expiry.step():
        steps += 1
        assert steps < 100
    return steps


def days_until_end(mediator: Mediator, *, most: int = 400) -> int:
    """Let days pass until the agent has ended; how many, which is rounded up."""
    for days in range(1, most):
        mediator.pass_s(DAY_S)
        settle_all(mediator)
        if has_ended(mediator):
            return days
    raise AssertionError("it never ends")


def has_ended(mediator: Mediator, did: str = AGENT) -> bool:
    return ask(mediator, did, QueryQueue()) == [NOT_CONNECTED]


def seen(mediator: Mediator, did: str = AGENT) -> int:
    return sum(isinstance(event, AgentSeen) for event in mediator.events(did))


def test_a_silent_agent_ends_in_steps_with_its_reason_and_its_contents(
    log: EventLog, log_url: str
) -> None:
    mediator = mediator_of(log)
    settle(mediator, AGENT, OTHER)
    mediator.pass_s(AGE_S + EVERY_S - 1)
    assert not mediator.expiry.step()
    ask(mediator, OTHER, SeeAgent())
    mediator.pass_s(HOUR_S)
    left = []
    while mediator.expiry.step():
        left.append(mediator.contents())
        assert not wrong(log_url)
    assert left == [10, 8, 6, 5]
    over, *removals = mediator.events(AGENT)[-4:]
    assert isinstance(over, AccountExpired)
    assert over.reason == "idle"
    for event in removals:
        assert isinstance(event, MessagesRemoved)
        assert event.reason == "idle"
    assert has_ended(mediator)
    assert not has_ended(mediator, OTHER)
    assert mediator.keys_over == {AGENT: claimed(KEY)}
    assert log.figures().queue_messages == 5
    assert is_sound(log)
    counted = {
        tuple(labels.values()): value
        for family in families(mediator.host.measures.registry)
        for name, labels, value in family.samples
        if name == "poste_records_removed_total"
    }
    assert counted == {("agent", "idle"): 1, ("message", "idle"): 5}


def test_nothing_is_queued_for_an_agent_that_has_ended(log: EventLog) -> None:
    mediator = mediator_of(log)
    settle(mediator, AGENT)
    days_until_end(mediator)
    envelope = QueueEnvelopes(KEY, [b"late"])
    assert ask(mediator, AGENT, envelope) == [Refused(Refusal.KEY_UNKNOWN)]


def test_without_the_setting_an_agent_stays_for_ever_and_no_traffic_is_recorded(
    log: EventLog,
) -> None:
    mediator = mediator_of(log, IdentityLimits(queue_age_s_max=0))
    settle(mediator, AGENT)
    before = log.position()
    for _ in range(100):
        mediator.pass_s(AGE_S)
        assert not mediator.expiry.step()
        ask(mediator, AGENT, QueryQueue(), SeeAgent())
    assert log.position() == before
    assert not has_ended(mediator)


OWN: Final[dict[str, Sequence[Command]]] = {
    "any message of its own": [SeeAgent()],
    "a delivery that it asked for": [DeliverMessages("phone", "pickup/2.0", 1, 1_000, 1_000)],
    "an acknowledgement": [RemoveMessages(["host-0-3"], "acknowledged")],
    "what its endpoint took": [RemoveMessages(["host-0-3"], "delivered")],
    "rules for its queue": [SetQueuePolicy(messages_max=7)],
    "a device": [SetPushDevice(PushDevice("apns", "token of a tablet", ""))],
    "a key": [UpdateKeylist([ClaimedKey("another", 1)], [])],
    "a new connection": [Connect(connection(label="new"))],
    "a new DID": [RotateAccount(AGENT, NEW_DID, NOW_S)],
}
OF_OTHERS: Final[dict[str, Sequence[Command]]] = {
    "an envelope": [QueueEnvelopes(KEY, [b"for you"])],
    "a delivery that the mediator tries": [
        DeliverMessages("edge-0/outbound", "outbound", 1, 1_000, 1_000)
    ],
    "a key that another proved to hold": [UpdateKeylist([], [KEY])],
    "a device that its push service does not know": [SetPushDevice(None, instead_of=DEVICE.token)],
    "a question that stores nothing": [QueryQueue()],
}


@pytest.mark.parametrize("what", OWN)
def test_an_agents_own_traffic_puts_its_end_off(log: EventLog, what: str) -> None:
    mediator = mediator_of(log)
    settle(mediator, AGENT)
    mediator.pass_s(60 * DAY_S)
    ask(mediator, AGENT, *OWN[what])
    assert days_until_end(mediator) == 90
    assert is_sound(log)


@pytest.mark.parametrize("what", OF_OTHERS)
def test_what_others_send_puts_no_end_off(log: EventLog, what: str) -> None:
    mediator = mediator_of(log)
    settle(mediator, AGENT)
    mediator.pass_s(60 * DAY_S)
    ask(mediator, AGENT, *OF_OTHERS[what])
    assert days_until_end(mediator) == 30


def test_what_is_handed_out_live_is_no_traffic_of_the_agent(log: EventLog) -> None:
    mediator = mediator_of(log)
    settle(mediator, AGENT, waiting=0)
    ask(mediator, AGENT, StartLive("edge-0", "phone"))
    ask(mediator, AGENT, DeliverMessages("phone", "live", 1, 10_000, 10**12, live=True))
    mediator.pass_s(60 * DAY_S)
    ask(mediator, AGENT, QueueEnvelopes(KEY, [b"live"]))
    assert days_until_end(mediator) == 30
    # Who comes back is not taken for the session of before.
    ask(mediator, AGENT, GrantMediation(connection(), claimed(KEY)))
    (state,) = ask(mediator, AGENT, QueryQueue())
    assert isinstance(state, QueueState)
    assert not state.live


@pytest.mark.thorough
def test_polls_write_a_row_once_in_a_part_of_the_age_and_the_age_has_to_pass_after_the_last(
    log: EventLog,
) -> None:
    mediator = mediator_of(log)
    settle(mediator, AGENT)
    polls = 4 * AGE_S // HOUR_S
    for _ in range(polls):
        mediator.pass_s(HOUR_S)
        (noted,) = ask(mediator, AGENT, SeeAgent())
        assert isinstance(noted, AgentNoted)
        assert mediator.clock.now_ms < noted.again_ms <= mediator.clock.now_ms + EVERY_S * 1000
        assert not mediator.expiry.step()
    assert seen(mediator) == 4 * 8
    last_ms = mediator.clock.now_ms
    days_until_end(mediator)
    assert AGE_S <= (mediator.clock.now_ms - last_ms) / 1000 <= AGE_S + EVERY_S + DAY_S


def test_the_last_poll_before_a_record_is_due_counts_in_full(log: EventLog) -> None:
    mediator = mediator_of(log)
    settle(mediator, AGENT)
    mediator.pass_s(EVERY_S - 1)
    ask(mediator, AGENT, SeeAgent())
    assert seen(mediator) == 0
    mediator.pass_s(AGE_S)
    settle_all(mediator)
    assert not has_ended(mediator)


def test_a_rotation_an_upgrade_a_move_and_a_restart_keep_the_time(log: EventLog) -> None:
    mediator = mediator_of(log)
    settle(mediator, AGENT)
    mediator.pass_s(10 * DAY_S)
    ask(mediator, AGENT, SeeAgent())
    seen_ms = mediator.clock.now_ms
    ask(mediator, AGENT, DedicateIdentity(DedicationReason.OPERATOR))
    again = mediator_of(log)
    again.clock.now_ms = seen_ms + 40 * DAY_S * 1000
    # It was granted mediation in version 1 and asks in version 2 what it has already.
    ask(again, AGENT, GrantMediation(connection(label=AGENT), claimed(KEY)))
    assert days_until_end(again) == 50


def test_who_speaks_by_another_did_comes_back_as_who_began(log: EventLog) -> None:
    mediator = mediator_of(log)
    settle(mediator, AGENT)
    ask(mediator, NEW_DID, NameSpeaker(AGENT))
    ask(mediator, AGENT, RotateAccount(AGENT, NEW_DID, NOW_S))
    days_until_end(mediator)
    by = unclaimed(AGENT, GrantMediation(connection(), claimed(KEY, claim=2)))
    granted = Submission(
        by.partition, by.target_did, by.command_key, command=by.command, speaker=NEW_DID
    )
    former = Submission(
        by.partition, by.target_did, by.command_key, command=by.command, speaker=AGENT
    )
    refused, done = run(mediator.host, former, granted)
    assert refused == Refused(Refusal.NOT_SPEAKING)
    assert not isinstance(done, Refused)
    assert not has_ended(mediator)


def test_who_comes_back_between_two_steps_begins_anew_and_has_what_is_left(
    log: EventLog, log_url: str
) -> None:
    mediator = mediator_of(log)
    settle(mediator, AGENT)
    mediator.pass_s(AGE_S + EVERY_S + HOUR_S)
    assert mediator.expiry.step()
    assert mediator.expiry.step()
    ask(mediator, AGENT, GrantMediation(connection(), claimed(KEY, claim=2)))
    assert settle_all(mediator) == 0
    (delivery,) = ask(mediator, AGENT, DeliverMessages("phone", "pickup/2.0", 9, 9_000, 1_000))
    assert isinstance(delivery, Delivery)
    assert [message.payload[:1] for message in delivery.messages] == [b"2", b"3", b"4"]
    (queued,) = ask(mediator, AGENT, QueueEnvelopes(KEY, [b"new"]))
    assert isinstance(queued, EnvelopeQueued)
    assert not wrong(log_url)
    assert is_sound(log)


def test_a_registration_in_force_is_a_sign_of_life_and_what_is_no_envelope_stays(
    log: EventLog,
) -> None:
    mediator = mediator_of(log)
    settle(mediator, AGENT, waiting=2)
    until_s = NOW_S + 200 * DAY_S
    run(
        mediator.host,
        submission(AGENT, registration(AGENT, until_s)),
        submission(AGENT, SaveContract(contract(AGENT, FRIEND, until_s))),
        submission(AGENT, QueueMessage(FRIEND, b"by Decentrl"), sender=FRIEND),
    )
    ask(mediator, AGENT, QueueEnvelopes(KEY, [b"behind it"]))
    assert days_until_end(mediator) == 290
    assert log.figures().queue_messages == 1
    assert mediator.contents() == 1


@pytest.mark.parametrize("fault", [FailNext(), StoredButFailed(), ConflictNext()])
def test_an_end_that_fails_is_made_good_by_the_next_look(log: EventLog, fault: Plan) -> None:
    faulty = FaultyLog(log)
    mediator = mediator_of(faulty)
    settle(mediator, AGENT)
    mediator.pass_s(AGE_S + EVERY_S + HOUR_S)
    for _ in range(4):
        faulty.plan(fault)
        for _ in range(3):
            mediator.expiry.step()
    settle_all(mediator)
    assert mediator.contents() == 0
    assert sum(isinstance(event, AccountExpired) for event in mediator.events(AGENT)) == 1
    assert is_sound(log)


def test_another_host_goes_on_where_one_was_killed(log: EventLog, open_another: OpenLog) -> None:
    mediator = mediator_of(log)
    settle(mediator, AGENT)
    mediator.pass_s(AGE_S + EVERY_S + HOUR_S)
    assert mediator.expiry.step()
    other = mediator_of(open_another())
    other.clock.now_ms = mediator.clock.now_ms
    settle_all(other)
    assert other.contents() == 0
    assert is_sound(log)


def test_agents_of_an_earlier_release_are_found_when_they_are_asked_or_after_a_rebuild(
    log: EventLog, log_url: str
) -> None:
    settle(mediator_of(log), AGENT, OTHER)
    run_sql(log_url, "UPDATE queue_depths SET idle_since_ms = NULL")
    mediator = mediator_of(log)
    mediator.pass_s(2 * AGE_S)
    assert not mediator.expiry.step()
    ask(mediator, AGENT, QueueEnvelopes(KEY, [b"one more"]))
    settle_all(mediator)
    assert (has_ended(mediator), has_ended(mediator, OTHER)) == (True, False)
    with closing(open_store(log_url)) as store:
        rebuild_read_models(store)
    settle_all(mediator)
    assert has_ended(mediator, OTHER)
    assert mediator.contents() == 0


def test_a_log_of_the_release_before_gets_the_columns_and_keeps_its_sums(
    log: EventLog, log_url: str, open_another: OpenLog
) -> None:
    settle(mediator_of(log), AGENT)
    run_sql(log_url, "DROP INDEX outbound_by_oldest")
    for later in DUE_COLUMNS[-2:]:
        run_sql(log_url, f"DROP INDEX due_by_{later}")
        run_sql(log_url, f"ALTER TABLE queue_depths DROP COLUMN {later}")
    mediator = mediator_of(open_another())
    settle(mediator, OTHER)
    assert mediator.log.figures().queue_messages == 10
    mediator.pass_s(2 * AGE_S)
    settle_all(mediator)
    assert (has_ended(mediator), has_ended(mediator, OTHER)) == (False, True)
    assert not wrong(log_url)


def test_read_models_that_are_made_anew_have_the_times_that_the_owner_says(
    log: EventLog, log_url: str
) -> None:
    mediator = mediator_of(log)
    settle(mediator, AGENT, OTHER)
    mediator.pass_s(20 * DAY_S + 5)
    ask(mediator, AGENT, SeeAgent())
    run(mediator.host, submission(OTHER, registration(OTHER, NOW_S + 3 * AGE_S)))
    mediator.pass_s(2 * HOUR_S)
    ask(mediator, AGENT, QueueEnvelopes(KEY, [b"no sign of life of its owner"]))
    columns = f"SELECT did, {', '.join(DUE_COLUMNS)} FROM queue_depths ORDER BY did"
    for are_ending in (False, True):
        if are_ending:
            mediator.pass_s(AGE_S + EVERY_S + HOUR_S)
            assert mediator.expiry.step()
        before = run_sql(log_url, columns)
        with closing(open_store(log_url)) as store:
            rebuild_read_models(store)
        assert run_sql(log_url, columns) == before


def test_the_search_for_idle_agents_is_written_once_an_hour_and_never_early(
    log: EventLog,
) -> None:
    mediator = mediator_of(log)
    settle(mediator, AGENT)
    found = []
    for number in range(120):
        mediator.pass_s(60)
        ask(mediator, AGENT, SetQueuePolicy(messages_max=number))
        until_ms = mediator.clock.now_ms + HOUR_S * 1000
        (one,) = log.due_identities(Due.IDLE, until_ms=until_ms, after=None, limit=9)
        assert one.place.at_ms >= mediator.clock.now_ms
        found.append(one.place.at_ms)
    assert len(set(found)) == 2


def test_silence_counts_from_when_the_age_was_set_or_shortened(log: EventLog) -> None:
    def since_ms(age_s: int, now_ms: int) -> int:
        limits = HostLimits(identity=IdentityLimits(idle_agents_age_s_max=age_s))
        return watched(limits, log, now_ms).identity.idle_agents_since_ms

    assert since_ms(0, 1_000) == 0
    assert MARK not in log.settings()
    assert since_ms(100, 2_000) == 2_000
    assert since_ms(100, 3_000) == 2_000
    assert since_ms(200, 4_000) == 2_000
    assert since_ms(150, 5_000) == 5_000
    assert since_ms(0, 6_000) == 0
    assert since_ms(100, 7_000) == 7_000
    assert since_ms(100, 6_500) == 6_500  # the clock was ahead
    assert since_ms(100, 7_000) == 6_500


def test_an_agent_does_not_end_for_silence_of_before_the_setting(log: EventLog) -> None:
    off = mediator_of(log, IdentityLimits(queue_age_s_max=0))
    settle(off, AGENT)
    for _ in range(200):
        off.pass_s(DAY_S)
        ask(off, AGENT, QueryQueue())
    limits = watched(HostLimits(identity=LIMITS), log, off.clock.now_ms).identity
    on = mediator_of(log, limits)
    on.clock.now_ms = off.clock.now_ms
    assert days_until_end(on) == 90


def test_a_clock_that_is_behind_when_the_age_is_set_ends_no_agent_too_early(log: EventLog) -> None:
    off = mediator_of(log, IdentityLimits(queue_age_s_max=0))
    settle(off, AGENT)
    off.pass_s(200 * DAY_S)
    settle(off, OTHER)
    behind_ms = off.clock.now_ms - 365 * DAY_S * 1000
    for now_ms in (behind_ms, behind_ms):  # a start, and a restart
        watched(HostLimits(identity=LIMITS), log, now_ms)
    limits = watched(HostLimits(identity=LIMITS), log, off.clock.now_ms).identity
    on = mediator_of(log, limits)
    on.clock.now_ms = off.clock.now_ms
    assert days_until_end(on) == 90


def test_after_a_clock_that_was_ahead_silence_counts_anew_from_a_start_after_a_newer_record(
    log: EventLog,
) -> None:
    mediator = mediator_of(log)
    right_ms = mediator.clock.now_ms
    mediator.pass_s(365 * DAY_S)
    ahead_ms = mediator.clock.now_ms
    settle(mediator, AGENT)
    mediator.clock.now_ms = right_ms
    for recorded, expected_ms in ((False, ahead_ms), (False, ahead_ms), (True, right_ms)):
        if recorded:
            settle(mediator, OTHER)
        limits = watched(HostLimits(identity=LIMITS), log, right_ms)
        assert limits.identity.idle_agents_since_ms == expected_ms
