"""What senders and wallets know after a run, and what the log says of it: is anything wrong? Pure.

Every message has a text of its own, and no sender sends one twice. So, whatever was killed:

- an accepted message is in the log, once and byte by byte, and a wallet got it;
- one whose outcome is unknown is there once or not at all, one that was refused is not there;
- what a wallet acknowledged and the mediator confirmed is out of the queue, and never handed out
  after that, by the order of the log: a copy that had left before may still be read later;
- nothing is offered to two at a time: not while the one that got it is there and its lease holds.
  By the log: a message may take any time from its grant to where a wallet reads it;
- nothing leaves the queue but what was acknowledged, or handed out without acknowledgement, and
  all that was accepted has left it once it is said to be empty;
- messages of one sender to one wallet that were handed out once arrive in the order of sending:
  those it asked for, and those that were pushed, for live mode passes by what waits (RFC 0685).

A protocol without acknowledgement removes what it has written, so a kill in between gives it once
more (``repeated``). Wallets are never killed here and read whatever comes, hence nothing that was
written can be lost with a connection, and nothing needs to be excused.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from eventstore.log.codec import decode
from eventstore.log.event_log import EventLog
from eventstore.log.events import BatchSealed, MessageQueued, MessagesDelivered, MessagesRemoved

_LIVE: Final = "live"
_REMOVES: Final = {
    "acknowledged": frozenset({_LIVE, "pickup/2.0", "pickup/3.0", "pickup/4.0"}),
    "delivered": frozenset({"pickup/1.0", "queue/1.0", "implicit"}),
}
"""For each reason to leave the queue, the ways of handing out that lead to it."""
_SHOWN: Final = 3
_SHOWN_CHARS: Final = 120


class Fate(Enum):
    """What a sender knows about a message that it sent."""

    ACCEPTED = "accepted"
    UNKNOWN = "unknown"
    REFUSED = "refused"
    UNSENT = "unsent"
    """No connection was made."""


@dataclass(slots=True)
class Sent:
    """An envelope that a sender was about to send; unknown until an answer comes."""

    sender: str
    wallet: str
    key: str
    text: str
    envelope: bytes
    command: bytes
    """The digest of what was sent, as it stands in the log."""
    fate: Fate = Fate.UNKNOWN


@dataclass(slots=True)
class Session:
    """Who was handed messages: one HTTP request, or a socket; times in Unix seconds.

    A wallet that is ``shared`` by two devices knows nothing of the order of what the two do.
    """

    opened_s: float
    shared: bool = False
    held_s: float = math.inf
    """Until when it surely was there: what is handed to a request is held to the end of the lease,
    and of a socket it is known when the last question was asked that was answered on it. Its end
    is known to none but the edge."""


class Offer(NamedTuple):
    """A message as its wallet got it, each time; ``at_s`` by the clock of the log, in seconds."""

    wallet: str
    text: str
    session: Session
    at_s: float


Message: TypeAlias = tuple[str, str]
"""Wallet and text."""


@dataclass(slots=True)
class PickupLedger:
    """Everything that the clients of one run know, in the order in which they learned it."""

    lease_s: float
    kills: int = 0
    is_troubled: bool = False
    """Are there faults now, any of which may end leases at any time? See ``fault``."""
    unknown_may_come_late: bool = False
    """Where commands wait for a new owner, one that its sender gave up may come after the next."""
    sent: list[Sent] = field(default_factory=list)
    offers: list[Offer] = field(default_factory=list)
    acknowledged: set[Message] = field(default_factory=set)
    """What wallets were about to acknowledge; the mediator may have removed it."""
    removed: dict[Message, float] = field(default_factory=dict)
    runs: list[list[Offer]] = field(default_factory=list)
    """Offers of one message without a fault among them that lasts."""
    changed: list[str] = field(default_factory=list)
    _by_message: dict[Message, Sent] = field(default_factory=dict)
    _runs: dict[Message, list[Offer]] = field(default_factory=dict)

    def fault(self, *, begins: bool) -> None:
        """A fault begins that lasts, or ends; leases from before and during it are not held to."""
        self.kills += begins
        self.is_troubled = begins
        if not begins:
            self._runs.clear()

    def intend(self, sent: Sent) -> Sent:
        """An envelope is about to be sent; no other has its text."""
        self.sent.append(sent)
        self._by_message[sent.wallet, sent.text] = sent
        return sent

    def sent_to(self, wallet: str, text: str) -> Sent | None:
        """What a sender intended with this text."""
        return self._by_message.get((wallet, text))

    def offer(self, offer: Offer) -> None:
        """A wallet was handed a message."""
        self.offers.append(offer)
        if not self.is_troubled:
            run = self._runs.setdefault((offer.wallet, offer.text), [])
            if not run:
                self.runs.append(run)
            run.append(offer)

    def acknowledge(self, wallet: str, texts: Iterable[str]) -> None:
        """A wallet is about to acknowledge these."""
        self.acknowledged.update((wallet, text) for text in texts)

    def remove(self, wallet: str, texts: Iterable[str], at_s: float) -> None:
        """The mediator has confirmed that these are not handed out again."""
        for text in texts:
            self.removed.setdefault((wallet, text), at_s)

    def count(self, fate: Fate) -> int:
        """How many messages came to this."""
        return sum(sent.fate is fate for sent in self.sent)

    def repeated(self) -> int:
        """How many offers were not the first of their message."""
        return len(self.offers) - len({(offer.wallet, offer.text) for offer in self.offers})


class HandOut(NamedTuple):
    """A hand-out in the log: when it was granted (Unix ms), and under whose claim of the partition.

    A claim that follows may be that of another process, which knows of no lease before it.
    """

    at_ms: int
    claim: tuple[UUID | str, int]


@dataclass(slots=True)
class Kept:
    """What the log says of one message."""

    key: str
    command: bytes
    """What the envelope came by, see ``Sent``. Its content may be erased."""
    channels: list[str] = field(default_factory=list)
    """How it was handed out while it was in the queue, each time."""
    removals: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    """How it was handed out when it had left the queue, which must not be."""
    handed: list[HandOut] = field(default_factory=list)
    """Each time, in the order of the log."""


def kept_in(log: EventLog) -> list[Kept]:
    """Every envelope that a log has queued for a recipient's key, oldest first."""
    kept: dict[str, Kept] = {}
    unsealed: list[tuple[Kept, int]] = []
    for stream, event in _events(log):
        match event:
            case MessageQueued(message_id=message_id, recipient_key=key, command=command):
                kept[message_id] = Kept(key, command)
            case MessagesDelivered(at_ms=at_ms, message_ids=message_ids, channel=channel):
                for message_id in message_ids:
                    one = kept[message_id]
                    unsealed.append((one, at_ms))
                    (one.late if one.removals else one.channels).append(channel)
            case MessagesRemoved(message_ids=message_ids, reason=reason):
                for message_id in message_ids:
                    kept[message_id].removals.append(reason)
            case BatchSealed(epoch=epoch):
                for one, at_ms in unsealed:
                    one.handed.append(HandOut(at_ms, (stream, epoch)))
                unsealed.clear()
            case _:
                pass
    return [one for one in kept.values() if one.key]


