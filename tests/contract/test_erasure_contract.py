"""An identity is erased whole, in steps, whatever is killed meanwhile, and nothing else is."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from functools import partial
from typing import Final

import msgspec
import pytest

from actors.core.commands import (
    ClaimedKey,
    Connect,
    EraseIdentity,
    GrantMediation,
    NameSpeaker,
    NewSavedEvent,
    PublishPublicEvent,
    PushDevice,
    QueryMessages,
    QuerySavedEvents,
    QueueEnvelopes,
    QueueMessage,
    SaveEvents,
    SetPushDevice,
    TagUpdate,
    UpdateEventTags,
)
from actors.core.erasure import CONTINUED, OPERATOR, OWNER
from actors.core.limits import RetentionPace
from actors.core.refusals import Refusal
from actors.core.replies import Done, Erased, MessageAccepted, Refused, Registered
from eventstore.log.erasure_receipt import (
    ReceiptRefused,
    check_receipt,
    erasure_of,
    sign_receipt,
    verified_receipt,
)
from eventstore.log.event_log import EventLog, Listed, PublicEventsFilter, SavedEventsFilter
from eventstore.log.events import (
    IdentityErased,
    IdentityErasureBegun,
    SavedEventsErased,
    SavedEventsUnlisted,
)
from eventstore.log.faults import Fault, Finding
from eventstore.log.public_key import PublicKey
from eventstore.log.streams import identity_stream
from eventstore.log.verify import verify
from eventstore.read_models.remake import Difference
from eventstore.stores.open_log import open_store
from eventstore.stores.recorder_log import wrong_read_models
from http_edge.crypto.signatures import public_key, sign
from tests.contract.conftest import OpenLog
from tests.contract.test_retention_contract import DAY_S, FRIEND, Mediator, is_sound
from tests.log.faulty_log import ConflictNext, FailNext, FaultyLog, Plan, StoredButFailed
from tests.log.raw_sql import remove_erased, run_sql
from tests.log.samples import FIRST_PAGE
from tests.unit.actors.didcomm import KEY, claimed
from tests.unit.actors.given import (
    MEDIATOR,
    NOW_S,
    connection,
    registration,
    run,
    submission,
    unclaimed,
)
from tests.unit.actors.test_queueing import ALL

GONE: Final = "did:x:gone"
STAYS: Final = "did:x:stays"
CONTENTS: Final = 9
"""Of one identity: a message, a contract request, an envelope, a public event, five saved."""
STEPS: Final = 17
"""Of so many commits an erasure of it is made with two records in each."""
LISTED_AT_ONCE: Final = 2 * 16
"""Postings of such a step."""
SAVED_AT_ONCE: Final = 2 * 2
"""Saved events of such a step, once they are on no list."""
NEIGHBOURS: Final = ("did:x:0adc02b28c57be5", "did:x:fdab8fcb0e76e80")
"""Two whose streams begin with the same 8 bytes; it took 860 million hashes to find them."""


def settle(mediator: Mediator, did: str) -> None:
    """An identity with something of each kind, an agent too."""
    mediator.settle(did)
    more = [f"one of {number}" for number in range(16)]
    events = [
        NewSavedEvent(
            did if n % 2 else FRIEND,
            FRIEND,
            None,
            NOW_S,
            f"event {n} of {did}",
            ["t", f"t{n}", *more],
        )
        for n in range(5)
    ]
    public = PublishPublicEvent(
        "news", f"news of {did}", ["p"], NOW_S, "signature", signature_valid=True
    )
    run(
        mediator.host,
        submission(did, SaveEvents(events)),
        submission(did, public),
        unclaimed(did, GrantMediation(connection(label=did), claimed(KEY))),
        unclaimed(did, SetPushDevice(PushDevice("fcm", f"token of {did}", f"phone of {did}"))),
        unclaimed(did, QueueEnvelopes(KEY, [b"envelope for " + did.encode()])),
    )
    page = mediator.log.query_saved_events(identity_stream(did), SavedEventsFilter(), FIRST_PAGE)
    tags = [TagUpdate(event.event_id, ["new", "t"]) for event in page.events[1:3]]
    run(mediator.host, submission(did, UpdateEventTags(tags)))


def step(mediator: Mediator, did: str, by: str = OPERATOR) -> Erased | Refused:
    (reply,) = run(mediator.host, unclaimed(did, EraseIdentity(by, 2)))
    assert isinstance(reply, Erased | Refused)
    return reply


def erase(mediator: Mediator, did: str) -> list[Erased]:
    """The answers to all steps of an erasure."""
    answers: list[Erased] = []
    while not answers or not answers[-1].is_over:
        answer = step(mediator, did, CONTINUED if answers else OPERATOR)
        assert isinstance(answer, Erased)
        answers.append(answer)
    return answers


def saved(log: EventLog, did: str) -> int:
    where = SavedEventsFilter()
    return log.query_saved_events(identity_stream(did), where, FIRST_PAGE).total


def assert_gone(log: EventLog, did: str) -> None:
    """Nothing is left of an identity that can be read, but the rows of the log."""
    stream = identity_stream(did)
    for version, record in log.read_records({stream: range(1, 100)})[stream].items():
        assert record.content is None, version
    for tags in ([], ["t"], ["new"], ["t0"]):
        where = SavedEventsFilter(encrypted_tags=tags)
        assert log.query_saved_events(stream, where, FIRST_PAGE).total == 0
        unprocessed = SavedEventsFilter(encrypted_tags=tags, unprocessed_only=True)
        assert log.query_saved_events(stream, unprocessed, FIRST_PAGE).total == 0
    public = log.query_public_events(stream, PublicEventsFilter(), FIRST_PAGE)
    assert public.total == 0
    assert log.waiting_queues(did=did, limit=9) == []
    snapshot = log.load_snapshot(stream)
    assert snapshot is None or did.encode() not in snapshot.state


def assert_whole(log: EventLog, did: str) -> None:
    """An identity has all that it was settled with."""
    assert saved(log, did) == 5
    (held,) = log.read_records({identity_stream(did): range(1, 100)}).values()
    assert sum(record.content is not None for record in held.values()) == CONTENTS


def names_in_queues(log_url: str) -> set[bytes]:
    found = {bytes(did) for (did,) in run_sql(log_url, "SELECT did FROM queue_depths")}
    return found - {b""}


def listed(log_url: str, did: str) -> int:
    """How many postings there are among those of an identity."""
    place = identity_stream(did).bytes[:8]
    lists = [bytes(key) for (key,) in run_sql(log_url, "SELECT list FROM postings")]
    return sum(key.startswith(place) for key in lists)


def wrong(log_url: str) -> Sequence[Difference]:
    """The read models that are not what the rows of the log say."""
    with closing(open_store(log_url)) as store:
        return wrong_read_models(store)


def settled(log: EventLog) -> Mediator:
    """A host with two identities."""
    made = Mediator(log)
    settle(made, GONE)
    settle(made, STAYS)
    return made


@pytest.fixture
def mediator(log: EventLog) -> Mediator:
    return settled(log)


def test_all_that_an_identity_has_leaves_and_nothing_of_others(
    mediator: Mediator, log: EventLog, log_url: str
) -> None:
    assert_whole(log, GONE)
    answers = erase(mediator, GONE)
    assert answers[0].keys == [ClaimedKey(KEY, claimed(KEY)[0].claim)]
    assert [answer.is_over for answer in answers] == [False] * (STEPS - 1) + [True]
    assert_gone(log, GONE)
    assert_whole(log, STAYS)
    assert is_sound(log)
    assert names_in_queues(log_url) == {STAYS.encode()}
    assert not wrong(log_url)
    assert not [row for row in log.snapshots() if row[1] and GONE.encode() in row[1].state]
    events = mediator.events(GONE)
    assert isinstance(events[-1], IdentityErased)
    assert [event.reason for event in events if isinstance(event, IdentityErasureBegun)] == [
        OPERATOR
    ]
    assert mediator.contents() == CONTENTS


def test_each_step_is_small_and_the_read_models_follow_it(
    mediator: Mediator, log: EventLog, log_url: str
) -> None:
    left = [(mediator.contents(), listed(log_url, GONE))]
    while True:
        answer = step(mediator, GONE)
        assert isinstance(answer, Erased)
        left.append((mediator.contents(), listed(log_url, GONE)))
        assert left[-2][0] - left[-1][0] <= SAVED_AT_ONCE
        assert left[-2][1] - left[-1][1] <= LISTED_AT_ONCE
        assert wrong(log_url) == []
        if answer.is_over:
            break
    assert left[-1] == (CONTENTS, 0)
    events = mediator.events(GONE)
    ranges = [event for event in events if isinstance(event, SavedEventsErased)]
    assert max(len(event.versions) for event in ranges) == SAVED_AT_ONCE
    assert [event.after for event in ranges] == list(
        range(0, SAVED_AT_ONCE * len(ranges), SAVED_AT_ONCE)
    )
    assert sum(isinstance(event, SavedEventsUnlisted) for event in events) == 7
    assert is_sound(log)


def test_saved_events_are_on_no_list_before_their_contents_leave(
    mediator: Mediator, log_url: str
) -> None:
    before = 0
    while listed(log_url, GONE):
        before = mediator.contents()
        step(mediator, GONE)
    assert mediator.contents() == before == CONTENTS + 5
    assert wrong(log_url) == []


@pytest.mark.parametrize("steps", range(3))
def test_an_erasure_that_an_earlier_release_began_goes_on(
    mediator: Mediator,
    log: EventLog,
    log_url: str,
    steps: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It takes saved events off their lists with their contents, by versions."""
    with monkeypatch.context() as patch:
        patch.setattr(mediator.log, "how_listed", lambda _: Listed.AMONG_OTHERS)
        for _ in range(5 + steps):
            step(mediator, GONE)
        assert wrong(log_url) == []
    answers = erase(mediator, GONE)
    assert answers[-1].is_over
    assert_gone(log, GONE)
    assert listed(log_url, GONE) == 0
    assert_whole(log, STAYS)
    assert wrong(log_url) == []
    assert is_sound(log)


