"""Refusals are counted exactly, in bounded memory, and held against no other identity."""

from __future__ import annotations

from collections import Counter
from typing import Final, NamedTuple

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from actors.core.commands import CountRefusals
from eventstore.log.codec import encode
from eventstore.log.events import RefusalsCounted, RefusedCommands
from eventstore.log.streams import identity_stream
from http_edge.settings.settings import Audit
from http_edge.telemetry.refusal_counts import OTHER, PROTOCOLS, RefusalCounts
from tests.unit.actors.given import NOW_MS, HandClock


class Refused(NamedTuple):
    """One refusal."""

    protocol: str
    command: str
    reason: str
    sender_did: str


EDGE: Final = "edge-0"
NAMES: Final = ["", *(f"COMMAND_{number}" for number in range(9))]
REASONS: Final = [OTHER, *(f"REASON_{number}" for number in range(9))]
SENDERS: Final = st.one_of(
    st.just(""), st.integers(0, 30).map("did:x:{}".format), st.text("aö€📱", max_size=60)
)
REFUSALS: Final = st.lists(
    st.builds(
        Refused,
        st.sampled_from(PROTOCOLS),
        st.sampled_from(NAMES),
        st.sampled_from(REASONS),
        SENDERS,
    ),
    max_size=300,
)


def counts_of(
    refusals: list[Refused], entries_max: int = 64, senders_bytes_max: int = 8_192
) -> RefusalCounts:
    """Counts of these refusals, a millisecond after one another."""
    clock = HandClock()
    counts = RefusalCounts(
        entries_max=entries_max, senders_bytes_max=senders_bytes_max, clock=clock
    )
    for refused in refusals:
        clock.now_ms += 1
        counts.count(*refused)
    return counts


def taken(counts: RefusalCounts) -> list[RefusedCommands]:
    """What was counted, nothing if nothing was."""
    counted = counts.take(EDGE)
    return [] if counted is None else counted.refusals


@given(REFUSALS, st.integers(16, 40), st.integers(0, 300))
def test_whatever_is_refused_the_sum_is_exact_and_the_entries_are_bounded(
    refusals: list[Refused], entries_max: int, senders_bytes_max: int
) -> None:
    counts = counts_of(refusals, entries_max, senders_bytes_max)
    assert counts.total == len(refusals)
    assert len(counts) <= entries_max
    entries = taken(counts)
    by_protocol: Counter[str] = Counter()
    for entry in entries:
        by_protocol[entry.protocol] += entry.count
    assert by_protocol == Counter(refused.protocol for refused in refusals)
    assert sum(len(entry.sender_did.encode()) for entry in entries) <= senders_bytes_max
    assert taken(counts) == []


@given(REFUSALS, st.integers(16, 40), st.integers(0, 300))
def test_no_identity_is_held_responsible_for_more_than_what_was_refused_to_it(
    refusals: list[Refused], entries_max: int, senders_bytes_max: int
) -> None:
    exact = Counter(refusals)
    by_reason = Counter((refused.protocol, refused.reason) for refused in refusals)
    for entry in taken(counts_of(refusals, entries_max, senders_bytes_max)):
        key = Refused(entry.protocol, entry.command, entry.reason, entry.sender_did)
        if entry.sender_did:
            assert entry.count <= exact[key]
        if entry.reason != OTHER:
            assert entry.count <= by_reason[entry.protocol, entry.reason]
        assert NOW_MS < entry.first_ms <= entry.last_ms <= NOW_MS + len(refusals)


@given(REFUSALS)
def test_where_there_is_room_nothing_is_put_together(refusals: list[Refused]) -> None:
    entries = taken(counts_of(refusals, entries_max=4_096, senders_bytes_max=100_000))
    assert {
        Refused(e.protocol, e.command, e.reason, e.sender_did): e.count for e in entries
    } == Counter(refusals)