def _events(log: EventLog) -> Iterator[tuple[UUID | str, object]]:
    after = 0
    while rows := log.read_log(after=after):
        yield from ((row.originator_id, decode(row.topic, row.state)) for row in rows)
        after = rows[-1].id


@dataclass(frozen=True, slots=True)
class PickupResult:
    """What is wrong; nothing, if all of it is empty."""

    lost: dict[str, int]
    """By what the log says of the missing message."""
    doubled: list[str]
    strange: list[str]
    changed: list[str]
    undone: list[str]
    twice: list[str]
    disordered: list[str]
    unbidden: list[str]
    """What left the queue without cause, or stayed in it."""
    late: int = 0
    """Unknown ones that came after a later one, and may have."""

    @property
    def is_clean(self) -> bool:
        """Was every promise kept?"""
        return not (
            self.lost
            or self.doubled
            or self.strange
            or self.changed
            or self.undone
            or self.twice
            or self.disordered
            or self.unbidden
        )

    def __str__(self) -> str:
        found = {
            "doubled": self.doubled,
            "strange": self.strange,
            "changed": self.changed,
            "undone": self.undone,
            "twice at a time": self.twice,
            "disordered": self.disordered,
            "removed unbidden": self.unbidden,
        }
        answered = [f"{name} {_shown(texts)}" for name, texts in found.items()]
        return ", ".join([f"lost {self.lost or 0}", *answered, f"{self.late} unknown late"])