@pytest.mark.parametrize("settled_after", [0, 5, 6, 7, 8])
def test_whose_lists_lie_among_those_of_who_is_erased_keeps_its_own(
    log: EventLog, log_url: str, settled_after: int
) -> None:
    mediator, (gone, stays) = Mediator(log), NEIGHBOURS
    settle(mediator, gone)
    for _ in range(settled_after):
        step(mediator, gone)
    before = listed(log_url, gone)
    settle(mediator, stays)
    own = listed(log_url, stays) - before
    while True:
        answer = step(mediator, gone)
        assert isinstance(answer, Erased)
        assert wrong(log_url) == []
        assert_whole(log, stays)
        if answer.is_over:
            break
    assert_gone(log, gone)
    assert is_sound(log)
    assert listed(log_url, stays) == own > 3 * LISTED_AT_ONCE
    erase(mediator, stays)
    assert listed(log_url, stays) == 0
    assert wrong(log_url) == []


def test_a_step_takes_nothing_of_a_neighbour_who_came_while_it_was_decided(
    log: EventLog, log_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mediator, (gone, stays) = Mediator(log), NEIGHBOURS
    settle(mediator, gone)
    settle(mediator, stays)
    both = listed(log_url, gone)
    monkeypatch.setattr(mediator.log, "how_listed", lambda _: Listed.APART)
    for _ in range(5 + 3):
        step(mediator, gone)
        assert wrong(log_url) == []
        assert_whole(log, stays)
    assert both / 2 < listed(log_url, stays) < both
    monkeypatch.undo()
    erase(mediator, gone)
    assert listed(log_url, stays) == both / 2
    assert_gone(log, gone)
    assert_whole(log, stays)
    assert wrong(log_url) == []


@pytest.mark.thorough
@pytest.mark.parametrize("steps", range(STEPS + 1))
def test_an_erasure_comes_to_its_end_by_itself_wherever_it_was_killed(
    log: EventLog, open_another: OpenLog, log_url: str, steps: int
) -> None:
    killed = Mediator(log)
    settle(killed, GONE)
    settle(killed, STAYS)
    for _ in range(steps):
        step(killed, GONE)
    reopened = open_another()
    after = Mediator(reopened, pace=RetentionPace(records_per_step_max=2), name="after")
    while after.expiry.step():
        pass
    if steps:
        assert_gone(reopened, GONE)
        assert isinstance(after.events(GONE)[-1], IdentityErased)
    else:
        assert_whole(reopened, GONE)
    assert_whole(reopened, STAYS)
    assert is_sound(reopened)
    assert wrong(log_url) == []


@pytest.mark.thorough
@pytest.mark.parametrize("plan", [FailNext(), StoredButFailed(), ConflictNext()])
@pytest.mark.parametrize("before", range(STEPS))
def test_a_step_that_fails_is_done_again(log: EventLog, plan: Plan, before: int) -> None:
    faulty = FaultyLog(log)
    mediator = Mediator(faulty)
    settle(mediator, GONE)
    settle(mediator, STAYS)
    for _ in range(before):
        step(mediator, GONE)
    faulty.plan(plan)
    refused = step(mediator, GONE)
    assert isinstance(refused, Refused)
    assert faulty.faults_left == 0
    erase(mediator, GONE)
    assert_gone(log, GONE)
    assert_whole(log, STAYS)
    assert is_sound(log)


def test_who_is_being_erased_gets_and_shows_nothing(mediator: Mediator) -> None:
    (before,) = run(
        mediator.host, submission(GONE, QueueMessage(FRIEND, b"one more"), sender=FRIEND)
    )
    assert isinstance(before, MessageAccepted)
    step(mediator, GONE)
    replies = run(
        mediator.host,
        submission(GONE, QueueMessage(FRIEND, b"too late"), sender=FRIEND),
        unclaimed(GONE, QueueEnvelopes(KEY, [b"too late"])),
        submission(GONE, QueryMessages(ALL.page)),
        submission(GONE, QuerySavedEvents(ALL.page, SavedEventsFilter())),
        submission(GONE, registration(GONE)),
        unclaimed(GONE, GrantMediation(connection(), [])),
        unclaimed(GONE, Connect(connection())),
        unclaimed(GONE, NameSpeaker(STAYS)),
    )
    assert [reply.code for reply in replies if isinstance(reply, Refused)] == [
        Refusal.RECIPIENT_NOT_REGISTERED,
        Refusal.KEY_UNKNOWN,
        Refusal.UNAUTHORIZED_COMMAND,
        Refusal.UNAUTHORIZED_COMMAND,
        *[Refusal.TEMPORARILY_UNAVAILABLE] * 4,
    ]


def test_who_comes_back_begins_anew(mediator: Mediator, log: EventLog, log_url: str) -> None:
    erase(mediator, GONE)
    assert erase(mediator, GONE) == [Erased(0, is_over=True)]
    assert step(mediator, "did:x:unknown") == Erased(0, is_over=True, is_known=False)
    (back,) = run(mediator.host, submission(GONE, registration(GONE, NOW_S + DAY_S)))
    assert isinstance(back, Registered)
    (kept,) = run(mediator.host, submission(GONE, SaveEvents([_event()])))
    assert isinstance(kept, Done)
    assert saved(log, GONE) == 1
    assert names_in_queues(log_url) == {GONE.encode(), STAYS.encode()}
    assert wrong(log_url) == []
    erase(mediator, GONE)
    assert_gone(log, GONE)
    assert is_sound(log)


def test_who_goes_on_with_an_erasure_takes_nothing_of_who_has_come_back(
    mediator: Mediator, log: EventLog
) -> None:
    assert step(mediator, GONE, CONTINUED) == Erased(0, is_over=True)
    assert_whole(log, GONE)
    erase(mediator, GONE)
    run(mediator.host, submission(GONE, registration(GONE, NOW_S + DAY_S)))
    run(mediator.host, submission(GONE, SaveEvents([_event()])))
    assert step(mediator, GONE, CONTINUED) == Erased(0, is_over=True)
    assert saved(log, GONE) == 1


def test_a_receipt_holds_after_a_later_erasure_of_the_same_identity(
    mediator: Mediator, log: EventLog
) -> None:
    key, stream = PublicKey(public_key(bytes(32))), identity_stream(GONE)
    log.setting("mediator_did", MEDIATOR)
    erase(mediator, GONE)
    first = erasure_of(log, stream, key)
    run(mediator.host, submission(GONE, registration(GONE, NOW_S + DAY_S)))
    run(mediator.host, submission(GONE, SaveEvents([_event()])))
    erase(mediator, GONE)
    second = erasure_of(log, stream, key)
    assert (second.contents, second.begun > first.ended) == ({"event-saved": 1}, True)
    for receipt in (first, second):
        assert check_receipt(log, receipt, key) == 0


def _event() -> NewSavedEvent:
    return NewSavedEvent(GONE, FRIEND, None, NOW_S, "a new event", ["t"])


def test_an_owner_may_ask_for_it_as_long_as_it_is_registered(
    mediator: Mediator, log: EventLog
) -> None:
    refused = step(mediator, "did:x:unknown", by=OWNER)
    assert refused == Refused(Refusal.UNAUTHORIZED_COMMAND)
    while (answer := step(mediator, GONE, by=OWNER)) != Erased(0, is_over=True):
        assert isinstance(answer, Erased)
    assert_gone(log, GONE)
    assert step(mediator, GONE, by=OWNER) == Refused(Refusal.UNAUTHORIZED_COMMAND)


def test_a_receipt_says_what_was_erased_where_and_follows_from_the_log(
    mediator: Mediator, log: EventLog, log_url: str
) -> None:
    seed = bytes(range(32))
    key, stream = PublicKey(public_key(seed)), identity_stream(GONE)
    with pytest.raises(ReceiptRefused):
        erasure_of(log, stream, key)
    held = log.read_contents(after=0, until=10**9)
    erase(mediator, GONE)
    left = log.read_contents(after=0, until=10**9)
    with pytest.raises(ReceiptRefused, match="belongs to no mediator"):
        erasure_of(log, stream, key)
    log.setting("mediator_did", MEDIATOR)
    receipt = erasure_of(log, stream, key)
    assert receipt.mediator_did == MEDIATOR
    named = {n for first, last in receipt.positions for n in range(first, last + 1)}
    assert named == held.keys() - left.keys()
    assert receipt.contents == {
        "contract-requested": 1,
        "event-saved": 5,
        "message-queued": 2,
        "public-event-published": 1,
    }
    assert (receipt.stream, receipt.reason) == (stream.hex, OPERATOR)
    signed = sign_receipt(receipt, partial(sign, seed))
    assert GONE.encode() not in signed
    assert verified_receipt(signed, key) == receipt
    check_receipt(log, receipt, key)
    for changed in (signed.replace(b"operator", b"owner"), signed[1:], b"", signed[:-9]):
        with pytest.raises(ReceiptRefused):
            verified_receipt(changed, key)
    for other in ({"positions": receipt.positions[1:]}, {"mediator_did": "did:web:another"}):
        with pytest.raises(ReceiptRefused, match="differs from the log"):
            check_receipt(log, msgspec.structs.replace(receipt, **other), key)
    (copied, *_) = left
    remove_erased(log_url)
    insert = f"INSERT INTO contents SELECT %d, content FROM contents WHERE position = {copied}"
    for position in receipt.positions[0]:
        run_sql(log_url, insert % position)
        with pytest.raises(ReceiptRefused, match=f"position {position} still exists"):
            check_receipt(log, receipt, key)
        run_sql(log_url, f"DELETE FROM contents WHERE position = {position}")


def test_nothing_but_what_was_erased_is_verified_as_erased(
    mediator: Mediator, log: EventLog, log_url: str
) -> None:
    erase(mediator, GONE)
    (first, *_) = log.read_contents(after=0, until=10**9)
    run_sql(log_url, f"DELETE FROM contents WHERE position = {first}")
    assert [f.fault for f in verify(log) if isinstance(f, Finding)] == [Fault.MISSING_CONTENT]
