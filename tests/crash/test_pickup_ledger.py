"""The check of the wallets' crash tests finds what is planted, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from eventstore.log.events import MessagesDelivered
from eventstore.log.streams import partition_stream
from eventstore.stores.open_log import open_log
from tests.crash.pickup_ledger import (
    Fate,
    HandOut,
    Kept,
    Offer,
    PickupLedger,
    PickupResult,
    Sent,
    Session,
    check_pickup,
    kept_in,
)
from tests.log.samples import AT_MS, COMMAND, OWNER, SealedWriter, message, removed

pytestmark = pytest.mark.crash
LEASE_S = 4.0
PARTITION = partition_stream("shard-0")
ASKED, LIVE = "pickup/2.0", "live"


class Run:
    """Five accepted messages, offered and removed; an unknown and a refused one are not there."""

    def __init__(self) -> None:
        self.ledger = PickupLedger(LEASE_S)
        self.kept: list[Kept] = []
        for number in range(7):
            sent = Sent("a", "w", "key", f"{number}", b"", b"%d" % number, Fate.ACCEPTED)
            self.ledger.intend(sent)
            if number < 5:
                self.kept.append(Kept("key", sent.command, [ASKED], ["acknowledged"]))
                self.hand_out(number, at_s=10.0 * number)
                self.ledger.acknowledge("w", [sent.text])
        self.ledger.sent[5].fate = Fate.UNKNOWN
        self.ledger.sent[6].fate = Fate.REFUSED

    def offer(self, number: int, *, at_s: float, session: Session | None = None) -> None:
        self.ledger.offer(Offer("w", f"{number}", session or Session(at_s), at_s))

    def grant(self, number: int, *, at_s: float, claim: int = 1) -> None:
        self.kept[number].handed.append(HandOut(round(1000 * at_s), (PARTITION, claim)))

    def hand_out(self, number: int, *, at_s: float, session: Session | None = None) -> None:
        self.grant(number, at_s=at_s)
        self.offer(number, at_s=at_s, session=session)

    @property
    def result(self) -> PickupResult:
        return check_pickup(self.ledger, self.kept)


@pytest.fixture
def run() -> Run:
    return Run()


CLEAN = PickupResult({}, [], [], [], [], [], [], [])


def test_a_run_that_kept_its_promises_is_clean(run: Run) -> None:
    run.ledger.remove("w", ["4"], 45)
    assert run.result == CLEAN
    assert run.result.is_clean


def test_an_unknown_message_may_be_there(run: Run) -> None:
    run.kept.append(Kept("key", b"5", [ASKED]))
    run.offer(5, at_s=60)
    assert run.result == CLEAN


@pytest.mark.parametrize(
    ("change", "trace", "unbidden"),
    [
        (lambda kept: kept.pop(2), "not in the log", []),
        (
            lambda kept: kept.__setitem__(2, Kept("key", b"2", [ASKED, LIVE])),
            "2 times handed out, still there",
            ["still there after ['pickup/2.0', 'live']: 2"],
        ),
        (lambda kept: kept.copy(), "1 times handed out, acknowledged", []),
    ],
)
def test_an_accepted_message_that_no_wallet_got_is_lost(
    run: Run, change: Callable[[list[Kept]], object], trace: str, unbidden: list[str]
) -> None:
    run.ledger.offers.pop(2)
    change(run.kept)
    assert run.result == replace(CLEAN, lost={trace: 1}, unbidden=unbidden)
    assert not run.result.is_clean


def test_a_second_copy_in_the_queue_is_found(run: Run) -> None:
    run.kept.append(Kept("key", b"3"))
    assert run.result == replace(CLEAN, doubled=[b"3".hex()])


def test_a_second_removal_is_found(run: Run) -> None:
    run.kept[3].removals.append("acknowledged")
    assert run.result == replace(CLEAN, doubled=[b"3".hex()])


@pytest.mark.parametrize(
    ("reason", "channel", "is_acknowledged"),
    [
        ("acknowledged", ASKED, False),  # it was handed out, and removed before it was confirmed
        ("delivered", LIVE, True),
        ("acknowledged", "implicit", True),
        ("expired", ASKED, True),
    ],
)
def test_a_message_that_leaves_the_queue_without_cause_is_found(
    run: Run, reason: str, channel: str, is_acknowledged: bool
) -> None:
    run.kept[3].channels[:], run.kept[3].removals[:] = [channel], [reason]
    if not is_acknowledged:
        run.ledger.acknowledged.discard(("w", "3"))
    assert run.result == replace(CLEAN, unbidden=[f"{reason} after ['{channel}']: 3"])


def test_an_accepted_message_that_stays_in_a_queue_without_messages_is_found(run: Run) -> None:
    run.kept[3].removals.clear()
    assert run.result == replace(CLEAN, unbidden=["still there after ['pickup/2.0']: 3"])


@pytest.mark.parametrize("number", [6, 9])
def test_a_message_that_was_refused_or_never_sent_is_found(run: Run, number: int) -> None:
    run.kept.append(Kept("key", b"%d" % number, [ASKED]))
    run.offer(number, at_s=90)
    assert run.result == replace(CLEAN, strange=[f"{number}", (b"%d" % number).hex()])


def test_changed_bytes_are_found(run: Run) -> None:
    run.kept.append(Kept("key", b"5 but changed"))
    assert run.result == replace(CLEAN, strange=[b"5 but changed".hex()])


def test_an_acknowledged_removal_that_is_undone_is_found(run: Run) -> None:
    run.ledger.remove("w", ["1"], 50)
    run.hand_out(1, at_s=60)
    assert run.result == replace(
        CLEAN, undone=["asked for 10.000 s after its removal, ['pickup/2.0']: 1"]
    )


def test_a_copy_that_left_before_the_removal_may_be_read_after_it(run: Run) -> None:
    run.ledger.remove("w", ["1"], 50)
    run.kept[1].channels.append(LIVE)
    run.grant(1, at_s=30)
    run.offer(1, at_s=60, session=Session(10))
    assert run.result == CLEAN


def test_an_offer_that_the_log_has_no_handing_out_for_is_found(run: Run) -> None:
    run.ledger.remove("w", ["1"], 50)
    run.offer(1, at_s=60, session=Session(10))
    assert run.result == replace(
        CLEAN, undone=["got 10.000 s after its removal, 2 of ['pickup/2.0']: 1"], twice=["1"]
    )


def test_a_handing_out_that_follows_the_removal_in_the_log_is_found(run: Run) -> None:
    run.kept[1].late.append(LIVE)
    assert run.result == replace(CLEAN, undone=["live after its removal in the log: 1"])


def test_a_confirmed_removal_that_the_log_does_not_have_is_found(run: Run) -> None:
    run.ledger.remove("w", ["1"], 50)
    run.kept[1].removals.clear()
    assert run.result == replace(
        CLEAN, undone=["no removal in the log: 1"], unbidden=["still there after ['pickup/2.0']: 1"]
    )


def test_the_log_says_what_was_handed_out_before_its_removal_and_what_after(tmp_path: Path) -> None:
    queued = msgspec.structs.replace(message(), recipient_key="key")
    fetched, pushed = (
        MessagesDelivered(at_ms=AT_MS, command=COMMAND, message_ids=["message"], channel=channel)
        for channel in (ASKED, LIVE)
    )
    with closing(open_log(f"sqlite:{tmp_path / 'log.db'}")) as log:
        writer = SealedWriter(log)
        writer.commit({"shard-0": [(OWNER, queued), (OWNER, fetched)]})
        writer.commit({"shard-1": [(OWNER, removed([1], "message")), (OWNER, pushed)]})
        (kept,) = kept_in(log)
    handed = [HandOut(AT_MS, (partition_stream(f"shard-{number}"), 1)) for number in range(2)]
    assert kept == Kept("key", COMMAND, [ASKED], ["acknowledged"], [LIVE], handed)


def test_of_two_devices_one_may_hear_late_of_what_the_other_acknowledged(run: Run) -> None:
    run.ledger.remove("w", ["1"], 50)
    run.kept[1].channels.append(ASKED)
    run.hand_out(1, at_s=60, session=Session(49, shared=True))
    assert run.result == CLEAN
    run.hand_out(1, at_s=70, session=Session(61, shared=True))
    assert run.result == replace(
        CLEAN, undone=["asked for 11.000 s after its removal, ['pickup/2.0', 'pickup/2.0']: 1"]
    )


def test_amid_faults_a_session_from_before_may_read_late_what_was_acknowledged(
    run: Run,
) -> None:
    run.ledger.fault(begins=True)
    run.ledger.remove("w", ["1"], 50)
    run.kept[1].channels.append(ASKED)
    run.hand_out(1, at_s=60, session=Session(49))
    assert run.result == CLEAN
    run.hand_out(1, at_s=70, session=Session(61))
    assert run.result == replace(
        CLEAN, undone=["asked for 11.000 s after its removal, ['pickup/2.0', 'pickup/2.0']: 1"]
    )


def test_leases_are_not_held_to_amid_faults_and_are_after_them(run: Run) -> None:
    run.ledger.fault(begins=True)
    run.hand_out(4, at_s=41)
    run.ledger.fault(begins=False)
    run.kept[4].channels += [ASKED, ASKED, ASKED]
    run.hand_out(4, at_s=42)
    assert run.result == CLEAN
    run.hand_out(4, at_s=43)
    assert run.result == replace(CLEAN, twice=["4"])


def test_two_offers_at_a_time_are_found(run: Run) -> None:
    run.hand_out(4, at_s=40 + LEASE_S - 0.001)
    assert run.result == replace(CLEAN, twice=["4"])


def test_an_offer_that_the_log_knows_nothing_of_is_found(run: Run) -> None:
    run.offer(4, at_s=50, session=Session(30))
    assert run.result == replace(CLEAN, twice=["4"])


def test_an_offer_to_the_session_that_holds_the_message_is_found(run: Run) -> None:
    socket = Session(35, held_s=35)
    for at_s in (50, 51):
        run.hand_out(4, at_s=at_s, session=socket)
    assert run.result == replace(CLEAN, twice=["4"])


@pytest.mark.parametrize("why", ["the lease was over", "another process came", "the socket ended"])
def test_a_second_offer_is_right_after_the_end_of_the_first(run: Run, why: str) -> None:
    at_s = 40 + LEASE_S if why == "the lease was over" else 41
    if why == "the socket ended":
        run.ledger.offers[-1].session.held_s = 40.9
    run.grant(4, at_s=at_s, claim=2 if why == "another process came" else 1)
    run.offer(4, at_s=at_s)
    run.kept[4].channels.append(ASKED)
    assert run.result == CLEAN
    assert run.ledger.repeated() == 1


@pytest.mark.parametrize("held_s", [40, 45])
def test_a_socket_holds_what_it_got_while_it_answers(run: Run, held_s: float) -> None:
    """When it ended is known to its edge alone: its wallet may notice that late."""
    run.ledger.offers[-1].session.held_s = held_s
    run.hand_out(4, at_s=41)
    assert run.result == replace(CLEAN, twice=[] if held_s == 40 else ["4"])


@pytest.mark.parametrize("granted_s", [LEASE_S, LEASE_S - 0.001])
def test_two_who_read_slowly_hold_a_message_only_as_long_as_its_leases(
    run: Run, granted_s: float
) -> None:
    """One read its answer when the lease was over, and after the one who got it next."""
    run.grant(4, at_s=50)
    run.grant(4, at_s=50 + granted_s)
    run.offer(4, at_s=59, session=Session(53))
    run.offer(4, at_s=60, session=Session(49))
    assert run.result == replace(CLEAN, twice=[] if granted_s == LEASE_S else ["4"])


def test_a_hand_out_that_was_not_read_accuses_no_later_one(run: Run) -> None:
    """It was pushed to a socket that had just ended, so it was free again at once."""
    run.grant(4, at_s=50)
    run.grant(4, at_s=50.5)
    run.grant(4, at_s=50.5 + LEASE_S)
    run.offer(4, at_s=54, session=Session(50.2))
    run.offer(4, at_s=54.6, session=Session(54.1))
    assert run.result == CLEAN


def test_a_change_of_order_is_found(run: Run) -> None:
    run.ledger.offers.insert(0, run.ledger.offers.pop(2))
    assert run.result == replace(CLEAN, disordered=["0", "1"])


def test_the_order_is_not_that_of_a_message_that_was_handed_out_twice(run: Run) -> None:
    run.ledger.offers.insert(0, run.ledger.offers.pop(2))
    run.kept[2].channels.append(ASKED)
    assert run.result == CLEAN


def test_what_is_pushed_may_pass_by_what_waits(run: Run) -> None:
    run.ledger.offers.insert(0, run.ledger.offers.pop(2))
    run.kept[2].channels = [LIVE]
    assert run.result == CLEAN
