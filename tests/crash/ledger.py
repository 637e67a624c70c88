"""What clients asked and what they got, and what may not be wrong with it. Pure.

Every message has a text of its own. The mediator's promises are checked as sets and orders, never
as counts: an accepted message is delivered, with the same bytes; one whose outcome is unknown is
there once or not at all; an accepted removal is never undone; what was not acknowledged is offered
until it is; messages of one sender to one recipient keep their order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum


class Outcome(Enum):
    """What a client knows about a message that it sent."""

    ACCEPTED = "accepted"
    UNKNOWN = "unknown"
    UNSENT = "unsent"
    """No connection was made."""


@dataclass(slots=True)
class Attempt:
    """A message that a sender was about to send; unknown until an answer comes."""

    sender: str
    recipient: str
    text: str
    outcome: Outcome = Outcome.UNKNOWN


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message as its recipient got it, each time that it got it."""

    recipient: str
    sender: str
    event_id: str
    text: str


@dataclass(slots=True)
class Ledger:
    """Everything that the clients of one run know, in the order in which they learned it."""

    attempts: list[Attempt] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    acknowledged: set[str] = field(default_factory=set)
    """What recipients were about to acknowledge; the mediator may have removed it."""
    removed: set[str] = field(default_factory=set)
    undone: list[Delivery] = field(default_factory=list)
    unknown_may_come_late: bool = False
    """Where commands wait for a new owner, one that its sender gave up may come after the next."""

    def intend(self, sender: str, recipient: str, text: str) -> Attempt:
        """A message is about to be sent; no other has its text."""
        attempt = Attempt(sender, recipient, text)
        self.attempts.append(attempt)
        return attempt

    def deliver(self, delivery: Delivery) -> None:
        """A recipient was offered a message."""
        self.deliveries.append(delivery)
        if delivery.event_id in self.removed:
            self.undone.append(delivery)

    def acknowledge(self, event_ids: list[str]) -> None:
        """A recipient is about to acknowledge these."""
        self.acknowledged.update(event_ids)

    def remove(self, event_ids: list[str]) -> None:
        """The mediator has accepted that these are not offered again."""
        self.removed.update(event_ids)

    def count(self, outcome: Outcome) -> int:
        """How many messages came to this outcome."""
        return sum(attempt.outcome is outcome for attempt in self.attempts)


@dataclass(frozen=True, slots=True)
class LedgerResult:
    """What is wrong; nothing, if all of it is empty.

    ``lost`` counts by where the missing messages stand among those of their recipient; ``late``
    are the unknown ones that came after a later one and may have.
    """

    lost: dict[str, int]
    duplicated: list[str]
    strange: list[str]
    undone: list[str]
    disordered: list[str]
    vanished: list[str]
    """They were offered, and not again although none of their offers was acknowledged."""
    late: int = 0

    @property
    def is_clean(self) -> bool:
        """Was every promise kept?"""
        broken = self.lost, self.duplicated, self.strange, self.undone, self.disordered
        return not (any(broken) or self.vanished)


def check(ledger: Ledger) -> LedgerResult:
    """Hold the mediator to its promises, after every queue was drained."""
    sent = {(a.sender, a.recipient, a.text): a for a in ledger.attempts}
    copies: dict[tuple[str, str, str], set[str]] = {}
    for delivery in ledger.deliveries:
        key = delivery.sender, delivery.recipient, delivery.text
        copies.setdefault(key, set()).add(delivery.event_id)
    disordered = list(_disordered(ledger))
    unknown = {a.text for a in ledger.attempts if a.outcome is Outcome.UNKNOWN}
    late = unknown if ledger.unknown_may_come_late else set[str]()
    return LedgerResult(
        lost=dict(Counter(_places_of_the_lost(ledger, {text for _, _, text in copies}))),
        duplicated=[text for (_, _, text), ids in copies.items() if len(ids) > 1],
        strange=[
            key[-1]
            for key in copies
            if (attempt := sent.get(key)) is None or attempt.outcome is Outcome.UNSENT
        ],
        undone=[delivery.text for delivery in ledger.undone],
        disordered=[text for text in disordered if text not in late],
        vanished=list(
            dict.fromkeys(
                d.text for d in ledger.deliveries if d.event_id not in ledger.acknowledged
            )
        ),
        late=len(late.intersection(disordered)),
    )


def _places_of_the_lost(ledger: Ledger, delivered: set[str]) -> Iterator[str]:
    """Where each accepted message stands that was not delivered."""
    by_recipient: dict[str, list[str]] = {}
    for attempt in ledger.attempts:
        if attempt.outcome is Outcome.ACCEPTED:
            by_recipient.setdefault(attempt.recipient, []).append(attempt.text)
    for texts in by_recipient.values():
        here = [number for number, text in enumerate(texts) if text in delivered]
        for number, text in enumerate(texts):
            if text not in delivered:
                if not here:
                    yield "all"
                elif number < here[0]:
                    yield "prefix"
                elif number > here[-1]:
                    yield "postfix"
                else:
                    yield "middle"


def _disordered(ledger: Ledger) -> Iterator[str]:
    """Messages first offered after a later one of the same sender to the same recipient."""
    numbers = {attempt.text: number for number, attempt in enumerate(ledger.attempts)}
    newest: dict[tuple[str, str], int] = {}
    seen: set[str] = set()
    for delivery in ledger.deliveries:
        if delivery.text in seen or delivery.text not in numbers:
            continue
        seen.add(delivery.text)
        pair = delivery.sender, delivery.recipient
        if numbers[delivery.text] < newest.get(pair, -1):
            yield delivery.text
        newest[pair] = max(numbers[delivery.text], newest.get(pair, -1))
