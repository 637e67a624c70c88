"""Public events leave after the operator's age, in steps, with their reason, on both stores."""

from __future__ import annotations

from contextlib import closing

from actors.core.commands import (
    DeletePublicEvents,
    NewSavedEvent,
    PublishPublicEvent,
    SaveEvents,
)
from actors.core.limits import IdentityLimits, RetentionPace
from actors.core.replies import PublicEventAccepted, Refused
from eventstore.log.event_log import EventLog, PageBounds, PublicEventsFilter, SavedEventsFilter
from eventstore.log.events import PublicEventsExpired
from eventstore.log.streams import identity_stream
from eventstore.stores.open_log import open_store
from eventstore.stores.recorder_log import rebuild_read_models
from tests.contract.test_erasure_contract import wrong
from tests.contract.test_retention_contract import DAY_S, FRIEND, PEOPLE, Mediator, is_sound
from tests.unit.actors.given import NOW_S, registration, run, submission


def publication(number: int) -> PublishPublicEvent:
    return PublishPublicEvent(
        ("news", "chess")[number % 2],
        f"event {number}",
        ["a", "b"],
        NOW_S + number,
        "signature",
        signature_valid=True,
    )


def shown(log: EventLog, did: str) -> list[str]:
    """The texts of the public events of an identity; every list says the same."""
    stream = identity_stream(did)
    page = log.query_public_events(stream, PublicEventsFilter(), PageBounds(0, 99))
    tagged = log.query_public_events(stream, PublicEventsFilter(tags=["b"]), PageBounds(0, 99))
    assert page == tagged
    assert page.total == len(page.events)
    return [event.event for event in page.events]


def test_public_events_leave_after_the_operators_age_with_their_reason_and_contents(
    log: EventLog, log_url: str
) -> None:
    limits = IdentityLimits(public_events_age_s_max=100)
    mediator = Mediator(log, limits=limits, pace=RetentionPace(records_per_step_max=2))
    one, two = PEOPLE[:2]
    until_s = NOW_S + DAY_S
    for did in (one, two):
        run(mediator.host, submission(did, registration(did, until_s)))
    for number in range(5):
        for did in (one, two):
            run(mediator.host, submission(did, publication(number)))
        mediator.pass_s(10)
    mediator.pass_s(70)
    left = [shown(log, one)]
    while mediator.expiry.step():
        left.append(shown(log, one))
        assert mediator.contents() == sum(len(shown(log, did)) for did in (one, two))
        assert not wrong(log_url)
    texts = ["event 4", "event 3", "event 2", "event 1", "event 0"]
    assert left == [texts, texts[:3]]
    mediator.pass_s(DAY_S)
    while mediator.expiry.step():
        left.append(shown(log, one))
    assert left[2:] == [texts[:1], []]
    gone = [event for event in mediator.events(one) if isinstance(event, PublicEventsExpired)]
    assert [(event.reason, len(event.event_ids)) for event in gone] == [
        ("expired", 2),
        ("expired", 2),
        ("expired", 1),
    ]
    assert mediator.contents() == 0
    assert is_sound(log)


def test_a_public_event_stays_until_it_is_older_than_the_age_beside_one_that_leaves(
    log: EventLog,
) -> None:
    """To the second, where a step has room for both."""
    mediator = Mediator(log, limits=IdentityLimits(public_events_age_s_max=100))
    did = PEOPLE[0]
    run(mediator.host, submission(did, registration(did, NOW_S + DAY_S)))
    for number in range(2):
        run(mediator.host, submission(did, publication(number)))
        mediator.pass_s(10)
    left = []
    for wait_s in (90, 1):
        mediator.pass_s(wait_s)
        while mediator.expiry.step():
            pass
        left.append(shown(log, did))
    assert left == [["event 1"], []]


def test_public_events_stay_for_ever_without_an_age(log: EventLog) -> None:
    mediator = Mediator(log)
    did = PEOPLE[0]
    run(mediator.host, submission(did, registration(did)), submission(did, publication(1)))
    mediator.pass_s(100 * 365 * DAY_S)
    while mediator.expiry.step():
        pass
    assert shown(log, did) == ["event 1"]


def test_an_age_of_public_events_leaves_those_that_were_withdrawn_and_all_that_is_saved(
    log: EventLog, log_url: str
) -> None:
    mediator = Mediator(log, limits=IdentityLimits(public_events_age_s_max=100))
    did, until_s = PEOPLE[0], NOW_S + DAY_S
    saved = NewSavedEvent(did, FRIEND, None, NOW_S, "kept", ["t"])
    first, *_ = run(
        mediator.host,
        submission(did, registration(did, until_s)),
        submission(did, publication(0)),
        submission(did, SaveEvents([saved])),
        submission(did, publication(1)),
    )[1:]
    assert isinstance(first, PublicEventAccepted)
    run(mediator.host, submission(did, DeletePublicEvents([first.event_id])))
    mediator.pass_s(101)
    assert mediator.expiry.step()
    *_, expired = mediator.events(did)
    assert isinstance(expired, PublicEventsExpired)
    assert len(expired.event_ids) == len(expired.versions) == 1
    page = log.query_saved_events(identity_stream(did), SavedEventsFilter(), PageBounds(0, 9))
    assert [event.payload for event in page.events] == ["kept"]
    assert not wrong(log_url)
    with closing(open_store(log_url)) as store:
        rebuild_read_models(store)
    assert shown(log, did) == []
    assert not mediator.expiry.step()


def test_a_withdrawal_after_the_age_and_a_new_publication_find_the_room_free(
    log: EventLog,
) -> None:
    limits = IdentityLimits(public_events_age_s_max=100, public_events_max=1)
    mediator = Mediator(log, limits=limits)
    did = PEOPLE[0]
    first = run(
        mediator.host,
        submission(did, registration(did, NOW_S + DAY_S)),
        submission(did, publication(0)),
    )[1]
    assert isinstance(first, PublicEventAccepted)
    mediator.pass_s(101)
    assert mediator.expiry.step()
    replies = run(
        mediator.host,
        *[
            submission(did, command, timestamp_ms=mediator.clock.now_ms)
            for command in (DeletePublicEvents([first.event_id]), publication(1))
        ],
    )
    assert not [reply for reply in replies if isinstance(reply, Refused)]
    assert shown(log, did) == ["event 1"]
