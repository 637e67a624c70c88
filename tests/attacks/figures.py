"""What was measured of an attack, and which of its bounds that breaks. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Self

import msgspec

from http_edge.clients.load.closed_loop import percentile
from tests.attacks.attack import Attack, Bounds
from tests.attacks.honest import Felt
from tests.attacks.target import AttackResult

_NS_PER_MS: Final = 1_000_000
_MIB: Final = 1_048_576
_MB: Final = 1_000_000
_DAY_S: Final = 86_400
_FAULTS: Final = ("500", "501", "502", "504")
"""Answers that no request may get, however malformed; 503 says to come back."""


class Latency(msgspec.Struct, frozen=True):
    """Half were as fast as ``p50_ms``, 99 of 100 as ``p99_ms``; None of both: there were none."""

    count: int = 0
    p50_ms: float | None = None
    p99_ms: float | None = None

    @classmethod
    def of(cls, latencies_ns: Iterable[int]) -> Self:
        """Of these latencies."""
        ordered = sorted(latencies_ns)
        if not ordered:
            return cls()
        p50, p99 = (percentile(ordered, percent) / _NS_PER_MS for percent in (50, 99))
        return cls(len(ordered), p50, p99)


class Phase(msgspec.Struct, frozen=True):
    """What the honest pair felt in a phase; ``refused`` is by how, what never arrived included."""

    accepted: Latency
    delivered: Latency
    refused: Mapping[str, int]

    @classmethod
    def of(cls, felt: Felt) -> Self:
        """Of what was felt."""
        lost = {"not delivered": felt.missing} if felt.missing else {}
        return cls(
            Latency.of(felt.accepted_ns), Latency.of(felt.delivered_ns), {**felt.refused, **lost}
        )


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One attack as it was measured; bytes that are not known are 0.

    Attributes:
        name: Of the attack.
        rate: How loud it is meant to be.
        sent_per_s: How often it was done.
        sent_bytes: Bytes that it sent, where it counts them.
        answers: How it was answered, by status and code.
        alone: The honest pair before.
        beside: The honest pair beside it.
        alone_ns: The latencies before, of accepting and of delivery.
        edge_mib: The peak of the edge.
        host_mib: The peak of the host.
        log_bytes: What it added to the log.
        log_mb_a_day: The same, if it went on for a day.
        disk_p99_ms: What the disk took in the slower of the two phases.
    """

    name: str
    rate: str
    sent_per_s: float
    sent_bytes: int
    answers: Mapping[str, int]
    alone: Phase
    beside: Phase
    edge_mib: float
    host_mib: float
    log_bytes: int
    log_mb_a_day: float
    disk_p99_ms: float
    alone_ns: tuple[Sequence[int], Sequence[int]]

    @classmethod
    def of(  # noqa: PLR0913 - each is measured by itself
        cls,
        attack: Attack,
        alone: Felt,
        beside: Felt,
        did: AttackResult,
        *,
        edge_bytes: int,
        host_bytes: int,
        log_bytes: int,
        disk_p99_ms: float,
        seconds: float,
    ) -> Self:
        """Of what was measured; the log grew by ``log_bytes`` in ``seconds``."""
        return cls(
            name=attack.name,
            rate=attack.rate,
            sent_per_s=did.sent / did.seconds,
            sent_bytes=did.sent_bytes,
            answers=did.answers,
            alone=Phase.of(alone),
            beside=Phase.of(beside),
            edge_mib=edge_bytes / _MIB,
            host_mib=host_bytes / _MIB,
            log_bytes=log_bytes,
            log_mb_a_day=log_bytes / seconds * _DAY_S / _MB,
            disk_p99_ms=disk_p99_ms,
            alone_ns=(list(alone.accepted_ns), list(alone.delivered_ns)),
        )


class Quiet(msgspec.Struct, frozen=True):
    """The honest pair alone, over all quiet phases of a run with the same pair."""

    accepted: Latency
    delivered: Latency

    @classmethod
    def of(cls, rows: Iterable[Row]) -> Self:
        """Of the rows of a run."""
        phases = [row.alone_ns for row in rows]
        accepted, delivered = (
            Latency.of(ns for phase in phases for ns in phase[index]) for index in (0, 1)
        )
        return cls(accepted, delivered)


def times(beside: Latency, alone: Latency) -> float | None:
    """How many times slower the p99 is; None where one of the two has none."""
    if beside.p99_ms is None or not alone.p99_ms:
        return None
    return beside.p99_ms / alone.p99_ms


def broken(row: Row, quiet: Quiet, bounds: Bounds) -> list[str]:
    """The bounds that a row breaks, in words; empty when it keeps all of them."""
    found = [f"honest: {count} {how}" for how, count in row.beside.refused.items()]
    found += [f"answered {answer}" for answer in row.answers if answer.partition(" ")[0] in _FAULTS]
    for what, beside, alone in (
        ("accept", row.beside.accepted, quiet.accepted),
        ("deliver", row.beside.delivered, quiet.delivered),
    ):
        found += _above(f"{what} p99 times", times(beside, alone), bounds.p99_times_max)
    found += _above("edge MiB", row.edge_mib, bounds.memory_mib_max)
    found += _above("host MiB", row.host_mib, bounds.memory_mib_max)
    found += _above("log MB/day", row.log_mb_a_day, bounds.log_mb_a_day_max)
    ratio = row.log_bytes / row.sent_bytes if row.sent_bytes else None
    return found + _above("stored by sent", ratio, bounds.stored_per_sent_max)


def _above(what: str, figure: float | None, most: float | None) -> list[str]:
    if figure is None or most is None or figure <= most:
        return []
    return [f"{what} {figure:,.1f} > {most:g}"]
