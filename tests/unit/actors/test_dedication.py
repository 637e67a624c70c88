"""Dedicated identities: decided once, by whose wish, and served by their one owner alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from actors.core.commands import (
    CheckRegistered,
    Command,
    Contract,
    DedicateIdentity,
    DedicationReason,
    OpenSession,
    Page,
    QueryMessages,
    QueueMessage,
    Register,
    ReleaseIdentity,
    StoreContract,
)
from actors.core.limits import HostLimits
from actors.core.nonces import NonceClaim
from actors.core.refusals import Refusal
from actors.core.replies import (
    Dedication,
    Done,
    MessageAccepted,
    MessagesPage,
    Push,
    Refused,
    Registered,
    Reply,
)
from actors.core.submissions import Submission
from actors.host.host import Host
from actors.host.session_registry import Handover
from eventstore.log.event_log import DedicatedIdentity, EventLog
from eventstore.log.verify import Summary, verify
from eventstore.stores.open_log import open_log

SHARD = "shard-0"
ALICE, BOB = "did:x:alice", "did:x:bob"
EDGE = "edge"
NOT_OWNER = Refused(Refusal.NOT_OWNER)
NOW_MS = 1_700_000_000_000
OPERATOR, LOAD = DedicationReason.OPERATOR, DedicationReason.LOAD
NO_SUCH = Refused(Refusal.RECIPIENT_NOT_REGISTERED)


class Owners:
    """The owner of one shard, and hosts of single identities, on one log."""

    def __init__(self, log: EventLog) -> None:
        self.log = log
        self.ids = iter(range(10_000))
        self.now_ms = NOW_MS
        self.shard = self.host("host")
        self.shard.moves.adopt([SHARD], None)
        for someone, other in ((ALICE, BOB), (BOB, ALICE)):
            assert self.reply_to(self.shard, someone, Register(contract(someone, "did:x:med"))) == (
                Registered(2_000_000_000)
            )
            self.reply_to(self.shard, someone, StoreContract(contract(someone, other)))

    def host(self, name: str) -> Host:
        """A host that owns nothing yet, in a cluster."""
        return Host(
            name,
            self.log,
            HostLimits(dedicate_above_commands_per_s=8),
            secret=b"secret",
            clock=lambda: self.now_ms,
            new_id=lambda: f"id-{next(self.ids)}",
            is_placed=True,
        )

    def submission(self, target: str, command: Command, partition: str = SHARD) -> Submission:
        """A command for an identity, with a nonce of Bob's."""
        key = next(self.ids).to_bytes(16, "big")
        claim = NonceClaim(SHARD, key, NOW_MS) if partition == SHARD else None
        return Submission(partition, target, key, claim, command=command)

    def reply_to(self, host: Host, target: str, command: Command, partition: str = SHARD) -> Reply:
        """What a host answers to one command."""
        (reply,), _ = host.execute([(EDGE, self.submission(target, command, partition))])
        return reply

    def waiting(self, host: Host, partition: str) -> list[str]:
        """What waits for Alice."""
        page = self.reply_to(host, ALICE, QueryMessages(Page(0, 100)), partition)
        assert isinstance(page, MessagesPage), page
        return [message.payload.decode() for message in page.messages]


def contract(one: str, other: str) -> Contract:
    signed = f"{one} {other}".encode()
    return Contract(one, other, 2_000_000_000, signed.ljust(32), signed)


def message(text: str) -> QueueMessage:
    return QueueMessage(BOB, text.encode())


@pytest.fixture
def owners(tmp_path: Path) -> Iterator[Owners]:
    with closing(open_log(f"sqlite:{tmp_path / 'log.db'}")) as log:
        yield Owners(log)
        # Whatever was done: the log proves itself.
        *findings, summary = verify(log)
        assert isinstance(summary, Summary)
        assert findings == []


def dedicated(owners: Owners, name: str = "own") -> Host:
    """Alice on a host of her own."""
    reply = owners.reply_to(owners.shard, ALICE, DedicateIdentity(OPERATOR))
    assert reply == Dedication("operator", changed=True)
    handover = owners.shard.moves.hand_out(ALICE, SHARD)
    own = owners.host(name)
    own.moves.adopt([ALICE], handover or None)
    return own