def test_what_finds_no_room_loses_its_sender_then_its_command_then_its_reason() -> None:
    many = [Refused("decentrl", "QUERY", "REPLAY", f"did:x:{number}") for number in range(20)]
    named = taken(counts_of(many, entries_max=16))
    assert [entry.count for entry in named if entry.sender_did] == [1] * 8
    assert [(e.command, e.reason, e.count) for e in named if not e.sender_did] == [
        ("QUERY", "REPLAY", 12)
    ]
    commands = [Refused("decentrl", f"C{number}", "REPLAY", "") for number in range(20)]
    by_command = taken(counts_of(commands, entries_max=16))
    assert [entry.count for entry in by_command if entry.command] == [1] * 4
    assert [(e.reason, e.count) for e in by_command if not e.command] == [("REPLAY", 16)]
    reasons = [Refused("didcomm", "", f"r{number}", "") for number in range(20)]
    by_reason = taken(counts_of(reasons, entries_max=16))
    assert [(e.reason, e.count) for e in by_reason] == [("r0", 1), ("r1", 1), (OTHER, 18)]


def test_filling_one_kind_of_room_hides_nothing_of_the_others() -> None:
    flood = [
        *(Refused("decentrl", "QUERY", "REPLAY", f"did:x:{number}") for number in range(999)),
        *(Refused("decentrl", f"C{number}", "INVALID", "") for number in range(999)),
    ]
    late = Refused("didcomm", "", "not-an-envelope", "")
    assert RefusedCommands(*late, 1, NOW_MS + 1_999, NOW_MS + 1_999) in taken(
        counts_of([*flood, late])
    )


def test_a_sender_that_is_longer_than_the_room_for_senders_is_counted_without_name() -> None:
    long = Refused("decentrl", "QUERY", "REPLAY", "did:x:" + "ü" * 5_000)
    short = long._replace(sender_did="did:x:1")
    entries = taken(counts_of([long, short, long]))
    assert [(entry.sender_did, entry.count) for entry in entries] == [("", 2), ("did:x:1", 1)]


def test_counts_say_of_which_time_they_are() -> None:
    clock = HandClock()
    counts = RefusalCounts(entries_max=16, senders_bytes_max=100, clock=clock)
    assert counts.take(EDGE) is None
    clock.now_ms += 10
    counts.count("decentrl", "QUERY", "REPLAY")
    clock.now_ms -= 3  # set back
    counts.count("decentrl", "QUERY", "REPLAY")
    clock.now_ms = NOW_MS + 20
    entry = RefusedCommands("decentrl", "QUERY", "REPLAY", "", 2, NOW_MS + 7, NOW_MS + 10)
    assert counts.take(EDGE) == CountRefusals(EDGE, NOW_MS, NOW_MS + 20, [entry])
    counts.count("decentrl", "QUERY", "REPLAY")
    counted = counts.take(EDGE)
    assert counted is not None
    assert counted.since_ms == NOW_MS + 20
    assert counts.total == 3


def test_an_attacker_cannot_make_an_edge_write_more_than_30_mb_a_day() -> None:
    audit = Audit()
    counts = RefusalCounts(
        entries_max=audit.refusals_entries_max,
        senders_bytes_max=audit.refusals_senders_bytes_max,
        clock=HandClock(),
    )
    longest = "ACKNOWLEDGE_PENDING_COMMUNICATION_CONTRACT_REQUESTS"
    for number in range(1_000):
        for protocol in PROTOCOLS:
            counts.count(protocol, longest, f"{number:064}", f"did:x:{number:0250}")
            counts.count(protocol, f"{number:064}", f"{number:064}")
            counts.count(protocol, "", f"{number:064}")
    counted = counts.take(EDGE)
    assert counted is not None
    assert len(counted.refusals) == audit.refusals_entries_max
    event = RefusalsCounted(
        at_ms=NOW_MS,
        command=bytes(16),
        edge="edge-255",
        since_ms=counted.since_ms,
        until_ms=counted.until_ms,
        refusals=[msgspec.structs.replace(e, count=2**40) for e in counted.refusals],
    )
    row_bytes = len(encode(identity_stream("edge:edge-255"), 1, event).state)
    assert row_bytes * 86_400 / audit.refusals_period_s < 30_000_000
