"""The check of the crash tests finds what is planted, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.crash.ledger import Delivery, Ledger, LedgerResult, Outcome, check

pytestmark = pytest.mark.crash


@pytest.fixture
def ledger() -> Ledger:
    """Five accepted messages, all delivered; one unknown and one unsent that are not there."""
    ledger = Ledger()
    for number in range(7):
        attempt = ledger.intend("a", "b", f"{number}")
        attempt.outcome = Outcome.ACCEPTED if number < 5 else Outcome.UNKNOWN
        if number < 5:
            take(ledger, delivery(number))
    ledger.attempts[-1].outcome = Outcome.UNSENT
    return ledger


def delivery(number: int, event_id: str = "") -> Delivery:
    return Delivery("b", "a", event_id or f"id {number}", f"{number}")


def take(ledger: Ledger, delivery: Delivery) -> None:
    """A recipient is offered a message, and is about to acknowledge it."""
    ledger.deliver(delivery)
    ledger.acknowledge([delivery.event_id])


def test_a_run_that_kept_its_promises_is_clean(ledger: Ledger) -> None:
    ledger.deliver(delivery(4))
    ledger.remove(["id 4"])
    take(ledger, delivery(5))
    assert check(ledger).is_clean


@pytest.mark.parametrize(
    ("missing", "place"),
    [({0}, "prefix"), ({2}, "middle"), ({4}, "postfix"), (set(range(5)), "all")],
)
def test_an_accepted_message_that_is_not_delivered_is_lost(
    ledger: Ledger, missing: set[int], place: str
) -> None:
    texts = {f"{number}" for number in missing}
    ledger.deliveries = [d for d in ledger.deliveries if d.text not in texts]
    assert check(ledger).lost == {place: len(missing)}


NOTHING_WRONG = LedgerResult({}, [], [], [], [], [])


def only(**wrong: Any) -> LedgerResult:
    return replace(NOTHING_WRONG, **wrong)


def test_a_second_copy_under_another_id_is_found(ledger: Ledger) -> None:
    take(ledger, delivery(3, "another id"))
    assert check(ledger) == only(duplicated=["3"])


def test_a_message_that_no_sender_sent_is_found(ledger: Ledger) -> None:
    take(ledger, delivery(9))
    assert check(ledger) == only(strange=["9"])


def test_a_message_that_was_never_sent_off_is_found(ledger: Ledger) -> None:
    take(ledger, delivery(6))
    assert check(ledger) == only(strange=["6"])


def test_a_changed_message_is_found(ledger: Ledger) -> None:
    take(ledger, Delivery("b", "a", "id 5", "5 but changed"))
    assert check(ledger) == only(strange=["5 but changed"])


def test_a_removal_that_is_undone_is_found(ledger: Ledger) -> None:
    ledger.remove(["id 1"])
    ledger.deliver(delivery(1))
    assert check(ledger) == only(undone=["1"])


def test_a_message_that_is_offered_no_more_though_it_was_not_acknowledged_is_found(
    ledger: Ledger,
) -> None:
    ledger.acknowledged.discard("id 2")
    assert check(ledger) == only(vanished=["2"])


def test_a_change_of_order_is_found(ledger: Ledger) -> None:
    ledger.deliveries.insert(0, ledger.deliveries.pop(2))
    assert check(ledger) == only(disordered=["0", "1"])


@pytest.mark.parametrize("outcome", [Outcome.ACCEPTED, Outcome.UNKNOWN])
def test_only_an_unknown_message_may_come_late_and_only_where_that_is_said(
    ledger: Ledger, outcome: Outcome
) -> None:
    ledger.deliveries.append(ledger.deliveries.pop(2))
    ledger.attempts[2].outcome = outcome
    assert check(ledger) == only(disordered=["2"])
    ledger.unknown_may_come_late = True
    is_late = outcome is Outcome.UNKNOWN
    assert check(ledger) == (replace(NOTHING_WRONG, late=1) if is_late else only(disordered=["2"]))