def test_a_log_whose_identities_had_actors_of_their_own_is_served_by_shards_and_dedicated_hosts(
    owners: Owners,
) -> None:
    """An earlier release owned partitions of identities without saying so in the log."""
    former = Host(
        "identity",
        owners.log,
        HostLimits(),
        secret=b"secret",
        clock=lambda: NOW_MS,
        new_id=lambda: "m",
    )
    former.ownership.assign([ALICE])
    owners.reply_to(former, ALICE, message("one"), ALICE)
    placed = owners.host("host")
    placed.moves.adopt([SHARD], None)
    assert owners.waiting(placed, SHARD) == ["one"]
    assert isinstance(owners.reply_to(placed, ALICE, message("two")), MessageAccepted)
    owners.shard = placed
    own = dedicated(owners)
    assert owners.waiting(own, ALICE) == ["one", "two"]


def test_only_a_registered_identity_can_be_dedicated(owners: Owners) -> None:
    assert owners.reply_to(owners.shard, "did:x:stranger", DedicateIdentity(OPERATOR)) == NO_SUCH
    assert owners.reply_to(owners.shard, "did:x:stranger", ReleaseIdentity(OPERATOR)) == (
        Dedication("", changed=False)
    )
    assert owners.log.dedicated() == []


def test_what_an_operator_ordered_load_does_not_undo(owners: Owners) -> None:
    assert owners.reply_to(owners.shard, ALICE, DedicateIdentity(LOAD)) == Dedication(
        "load", changed=True
    )
    own = owners.host("own")
    own.moves.adopt([ALICE], None)
    for command, reply in (
        (DedicateIdentity(LOAD), Dedication("load", changed=False)),
        (DedicateIdentity(OPERATOR), Dedication("operator", changed=True)),
        (DedicateIdentity(LOAD), Dedication("operator", changed=False)),
        (DedicateIdentity(OPERATOR), Dedication("operator", changed=False)),
        (ReleaseIdentity(LOAD), Dedication("operator", changed=False)),
    ):
        assert owners.reply_to(own, ALICE, command, ALICE) == reply
    assert owners.log.dedicated() == [DedicatedIdentity(ALICE, "operator")]
    assert owners.reply_to(own, ALICE, ReleaseIdentity(OPERATOR), ALICE) == Dedication(
        "", changed=True
    )
    assert owners.log.dedicated() == []


def test_a_dedicated_identity_is_served_as_itself_and_no_more_in_its_shard(owners: Owners) -> None:
    assert isinstance(owners.reply_to(owners.shard, ALICE, message("one")), MessageAccepted)
    own = dedicated(owners)
    refused = owners.submission(ALICE, message("two"))
    assert owners.shard.execute([(EDGE, refused)]) == ([NOT_OWNER], [])
    assert ALICE not in owners.shard.cache.dids()
    # Nothing was done, the nonce not used: the same again is taken elsewhere.
    assert owners.reply_to(owners.shard, BOB, CheckRegistered()) == Registered(2_000_000_000)
    alone = Submission(SHARD, BOB, b"", refused.claim)
    assert owners.shard.execute([(EDGE, alone)]) == ([Done()], [])
    assert isinstance(owners.reply_to(own, ALICE, message("two"), ALICE), MessageAccepted)
    assert owners.waiting(own, ALICE) == ["one", "two"]


def test_a_released_identity_is_served_by_its_shard_as_its_host_left_it(owners: Owners) -> None:
    own = dedicated(owners)
    owners.reply_to(own, ALICE, message("one"), ALICE)
    assert owners.reply_to(own, ALICE, ReleaseIdentity(OPERATOR), ALICE) == Dedication(
        "", changed=True
    )
    assert owners.reply_to(own, ALICE, message("two"), ALICE) == NOT_OWNER
    owners.reply_to(owners.shard, ALICE, message("two"))
    assert owners.waiting(owners.shard, SHARD) == ["one", "two"]
    assert owners.reply_to(own, ALICE, message("three"), ALICE) == NOT_OWNER


def test_in_one_transaction_what_follows_the_change_is_for_the_next_owner(owners: Owners) -> None:
    request: list[Command] = [message("one"), DedicateIdentity(OPERATOR), message("two")]
    batch = [(EDGE, owners.submission(ALICE, command)) for command in request]
    (first, second, third), _ = owners.shard.execute(batch)
    assert isinstance(first, MessageAccepted)
    assert (second, third) == (Dedication("operator", changed=True), NOT_OWNER)
    own = owners.host("own")
    own.moves.adopt([ALICE], None)
    assert owners.waiting(own, ALICE) == ["one"]
    request = [message("two"), ReleaseIdentity(OPERATOR), message("three")]
    batch = [(EDGE, owners.submission(ALICE, command, ALICE)) for command in request]
    (first, second, third), _ = own.execute(batch)
    assert isinstance(first, MessageAccepted)
    assert (second, third) == (Dedication("", changed=True), NOT_OWNER)
    assert owners.waiting(owners.shard, SHARD) == ["one", "two"]