def _shown(texts: Sequence[str]) -> str:
    """Their number, and the beginnings of a few."""
    few = [text[:_SHOWN_CHARS] for text in texts[:_SHOWN]]
    return f"{len(texts)} {few}" if few else "0"


def check_pickup(ledger: PickupLedger, kept: Sequence[Kept]) -> PickupResult:
    """Hold the mediator to its promises, after every queue was drained."""
    by_bytes: dict[tuple[str, bytes], list[Kept]] = defaultdict(list)
    for one in kept:
        by_bytes[one.key, one.command].append(one)
    sent = {(one.wallet, one.text): one for one in ledger.sent}
    offered = {(offer.wallet, offer.text) for offer in ledger.offers}
    absent = {Fate.REFUSED, Fate.UNSENT}
    known = {(one.key, one.command) for one in ledger.sent if one.fate not in absent}
    strange = [text for wallet, text in offered if _never_sent(sent.get((wallet, text)))]
    strange += [command.hex() for key, command in by_bytes.keys() - known]
    doubled = [ones[0].command.hex() for ones in by_bytes.values() if len(ones) > 1]
    doubled += [one.command.hex() for one in kept if len(one.removals) > 1]
    disordered = list(_disordered(ledger, sent, by_bytes))
    unknown = {one.text for one in ledger.sent if one.fate is Fate.UNKNOWN}
    late = unknown if ledger.unknown_may_come_late else set[str]()
    return PickupResult(
        lost=dict(
            Counter(
                _trace(by_bytes.get((one.key, one.command), []))
                for message, one in sent.items()
                if one.fate is Fate.ACCEPTED and message not in offered
            )
        ),
        doubled=doubled,
        strange=strange,
        changed=ledger.changed,
        undone=list(dict.fromkeys(_undone(ledger, sent, by_bytes))),
        twice=list(dict.fromkeys(_twice(ledger, sent, by_bytes))),
        disordered=[text for text in disordered if text not in late],
        unbidden=list(_unbidden(ledger, by_bytes)),
        late=len(late.intersection(disordered)),
    )


def _twice(
    ledger: PickupLedger,
    sent: Mapping[Message, Sent],
    by_bytes: Mapping[tuple[str, bytes], Sequence[Kept]],
) -> Iterator[str]:
    """Messages that were offered while another session held them, by whatever hand-outs."""
    for run in ledger.runs:
        one = sent.get((run[0].wallet, run[0].text))
        if len(run) > 1 and one is not None:
            copies = by_bytes.get((one.key, one.command), [])
            handed = sorted(each for kept in copies for each in kept.handed)
            if not _is_explained(run, handed, round(1000 * ledger.lease_s)):
                yield one.text


def _is_explained(
    offers: Sequence[Offer],
    handed: Sequence[HandOut],
    lease_ms: int,
    before: tuple[HandOut, Session] | None = None,
) -> bool:
    """Can each offer be of another hand-out, each of which was over when the next was granted?

    Not every hand-out was read. ``before`` is the last one that was, and who got it.
    """
    if not offers or len(handed) < len(offers):
        return not offers
    each, *later = handed
    return any(
        _may_be_of(each, offer)
        and (before is None or _is_over(*before, each, offer.session, lease_ms))
        and _is_explained(
            [one for one in offers if one is not offer], later, lease_ms, (each, offer.session)
        )
        for offer in offers
    ) or _is_explained(offers, later, lease_ms, before)


def _may_be_of(handed: HandOut, offer: Offer) -> bool:
    """Was the session there, and the message read after it? The log has whole milliseconds."""
    return 1000 * offer.session.opened_s - 1 < handed.at_ms <= 1000 * offer.at_s


