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
from projections.views.span import Span

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
            name = identity_of(event, row.originator_id.bytes)  # type: ignore[union-attr]
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
                    event.payload.size_bytes,
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

    def volumes(self) -> Rows:
        bin_ms = self.span.bin_ms
        counts: Counter[tuple[int, str, str]] = Counter()
        for life in self.lives.values():
            for step, at_ms in (("queued", life.queued_ms), ("removed", life.removed_ms)):
                if at_ms is not None and self.holds(at_ms):
                    start = at_ms // bin_ms * bin_ms
                    counts[start, life.protocol, step] += 1
                    counts[start, life.protocol, f"{step}_bytes"] += life.size_bytes
        names = [n for s in ("queued", "removed") for n in (s, f"{s}_bytes")]
        return [
            {"bin_start": when(start), "protocol": protocol}
            | {name: counts[start, protocol, name] for name in names}
            | {"is_complete": start + bin_ms <= self.span.complete_ms}
            for start in self.span.edges_ms[:-1]
            for protocol in self.protocols
        ]

    def edges(self) -> list[int]:
        return [*self.span.edges_ms[:-1], self.span.until_ms]

    def queue_depth(self) -> Rows:
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
                    "at_time": when(at_ms),
                    "protocol": protocol,
                    "messages": len(waiting),
                    "bytes": sum(life.size_bytes for life in waiting),
                    "oldest_s": None if oldest_ms is None else (at_ms - oldest_ms) / 1000,
                    "is_complete": at_ms <= self.span.complete_ms,
                })  # fmt: skip
        return rows

    def service_level(self) -> Rows:
        bins: dict[tuple[int, str], list[Life]] = defaultdict(list)
        for life in self.lives.values():
            if self.holds(life.queued_ms):
                bins[life.queued_ms // self.span.bin_ms * self.span.bin_ms, life.protocol].append(
                    life
                )
        return [self._level(*key, lives) for key, lives in sorted(bins.items())]

    def _level(self, start_ms: int, protocol: str, lives: list[Life]) -> dict[str, Any]:
        span = self.span
        waits = sorted(
            max(0, life.removed_ms - life.queued_ms)
            for life in lives
            if life.removed_ms is not None and life.reason in {"acknowledged", "delivered"}
        )
        in_time = sum(ms <= span.within_ms for ms in waits)
        decided = sum(
            life.reason is not None or span.complete_ms - life.queued_ms > span.within_ms
            for life in lives
        )
        ranks = {"p50_s": 0.5, "p95_s": 0.95, "p99_s": 0.99}
        return {
            "bin_start": when(start_ms),
            "protocol": protocol,
            "messages": len(lives),
            "picked_up": len(waits),
            **{
                name: waits[math.ceil(rank * len(waits)) - 1] / 1000 if waits else None
                for name, rank in ranks.items()
            },
            "in_time": in_time,
            "decided": decided,
            "share_in_time": in_time / decided if decided else None,
            "is_complete": start_ms + span.bin_ms + span.within_ms <= span.complete_ms,
        }

    def waits_ms(self) -> dict[tuple[str, str], list[int]]:
        found: dict[tuple[str, str], list[int]] = defaultdict(list)
        for life in self.lives.values():
            first_ms = min(life.delivered_ms, default=None)
            for stage, at_ms in (("first delivery", first_ms), (life.reason, life.removed_ms)):
                if stage is not None and at_ms is not None and self.holds(at_ms):
                    found[stage, life.protocol].append(max(0, at_ms - life.queued_ms))
        return found

    def waits(self) -> Rows:
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

    def wait_classes(self) -> Rows:
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
                "at_time": when(at_ms),
                "what": what,
                "change": totals[at_ms, what] - totals[earlier_ms, what],
                "total": totals[at_ms, what],
                "is_complete": at_ms <= self.span.complete_ms,
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
        rows = [
            {"identity": did, "messages": messages[did], "bytes": sizes[did]} for did in messages
        ]
        return sorted(rows, key=lambda row: (-row["messages"], -row["bytes"], row["identity"]))

    def refusals_over_time(self) -> Rows:
        counts: Counter[tuple[int, str, str]] = Counter()
        for at_ms, refused, _, _, reason, _, number in self.refused:
            if self.holds(at_ms):
                length_ms = self.span.bin_ms
                counts[at_ms // length_ms * length_ms, refused, reason] += number
        return [
            {
                "bin_start": when(start),
                "refused": refused,
                "reason": reason,
                "refusals": number,
                "is_complete": start + self.span.bin_ms <= self.span.complete_ms,
            }
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

    def redelivered(self) -> Rows:
        lives = [(sum(map(self.holds, life.delivered_ms)), life) for life in self.lives.values()]
        often = [(number, life) for number, life in lives if number > 1]
        often.sort(key=lambda found: (-found[0], found[1].queued_ms, found[1].message_id))
        return [
            {
                "message_id": life.message_id,
                "identity": life.identity,
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