def test_two_hosts_of_one_identity_fence_each_other(owners: Owners) -> None:
    zombie = dedicated(owners)
    owners.reply_to(zombie, ALICE, message("one"), ALICE)
    own = owners.host("other")
    own.moves.adopt([ALICE], None)
    assert owners.reply_to(zombie, ALICE, message("lost"), ALICE) == NOT_OWNER
    assert owners.reply_to(zombie, ALICE, QueryMessages(Page(0, 9)), ALICE) == NOT_OWNER
    owners.reply_to(own, ALICE, ReleaseIdentity(OPERATOR), ALICE)
    owners.reply_to(owners.shard, ALICE, message("two"))
    assert owners.reply_to(zombie, ALICE, message("lost"), ALICE) == NOT_OWNER
    assert owners.waiting(owners.shard, SHARD) == ["one", "two"]


def test_a_former_host_that_wakes_after_a_release_answers_no_command(owners: Owners) -> None:
    own = dedicated(owners)
    owners.waiting(own, ALICE)
    other = owners.host("other")
    other.moves.adopt([ALICE], None)
    owners.reply_to(other, ALICE, ReleaseIdentity(OPERATOR), ALICE)
    owners.reply_to(owners.shard, ALICE, message("one"))
    # It has Alice in memory as she was.
    assert owners.reply_to(own, ALICE, QueryMessages(Page(0, 9)), ALICE) == NOT_OWNER


def test_sessions_go_with_an_identity_and_come_back(owners: Owners) -> None:
    for someone in (ALICE, BOB):
        owners.reply_to(owners.shard, someone, OpenSession(EDGE))
    own = dedicated(owners)
    assert (len(owners.shard.registry.sessions), len(own.registry.sessions)) == (1, 1)
    of_shard, of_own = owners.shard.ownership.holdings[SHARD], own.ownership.holdings[ALICE]
    assert of_own.startswith(of_shard + "/")
    _, pushes = own.execute([(EDGE, owners.submission(ALICE, message("one"), ALICE))])
    assert [(edge, type(push), push.did) for edge, push in pushes] == [(EDGE, Push, ALICE)]
    owners.shard.moves.expect(ALICE)
    owners.reply_to(own, ALICE, ReleaseIdentity(OPERATOR), ALICE)
    assert owners.shard.moves.take_in(ALICE, SHARD, own.moves.release([ALICE]))
    assert (len(owners.shard.registry.sessions), len(own.registry.sessions)) == (2, 0)
    # They move on with the shard.
    next_host = owners.host("next")
    next_host.moves.adopt([SHARD], owners.shard.moves.release([SHARD]))
    assert len(next_host.registry.sessions) == 2


def test_who_is_expected_with_her_sessions_is_not_served_before_they_come(owners: Owners) -> None:
    owners.reply_to(owners.shard, ALICE, OpenSession(EDGE))
    own = dedicated(owners)
    owners.shard.moves.expect(ALICE)
    owners.reply_to(own, ALICE, ReleaseIdentity(OPERATOR), ALICE)
    early = owners.submission(ALICE, message("one"))
    assert owners.shard.execute([(EDGE, early)]) == ([NOT_OWNER], [])
    owners.shard.moves.take_in(ALICE, SHARD, own.moves.release([ALICE]))
    (reply,), ((edge, _),) = owners.shard.execute([(EDGE, early)])
    assert isinstance(reply, MessageAccepted)
    assert edge == EDGE


@pytest.mark.parametrize("set_back_ms", [0, 20_000])
def test_sessions_that_come_too_late_are_not_taken_for_whole(
    owners: Owners, set_back_ms: int
) -> None:
    """Their edges close them then: what came meanwhile was pushed to none of them."""
    owners.reply_to(owners.shard, ALICE, OpenSession(EDGE))
    own = dedicated(owners)
    owners.shard.moves.expect(ALICE)
    owners.reply_to(own, ALICE, ReleaseIdentity(OPERATOR), ALICE)
    owners.now_ms += 5_000
    served = owners.shard.execute([(EDGE, owners.submission(ALICE, message("one")))])
    assert isinstance(served[0][0], MessageAccepted)
    assert served[1] == []
    owners.now_ms -= set_back_ms
    assert not owners.shard.moves.take_in(ALICE, SHARD, own.moves.release([ALICE]))
    assert len(owners.shard.registry.sessions) == 0


