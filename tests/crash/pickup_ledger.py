"""What senders and wallets know after a run, and what the log says of it: is anything wrong? Pure.

Every message has a text of its own, and no sender sends one twice. So, whatever was killed:

- an accepted message is in the log, once and byte by byte, and a wallet got it;
- one whose outcome is unknown is there once or not at all, one that was refused is not there;
- what a wallet acknowledged and the mediator confirmed is out of the queue, and never handed out
  after that, by the order of the log: a copy that had left before may still be read later;
- nothing is offered to two at a time: not while the one that got it is there and its lease holds;
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
from itertools import pairwise
from typing import Final, NamedTuple, TypeAlias

from eventstore.log.codec import decode
from eventstore.log.event_log import EventLog
from eventstore.log.events import MessageQueued, MessagesDelivered, MessagesRemoved

_NOTICED_S: Final = 1.0
_LIVE: Final = "live"
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
    """Who was handed messages: one HTTP request, or a socket, with the times of its two ends.

    ``kills`` is how many went before it. A wallet that is ``shared`` by two devices knows nothing
    of the order of what the two do.
    """

    kills: int
    opened_s: float
    shared: bool = False
    ended_s: float = math.inf
    """Of a socket; what is handed to a request is held to the end of the lease."""


class Offer(NamedTuple):
    """A message as its wallet got it, each time; ``at_s`` on a clock that only goes on."""

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
    removed: dict[Message, float] = field(default_factory=dict)
    repeated_early: list[tuple[Offer, Offer]] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    _by_message: dict[Message, Sent] = field(default_factory=dict)
    _holders: dict[Message, Offer] = field(default_factory=dict)

    def fault(self, *, begins: bool) -> None:
        """A fault begins that lasts, or ends; leases from before and during it are not held to."""
        self.kills += begins
        self.is_troubled = begins
        if not begins:
            self._holders.clear()

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
        message = offer.wallet, offer.text
        self.offers.append(offer)
        before = self._holders.get(message)
        if before and not self.is_troubled and self._is_leased(before, offer.at_s):
            self.repeated_early.append((before, offer))
        self._holders[message] = offer

    def _is_leased(self, offer: Offer, now_s: float) -> bool:
        """Is a message still out, if its session is? A kill ends leases of sessions before it.

        Half of the lease is for the way from the grant to the wallet.
        """
        return now_s < offer.at_s + self.lease_s / 2 and offer.session.kills == self.kills

    def twice(self) -> list[Message]:
        """Messages that were offered while another connected session held them.

        The mediator may have seen the end of a socket shortly before the wallet.
        """
        return [
            (again.wallet, again.text)
            for first, again in self.repeated_early
            if first.session.ended_s > again.at_s + _NOTICED_S
        ]

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
    handed_ms: list[int] = field(default_factory=list)
    """When, each time, by the clock that leases are granted by: Unix ms."""

    def is_apart(self, lease_s: float, times: int) -> bool:
        """Was it handed out so many times, and each time when the lease before was over?"""
        gaps_ms = [again - first for first, again in pairwise(self.handed_ms)]
        return len(self.handed_ms) >= times and all(gap >= 1000 * lease_s for gap in gaps_ms)


def kept_in(log: EventLog) -> list[Kept]:
    """Every envelope that a log has queued for a recipient's key, oldest first."""
    kept: dict[str, Kept] = {}
    for event in _events(log):
        match event:
            case MessageQueued(message_id=message_id, recipient_key=key, command=command):
                kept[message_id] = Kept(key, command)
            case MessagesDelivered(at_ms=at_ms, message_ids=message_ids, channel=channel):
                for message_id in message_ids:
                    one = kept[message_id]
                    one.handed_ms.append(at_ms)
                    (one.late if one.removals else one.channels).append(channel)
            case MessagesRemoved(message_ids=message_ids, reason=reason):
                for message_id in message_ids:
                    kept[message_id].removals.append(reason)
            case _:
                pass
    return [one for one in kept.values() if one.key]


def _events(log: EventLog) -> Iterator[object]:
    after = 0
    while rows := log.read_log(after=after):
        yield from (decode(row.topic, row.state) for row in rows)
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
    late: int = 0
    """Unknown ones that came after a later one, and may have."""
    slow: int = 0
    """Offers that came again soon after the first was read, and by the log after its lease."""

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
        )

    def __str__(self) -> str:
        found = {
            "doubled": self.doubled,
            "strange": self.strange,
            "changed": self.changed,
            "undone": self.undone,
            "twice at a time": self.twice,
            "disordered": self.disordered,
        }
        answered = [f"{name} {_shown(texts)}" for name, texts in found.items()]
        late = f"{self.late} unknown late, {self.slow} read when their lease was nearly over"
        return ", ".join([f"lost {self.lost or 0}", *answered, late])


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
    twice = set(ledger.twice())
    slow = {message for message in twice if _came_slowly(ledger, message, by_bytes)}
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
        twice=[text for _, text in sorted(twice - slow)],
        disordered=[text for text in disordered if text not in late],
        late=len(late.intersection(disordered)),
        slow=len(slow),
    )


def _came_slowly(
    ledger: PickupLedger, message: Message, by_bytes: Mapping[tuple[str, bytes], Sequence[Kept]]
) -> bool:
    """Does the log say that each lease was over before the next one, for each time it was offered?

    Where the machine is short of time, a message may take most of its lease to its wallet.
    """
    sent = ledger.sent_to(*message)
    kept = by_bytes.get((sent.key, sent.command), []) if sent is not None else []
    offered = sum((offer.wallet, offer.text) == message for offer in ledger.offers)
    return len(kept) == 1 and kept[0].is_apart(ledger.lease_s, offered)


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
