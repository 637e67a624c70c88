"""The numbers of a report, counted one event after the other in plain Python."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from eventstore.log import events as e
from eventstore.log.codec import decode
from eventstore.log.event_log import EventLog
from eventstore.parquet.columns import identity_of
from projections.report.span import Bins, Span

Rows = list[dict[str, Any]]
TOP: Final = 20


@dataclass
class Life:
    """What happened to one message."""

    message_id: str
    identity: str
    protocol: str
    sender_did: str
    size_bytes: int
    queued_ms: int
    delivered_ms: list[int] = field(default_factory=list)
    removed_ms: int | None = None
    reason: str | None = None

    def waits(self, at_ms: int) -> bool:
        return self.queued_ms < at_ms and (self.removed_ms is None or self.removed_ms >= at_ms)


def when(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)


class Counted:
    """A log up to the end of a span, and the numbers over the span."""

    def __init__(self, log: EventLog, span: Span) -> None:
        self.span = span
        self.lives: dict[Any, Life] = {}
        self.refused: list[tuple[int, str, str, str, str, str, int]] = []
        self.changes: list[tuple[int, str, int]] = []
        self._names: dict[Any, str] = {}
        self._seen: set[tuple[Any, str]] = set()
        self._claimed: set[Any] = set()
        for row in log.read_log(limit=1_000_000):
            event = decode(row.topic, row.state)
            name = identity_of(event)
            if name is not None:
                self._names.setdefault(row.originator_id, name)
            if event.at_ms < span.until_ms:
                self._add(row.originator_id, event)

    def _add(self, stream: Any, event: e.Event) -> None:
        at_ms = event.at_ms
        match event:
            case e.MessageQueued():
                self.lives[stream, event.message_id] = Life(
                    event.message_id,
                    self._names[stream],
                    event.protocol,
                    event.sender_did,
                    len(event.payload),
                    at_ms,
                )
            case e.MessagesDelivered():
                for life in self._lives(stream, event.message_ids):
                    life.delivered_ms.append(at_ms)
            case e.MessagesRemoved():
                for life in self._lives(stream, event.message_ids):
                    life.removed_ms, life.reason = at_ms, event.reason
            case e.QueueRefused():
                self.refused.append((at_ms, "queue", "", "", event.reason, "", 1))
            case e.RefusalsCounted():
                for r in event.refusals:
                    said = (r.protocol, r.command, r.reason, r.sender_did, r.count)
                    self.refused.append((at_ms, "command", *said))
            case _:
                self._grow(stream, event)

    def _lives(self, stream: Any, message_ids: Iterable[str]) -> list[Life]:
        """Of the messages that were queued before the end: the clock may have gone back since."""
        known = [self.lives.get((stream, message_id)) for message_id in message_ids]
        return [life for life in known if life is not None]

    def _grow(self, stream: Any, event: e.Event) -> None:
        match event:
            case e.IdentityRegistered() | e.ConnectionEstablished():
                is_first = isinstance(event, e.IdentityRegistered)
                what = "registrations" if is_first else "connections"
                if (stream, what) not in self._seen:
                    self._seen.add((stream, what))
                    self.changes.append((event.at_ms, what, 1))
            case e.ContractStored():
                self.changes.append((event.at_ms, "contracts", 1))
            case e.KeyClaimed():
                if stream not in self._claimed:
                    self._claimed.add(stream)
                    self.changes.append((event.at_ms, "keys", 1))
            case e.KeyReleased():
                self._claimed.remove(stream)
                self.changes.append((event.at_ms, "keys", -1))
            case _:
                pass

    def times_ms(self) -> list[int]:
        """When something happened to a message, in order."""
        lives = self.lives.values()
        times = [at for life in lives for at in (life.queued_ms, life.removed_ms) if at]
        return sorted([*times, *(at for life in lives for at in life.delivered_ms)])

    def holds(self, at_ms: int | None) -> bool:
        return at_ms is not None and self.span.since_ms <= at_ms < self.span.until_ms

    @property
    def protocols(self) -> list[str]:
        return sorted({
            life.protocol
            for life in self.lives.values()
            if life.removed_ms is None
            or any(
                at_ms >= self.span.since_ms
                for at_ms in (life.queued_ms, life.removed_ms, *life.delivered_ms)
            )
        })  # fmt: skip

    def volume(self) -> Rows:
        bins = self.span.volume
        counts: Counter[tuple[int, str, str]] = Counter()
        for life in self.lives.values():
            happened = [("queued", life.queued_ms), ("removed", life.removed_ms)]
            happened += [("delivered", at_ms) for at_ms in life.delivered_ms]
            for step, at_ms in happened:
                if at_ms is not None and self.holds(at_ms):
                    start = at_ms // bins.length_ms * bins.length_ms
                    counts[start, life.protocol, step] += 1
                    counts[start, life.protocol, f"{step}_bytes"] += life.size_bytes
        names = [n for s in ("queued", "delivered", "removed") for n in (s, f"{s}_bytes")]
        return [
            {"bin_start": when(start), "protocol": protocol}
            | {name: counts[start, protocol, name] for name in names}
            for start in range(bins.origin_ms, self.span.until_ms, bins.length_ms)
            for protocol in self.protocols
        ]

    def edges(self) -> list[int]:
        bins: Bins = self.span.standing
        first = self.span.since_ms // bins.length_ms * bins.length_ms + bins.length_ms
        between = range(first, self.span.until_ms, bins.length_ms)
        return [self.span.since_ms, *between, self.span.until_ms]

    def queue(self) -> Rows:
        rows: Rows = []
        for at_ms in self.edges():
            for protocol in self.protocols:
                waiting = [
                    life
                    for life in self.lives.values()
                    if life.protocol == protocol and life.waits(at_ms)
                ]
                oldest_ms = min((life.queued_ms for life in waiting), default=None)
                rows.append({
                    "at": when(at_ms),
                    "protocol": protocol,
                    "messages": len(waiting),
                    "bytes": sum(life.size_bytes for life in waiting),
                    "oldest_s": None if oldest_ms is None else (at_ms - oldest_ms) / 1000,
                })  # fmt: skip
        return rows

    def waits_ms(self) -> dict[tuple[str, str], list[int]]:
        found: dict[tuple[str, str], list[int]] = defaultdict(list)
        for life in self.lives.values():
            first_ms = min(life.delivered_ms, default=None)
            for stage, at_ms in (("first delivery", first_ms), (life.reason, life.removed_ms)):
                if stage is not None and at_ms is not None and self.holds(at_ms):
                    found[stage, life.protocol].append(max(0, at_ms - life.queued_ms))
        return found

    def latency(self) -> Rows:
        rows: Rows = []
        for (stage, protocol), waits in sorted(self.waits_ms().items()):
            waits.sort()
            ranks = {"p50_s": 0.5, "p90_s": 0.9, "p99_s": 0.99}
            rows.append(
                {"stage": stage, "protocol": protocol, "messages": len(waits)}
                | {n: waits[math.ceil(r * len(waits)) - 1] / 1000 for n, r in ranks.items()}
                | {"mean_s": sum(waits) / len(waits) / 1000, "max_s": waits[-1] / 1000}
            )
        return rows

    def latency_histogram(self) -> Rows:
        counts: Counter[tuple[str, str, int]] = Counter()
        for (stage, protocol), waits in self.waits_ms().items():
            for ms in waits:
                counts[stage, protocol, math.floor(math.log10(ms) * 5) if ms else -1] += 1
        return [
            {
                "stage": stage,
                "protocol": protocol,
                "from_s": 0.0 if place < 0 else 10 ** (place / 5) / 1000,
                "to_s": 10 ** ((place + 1) / 5) / 1000,
                "messages": number,
            }
            for (stage, protocol, place), number in sorted(counts.items())
        ]

    def growth(self) -> Rows:
        kinds = ["connections", "contracts", "keys", "registrations"]
        totals = {
            (at_ms, what): sum(n for t, w, n in self.changes if w == what and t < at_ms)
            for at_ms in self.edges()
            for what in kinds
        }
        before = [self.edges()[0], *self.edges()]
        return [
            {
                "at": when(at_ms),
                "what": what,
                "change": totals[at_ms, what] - totals[earlier_ms, what],
                "total": totals[at_ms, what],
            }
            for earlier_ms, at_ms in zip(before, self.edges(), strict=False)
            for what in kinds
        ]

    def largest(self, name: str) -> Rows:
        messages: Counter[str] = Counter()
        sizes: Counter[str] = Counter()
        for life in self.lives.values():
            if self.holds(life.queued_ms) and getattr(life, name):
                messages[getattr(life, name)] += 1
                sizes[getattr(life, name)] += life.size_bytes
        assert len(messages) <= TOP
        rows = [{"did": did, "messages": messages[did], "bytes": sizes[did]} for did in messages]
        return sorted(rows, key=lambda row: (-row["messages"], -row["bytes"], row["did"]))

    def refusals(self) -> Rows:
        counts: Counter[tuple[int, str, str]] = Counter()
        for at_ms, refused, _, _, reason, _, number in self.refused:
            if self.holds(at_ms):
                length_ms = self.span.volume.length_ms
                counts[at_ms // length_ms * length_ms, refused, reason] += number
        return [
            {"bin_start": when(start), "refused": refused, "reason": reason, "count": number}
            for (start, refused, reason), number in sorted(counts.items())
        ]

    def redeliveries(self) -> Rows:
        classes = [(n, n) for n in range(1, 6)] + [(6, 10), (11, 20), (21, 50), (51, 100)]
        counts: Counter[tuple[int, int | None, str]] = Counter()
        for life in self.lives.values():
            if number := sum(map(self.holds, life.delivered_ms)):
                found = [(a, b) for a, b in classes if a <= number <= b]
                first, last = found[0] if found else (101, None)
                counts[first, last, life.protocol] += 1
        return [
            {"deliveries_from": a, "deliveries_to": b, "protocol": protocol, "messages": number}
            for (a, b, protocol), number in sorted(counts.items(), key=lambda item: item[0][::2])
        ]

    def redelivered_most(self) -> Rows:
        lives = [(sum(map(self.holds, life.delivered_ms)), life) for life in self.lives.values()]
        often = [(number, life) for number, life in lives if number > 1]
        often.sort(key=lambda found: (-found[0], found[1].queued_ms, found[1].message_id))
        return [
            {
                "message_id": life.message_id,
                "recipient_did": life.identity,
                "protocol": life.protocol,
                "deliveries": number,
                "size_bytes": life.size_bytes,
                "queued_at": when(life.queued_ms),
                "last_delivered_at": when(max(life.delivered_ms)),
                "removed_at": None if life.removed_ms is None else when(life.removed_ms),
                "reason": life.reason,
            }
            for number, life in often[:TOP]
        ]
