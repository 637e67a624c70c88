"""Pages of one transaction: read together where they are small, and each for itself else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from uuid import UUID

import pytest
from msgspec.structs import replace

from actors.core.commands import (
    AcknowledgeMessages,
    Command,
    Connect,
    GrantMediation,
    Page,
    QueryMessages,
    QueryQueue,
    QueueEnvelopes,
    QueueMessage,
    ReleaseLeases,
    RemoveMessages,
    SaveContract,
    UpdateKeylist,
)
from actors.core.limits import HostLimits
from actors.core.refusals import Refusal
from actors.core.replies import (
    Delivery,
    EnvelopeQueued,
    MessageAccepted,
    MessagesBeside,
    MessagesPage,
    QueueState,
    Refused,
    Reply,
)
from actors.core.submissions import Submission
from actors.host.host import Host
from eventstore.log.errors import LogUnavailable
from eventstore.log.event_log import EventLog, StoredRecord
from eventstore.log.streams import identity_stream
from tests.log.faulty_log import FaultyLog
from tests.log.raw_sql import run_sql
from tests.unit.actors.didcomm import KEY, claimed
from tests.unit.actors.given import (
    HandClock,
    connection,
    contract,
    delivery,
    host,
    registration,
    run,
    submission,
    unclaimed,
)

UNAVAILABLE = Refused(Refusal.TEMPORARILY_UNAVAILABLE)
ALL = Page(0, 100)
WRITER = "did:x:writer"
READERS = ("did:x:one", "did:x:two", "did:x:three")


class NotedReads(FaultyLog):
    """Notes what pages ask of the log; ``gone`` are streams whose contents are not there."""

    def __init__(self, log: EventLog) -> None:
        super().__init__(log)
        self.questions: list[Mapping[UUID, Sequence[int]]] = []
        self.is_unreadable = False
        self.gone: set[UUID] = set()

    def read_records(
        self, wanted: Mapping[UUID, Sequence[int]]
    ) -> dict[UUID, dict[int, StoredRecord]]:
        self.questions.append(wanted)
        if self.is_unreadable:
            raise LogUnavailable("planned")
        found = super().read_records(wanted)
        for stream in self.gone & found.keys():
            found[stream] = {v: StoredRecord(r.row, None) for v, r in found[stream].items()}
        return found


@pytest.fixture
def reads(log: EventLog) -> NotedReads:
    return NotedReads(log)


@pytest.fixture
def owner(reads: NotedReads) -> Host:
    """A host of readers for whom messages wait: of their own number, and as many as that."""
    made = host(reads)
    for number, reader in enumerate(READERS, 1):
        text = b"%d" % number
        written = [
            submission(reader, QueueMessage(WRITER, text), sender=WRITER) for _ in range(number)
        ]
        met = SaveContract(contract(WRITER, reader))
        run(made, submission(reader, registration(reader)), submission(reader, met), *written)
    reads.questions.clear()
    return made


def ask_all(owner: Host) -> list[Reply]:
    return run(owner, *[submission(reader, QueryMessages(ALL)) for reader in READERS])


def texts(reply: Reply) -> list[bytes]:
    assert isinstance(reply, MessagesPage)
    return [bytes(message.payload) for message in reply.messages]


def test_small_pages_of_several_identities_are_read_by_one_question(
    owner: Host, reads: NotedReads
) -> None:
    assert [texts(reply) for reply in ask_all(owner)] == [[b"1"], [b"2"] * 2, [b"3"] * 3]
    assert [set(wanted) for wanted in reads.questions] == [set(map(identity_stream, READERS))]


def test_a_log_that_cannot_be_read_is_asked_once_for_all_pages(
    owner: Host, reads: NotedReads
) -> None:
    reads.is_unreadable = True
    assert ask_all(owner) == [UNAVAILABLE] * 3
    assert len(reads.questions) == 1


def test_a_page_that_lacks_a_content_is_refused_alone(owner: Host, reads: NotedReads) -> None:
    reads.gone = {identity_stream(READERS[1])}
    one, two, three = ask_all(owner)
    assert (texts(one), two, texts(three)) == ([b"1"], UNAVAILABLE, [b"3"] * 3)


def damage_oldest(tmp_path: Path, reader: str, count: int = 1) -> None:
    """Cut a byte off the content of the oldest messages that wait for a reader."""
    stream = identity_stream(reader).hex
    run_sql(
        f"sqlite:{tmp_path}/log.db",
        "UPDATE contents SET content = substr(content, 2) WHERE position IN (SELECT position"
        " FROM contents JOIN stored_events ON position = stored_events.rowid"
        f" WHERE originator_id = '{stream}' AND topic LIKE 'message-queued%'"
        f" ORDER BY position LIMIT {count})",
    )


def test_a_message_whose_content_is_damaged_is_left_out_and_stays_and_holds_up_no_other(
    owner: Host, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _, two, three = READERS
    for reader in (two, three):
        damage_oldest(tmp_path, reader)
    for _ in range(2):
        page = run(owner, submission(three, QueryMessages(ALL)))[0]
        assert isinstance(page, MessagesPage)
        assert (texts(page), page.total) == ([b"3", b"3"], 3)
    assert [texts(page) for page in ask_all(owner)] == [[b"1"], [b"2"], [b"3", b"3"]]
    assert run(owner, submission(two, QueryMessages(Page(0, 1)))) == [UNAVAILABLE]
    assert caplog.messages[0].startswith(f"left out: {identity_stream(three)}/")
    (family,) = owner.measures.damaged.collect()
    assert [each.value for each in family.samples] == [5]


@pytest.mark.parametrize("limit", [1, 4])
def test_an_envelope_whose_content_is_damaged_holds_up_no_session_and_is_tried_again(
    log: EventLog, clock: HandClock, tmp_path: Path, limit: int
) -> None:
    made, reader = host(log, clock=clock), READERS[0]
    waiting_for(made, reader, 400)
    damage_oldest(tmp_path, reader)

    def deliver(session: str) -> Reply:
        """Like an endpoint that fails: a session for each try."""
        (found,) = run(made, unclaimed(reader, delivery(session, limit=limit)))
        run(made, unclaimed(reader, ReleaseLeases(session)))
        return found

    first = deliver("first")
    assert isinstance(first, Delivery)
    assert len(first.messages) == min(3, limit)
    again = deliver("second")
    assert isinstance(again, Delivery)
    assert (again.messages, again.state.messages) == (first.messages, 4)
    assert again.state.held_back == 1
    for passed_ms, held_back in ((599_999, 1), (1, 0)):
        clock.now_ms += passed_ms
        (state,) = run(made, unclaimed(reader, QueryQueue()))
        assert isinstance(state, QueueState)
        assert (state.available, state.held_back) == (4 - held_back, held_back)


def test_envelopes_behind_damaged_ones_are_handed_out_however_seldom_a_session_takes_one(
    log: EventLog, clock: HandClock, tmp_path: Path
) -> None:
    made, reader = host(log, clock=clock), READERS[0]
    waiting_for(made, reader, 400)
    damage_oldest(tmp_path, reader, 2)
    for left in (4, 3):
        (found,) = run(made, unclaimed(reader, delivery("phone", limit=1)))
        assert isinstance(found, Delivery)
        assert found.state.messages == left
        (one,) = found.messages
        run(made, unclaimed(reader, RemoveMessages([one.message_id], "received")))
        clock.now_ms += 86_400_000
    (none_left,) = run(made, unclaimed(reader, delivery("phone", limit=1)))
    assert isinstance(none_left, Delivery)
    state = none_left.state
    assert (none_left.messages, state.messages, state.held_back) == ([], 2, 2)


def test_a_page_after_damaged_envelopes_is_charged_once_to_its_reader(
    log: EventLog, tmp_path: Path
) -> None:
    """A second question would cost more than the unit that there is."""
    made, reader = host(log, limits=HostLimits(per_sender_per_s=1e-3, burst_s=1_000)), READERS[0]
    waiting_for(made, reader, 400)
    damage_oldest(tmp_path, reader, 3)
    question = unclaimed(reader, delivery("phone", limit=1))
    (found,) = run(made, replace(question, charge=1.0, source=b"me"))
    assert isinstance(found, Delivery)
    assert len(found.messages) == 1


@pytest.mark.parametrize(
    "before", [QueryQueue(), QueueEnvelopes(KEY, [b"new"]), delivery("tablet", limit=1)]
)
def test_a_damaged_envelope_holds_up_no_delivery_behind_another_command_of_its_reader(
    log: EventLog, clock: HandClock, tmp_path: Path, before: Command
) -> None:
    made, reader = host(log, clock=clock), READERS[0]
    waiting_for(made, reader, 400)
    damage_oldest(tmp_path, reader)
    *_, found = run(made, unclaimed(reader, before), unclaimed(reader, delivery(limit=1)))
    assert isinstance(found, Delivery)
    assert len(found.messages) == 1
    (state,) = run(made, unclaimed(reader, QueryQueue()))
    assert isinstance(state, QueueState)
    assert state.held_back == 1


def test_one_page_is_read_by_itself(owner: Host, reads: NotedReads) -> None:
    (page,) = run(owner, submission(READERS[2], QueryMessages(ALL)))
    assert texts(page) == [b"3"] * 3
    assert len(reads.questions) == 1


def test_large_pages_that_are_read_later_leave_room_for_others(reads: NotedReads) -> None:
    made = host(reads, limits=HostLimits(pages_bytes_max=1_000))
    for reader in READERS:
        met = SaveContract(contract(WRITER, reader))
        message = submission(reader, QueueMessage(WRITER, bytes(1_100_000)), sender=WRITER)
        run(made, submission(reader, registration(reader)), submission(reader, met), message)
    assert ask_all(made) == [MessagesBeside([3], 1)] * len(READERS)


def test_empty_pages_ask_nothing(owner: Host, reads: NotedReads) -> None:
    beyond = QueryMessages(Page(9, 100))
    replies = run(owner, *[submission(reader, beyond) for reader in READERS])
    assert replies == [MessagesPage([], total) for total in (1, 2, 3)]
    assert reads.questions == []


def waiting_for(made: Host, reader: str, size_bytes: int) -> None:
    """Let four envelopes of this size together wait for a wallet."""
    *_, queued = run(
        made,
        unclaimed(reader, Connect(connection())),
        unclaimed(reader, GrantMediation()),
        unclaimed(reader, UpdateKeylist(claimed(KEY), [])),
        unclaimed(reader, QueueEnvelopes(KEY, [bytes(size_bytes // 4)] * 4)),
    )
    assert isinstance(queued, EnvelopeQueued)


@pytest.mark.parametrize("waits_for_turn", [True, False])
def test_a_transaction_reads_a_mebibyte_of_deliveries_and_small_ones(
    reads: NotedReads, *, waits_for_turn: bool
) -> None:
    """The edges read others by themselves."""
    made, sizes = host(reads), dict(zip("abcd", (700_000, 700_000, 1_200_000, 60_000), strict=True))
    for reader, size_bytes in sizes.items():
        waiting_for(made, f"did:x:{reader}", size_bytes)
    command = delivery(bytes_max=2_000_000, waits_for_turn=waits_for_turn)
    replies = run(made, *[unclaimed(f"did:x:{reader}", command) for reader in sizes])
    deliveries = [reply for reply in replies if isinstance(reply, Delivery)]
    read = [sum(len(each.payload) for each in reply.messages) for reply in deliveries]
    beside = [len(reply.beside) for reply in deliveries]
    later = [reply.is_large for reply in deliveries]
    assert [reply.state.available == 4 for reply in deliveries] == later
    if waits_for_turn:
        assert (read, beside) == ([700_000, 0, 0, 60_000], [0] * 4)
        assert later == [False, True, True, False]
    else:
        assert (read, beside) == ([700_000, 0, 0, 60_000], [0, 4, 4, 0])
    assert any(later) is waits_for_turn


@pytest.mark.parametrize("size_bytes", [900_000, 1_200_000])
@pytest.mark.parametrize("is_removed", [False, True])
def test_a_page_is_charged_to_its_reader_by_its_bytes_whichever_way_it_is_read(
    log: EventLog, size_bytes: int, *, is_removed: bool
) -> None:
    """After the commit, by the edge, or before the commit that removes its messages."""
    by = host(log, limits=HostLimits(per_sender_per_s=1, burst_s=60))
    did = READERS[0]
    met, queued = SaveContract(contract(WRITER, did)), QueueMessage(WRITER, bytes(size_bytes))
    run(by, submission(did, registration(did)), submission(did, met))
    (accepted,) = run(by, submission(did, queued, sender=WRITER))
    assert isinstance(accepted, MessageAccepted)

    def query() -> Submission:
        return replace(submission(did, QueryMessages(ALL)), charge=1.0, source=b"me")

    after = [submission(did, AcknowledgeMessages([accepted.message_id]))] if is_removed else []
    page, *_ = run(by, query(), *after)
    assert isinstance(page, MessagesPage | MessagesBeside)
    (refused,) = run(by, query())
    assert isinstance(refused, Refused)
    assert refused.code is Refusal.RATE_LIMITED


def test_what_was_looked_through_for_an_answer_without_a_page_is_charged_by_the_host(
    log: EventLog,
) -> None:
    """Two questions cost 2 of 2.003 units, and four envelopes for another key 0.004."""
    by = host(log, limits=HostLimits(per_sender_per_s=1e-3, burst_s=2_003))
    did, keys = READERS[0], ("a", "b")
    run(by, unclaimed(did, Connect(connection(did))), unclaimed(did, GrantMediation()))
    run(by, unclaimed(did, UpdateKeylist(claimed(*keys), [])))
    run(by, unclaimed(did, QueueEnvelopes("a", [b"1"])))
    run(by, unclaimed(did, QueueEnvelopes("b", [b"2", b"3", b"4", b"5"])))

    def asked_again(key: str | None) -> Reply:
        source = did.encode() + (key or "").encode()
        question = replace(unclaimed(did, QueryQueue(key)), charge=1.0, source=source)
        first, second = run(by, question), run(by, question)
        assert isinstance(first[0], QueueState)
        return second[0]

    assert isinstance(asked_again(None), QueueState)
    refused = asked_again("a")
    assert isinstance(refused, Refused)
    assert refused.code is Refusal.RATE_LIMITED