def _is_over(
    before: HandOut, holder: Session, handed: HandOut, session: Session, lease_ms: int
) -> bool:
    """Was a hand-out over when the next was granted, as far as is known?"""
    return (
        handed.at_ms >= before.at_ms + lease_ms
        or handed.claim != before.claim
        or (session is not holder and handed.at_ms + 1 > 1000 * holder.held_s)
    )


def _never_sent(sent: Sent | None) -> bool:
    return sent is None or sent.fate in {Fate.REFUSED, Fate.UNSENT}


def _trace(kept: Sequence[Kept]) -> str:
    """How far a message came that its wallet never got."""
    if not kept:
        return "not in the log"
    reasons = ", ".join(kept[0].removals) or "still there"
    return f"{len(kept[0].channels)} times handed out, {reasons}"


def _undone(
    ledger: PickupLedger,
    sent: Mapping[Message, Sent],
    by_bytes: Mapping[tuple[str, bytes], Sequence[Kept]],
) -> Iterator[str]:
    """Messages that were handed out after their removal, or whose removal is not in the log.

    A wallet may read a copy late that left in time: it stood in the inbox of a socket, or in the
    answer to another request. So each handing out in the log before the removal allows one offer,
    and what a wallet asks for when the removal was confirmed to it has none of them.
    """
    texts = {(one.key, one.command): one.text for one in sent.values()}
    for key, copies in by_bytes.items():
        for channel in (channel for one in copies for channel in one.late):
            yield f"{channel} after its removal in the log: {texts.get(key, key[1].hex())}"
    offers: dict[Message, list[Offer]] = defaultdict(list)
    for offer in ledger.offers:
        offers[offer.wallet, offer.text].append(offer)
    for message, removed_s in ledger.removed.items():
        one = sent.get(message)
        kept = by_bytes.get((one.key, one.command), []) if one is not None else []
        if not any(copy.removals for copy in kept):
            yield f"no removal in the log: {message[1]}"
        handed = [channel for copy in kept for channel in copy.channels]
        for number, offer in enumerate(offers[message]):
            if offer.session.opened_s > removed_s:
                after_s = offer.session.opened_s - removed_s
                yield f"asked for {after_s:.3f} s after its removal, {handed}: {offer.text}"
            elif offer.at_s > removed_s and number >= len(handed):
                after_s, times = offer.at_s - removed_s, number + 1
                yield f"got {after_s:.3f} s after its removal, {times} of {handed}: {offer.text}"


def _unbidden(
    ledger: PickupLedger, by_bytes: Mapping[tuple[str, bytes], Sequence[Kept]]
) -> Iterator[str]:
    """Messages that left the queue without cause, and accepted ones that never left it."""
    for one in ledger.sent:
        copies = by_bytes.get((one.key, one.command), [])
        removals = [(copy, reason) for copy in copies for reason in copy.removals]
        for copy, reason in removals:
            is_bidden = reason == "delivered" or (one.wallet, one.text) in ledger.acknowledged
            if not (is_bidden and _REMOVES.get(reason, frozenset()).intersection(copy.channels)):
                yield f"{reason} after {copy.channels}: {one.text}"
        if one.fate is Fate.ACCEPTED and copies and not removals:
            yield f"still there after {copies[0].channels}: {one.text}"


def _disordered(
    ledger: PickupLedger,
    sent: Mapping[Message, Sent],
    by_bytes: Mapping[tuple[str, bytes], Sequence[Kept]],
) -> Iterator[str]:
    """Messages handed out once, and after a later one that came the same way."""
    numbers = {(one.wallet, one.text): number for number, one in enumerate(ledger.sent)}
    offers = Counter((offer.wallet, offer.text) for offer in ledger.offers)
    newest: dict[tuple[str, str, bool], int] = {}
    for offer in ledger.offers:
        message = offer.wallet, offer.text
        one = sent.get(message)
        if one is None:
            continue
        kept = by_bytes.get((one.key, one.command), [])
        channels = [channel for copy in kept for channel in copy.channels]
        if len(channels) == 1 == offers[message] and not offer.session.shared:
            way = one.sender, one.wallet, channels == [_LIVE]
            if numbers[message] < newest.get(way, -1):
                yield one.text
            newest[way] = max(numbers[message], newest.get(way, -1))