def test_sessions_that_come_after_their_shard_has_left_are_not_taken_for_whole(
    owners: Owners,
) -> None:
    owners.reply_to(owners.shard, ALICE, OpenSession(EDGE))
    own = dedicated(owners)
    owners.shard.moves.expect(ALICE)
    owners.reply_to(own, ALICE, ReleaseIdentity(OPERATOR), ALICE)
    owners.shard.moves.release([SHARD])
    assert not owners.shard.moves.take_in(ALICE, SHARD, own.moves.release([ALICE]))


def test_who_is_expected_in_vain_is_served_after_a_while(owners: Owners) -> None:
    owners.shard.moves.expect(ALICE)
    assert owners.reply_to(owners.shard, ALICE, message("one")) == NOT_OWNER
    owners.now_ms += 5_000
    owners.shard.run_housekeeping()
    assert isinstance(owners.reply_to(owners.shard, ALICE, message("two")), MessageAccepted)


def test_who_is_expected_in_vain_waits_no_longer_after_the_clock_was_set_back(
    owners: Owners,
) -> None:
    owners.shard.moves.expect(ALICE)
    owners.now_ms -= 20_000
    assert owners.reply_to(owners.shard, ALICE, message("one")) == NOT_OWNER
    owners.now_ms += 5_000
    assert isinstance(owners.reply_to(owners.shard, ALICE, message("two")), MessageAccepted)


def test_what_an_identity_has_in_its_shard_is_given_away_only_when_it_has_left(
    owners: Owners,
) -> None:
    owners.reply_to(owners.shard, ALICE, OpenSession(EDGE))
    owners.now_ms += 10_000_000
    owners.shard.run_housekeeping()
    assert ALICE not in owners.shard.cache.dids()
    assert owners.shard.moves.hand_out(ALICE, SHARD) == b""
    assert owners.shard.moves.hand_out(ALICE, "shard-1") == b""
    assert len(owners.shard.registry.sessions) == 1


def test_what_a_dedicated_identity_had_in_its_shard_goes_with_it_whatever_was_read_meanwhile(
    owners: Owners,
) -> None:
    """Commands are refused after their targets were read if their senders' shard has moved away."""
    owners.reply_to(owners.shard, ALICE, OpenSession(EDGE))
    owners.reply_to(owners.shard, ALICE, DedicateIdentity(OPERATOR))
    claim = NonceClaim("shard-1", b"", NOW_MS)
    first = owners.submission("did:x:dave", CheckRegistered())  # others are read together with it
    late = [
        (EDGE, Submission(SHARD, target, b"", claim, command=message("late")))
        for target in (ALICE, "did:x:carol")
    ]
    (_, *replies), _ = owners.shard.execute([(EDGE, first), *late])
    assert replies == [NOT_OWNER, NOT_OWNER]
    assert owners.shard.cache.peek(ALICE) is None, "it is outdated with her next event"
    handover = Handover(owners.shard.moves.hand_out(ALICE, SHARD) or None)
    assert handover.holds_anything()
    assert len(owners.shard.registry.sessions) == 0


def test_sessions_that_begin_on_an_own_host_are_never_taken_for_those_of_the_shard(
    owners: Owners,
) -> None:
    owners.reply_to(owners.shard, ALICE, DedicateIdentity(OPERATOR))
    own = owners.host("own")
    own.moves.adopt([ALICE], None)
    assert own.ownership.holdings == {ALICE: "own-1"}
    assert not owners.host("other").moves.take_in(ALICE, SHARD, own.moves.release([ALICE]))


def test_where_no_placer_is_an_identity_is_served_where_it_is_asked(owners: Owners) -> None:
    owners.reply_to(owners.shard, ALICE, DedicateIdentity(OPERATOR))
    alone = Host(
        "alone",
        owners.log,
        HostLimits(),
        secret=b"secret",
        clock=lambda: NOW_MS,
        new_id=lambda: "id",
    )
    alone.moves.adopt([SHARD], None)
    assert isinstance(owners.reply_to(alone, ALICE, message("one")), MessageAccepted)


def test_a_host_reports_the_busiest_identities(owners: Owners) -> None:
    owners.now_ms += 10_000
    owners.shard.run_housekeeping()
    for _ in range(30):
        owners.reply_to(owners.shard, ALICE, CheckRegistered())
        owners.reply_to(owners.shard, "did:x:stranger", CheckRegistered())
    owners.reply_to(owners.shard, BOB, CheckRegistered())
    owners.now_ms += 10_000
    owners.shard.run_housekeeping()
    assert owners.shard.rates.reported == {ALICE: 3.0}
    owners.now_ms += 10_000
    owners.shard.run_housekeeping()
    assert owners.shard.rates.reported == {}
