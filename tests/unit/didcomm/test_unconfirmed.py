"""What a socket remembers of the messages that its client is not known to have read."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from sys import getsizeof

import pytest

from actors.host.clock import new_id
from http_edge.didcomm import unconfirmed as unconfirmed_handovers
from http_edge.didcomm.unconfirmed import UNCONFIRMED_BYTES_MAX, Handover, Unconfirmed
from http_edge.dids.document import DID_CHARS_MAX


def handover(did: str, *message_ids: str) -> Handover:
    return Handover(did, "did:example:speaker", b"c" * 16, [*message_ids])


def test_a_pong_confirms_what_precedes_its_ping_and_nothing_later() -> None:
    unconfirmed = Unconfirmed()
    given = [handover("alice", "1"), handover("bob", "2", "3"), handover("alice", "4")]
    for number, each in enumerate(given, start=10):
        assert unconfirmed.add(each, number)
    assert unconfirmed.confirm(9) == []
    assert unconfirmed.confirm(11) == given[:2]
    assert unconfirmed.confirm(11) == []
    assert unconfirmed.confirm(99) == given[2:]


def test_a_batch_of_any_size_is_confirmed_if_no_other_waits() -> None:
    unconfirmed = Unconfirmed()
    batch = handover("alice", *map(str, range(UNCONFIRMED_BYTES_MAX)))
    for number in (1, 2):
        assert unconfirmed.add(batch, number)
        assert not unconfirmed.add(handover("alice", "more"), number)
        assert unconfirmed.confirm(number) == [batch]


def test_what_was_confirmed_makes_room_for_as_much() -> None:
    unconfirmed, number = Unconfirmed(), 0

    def fill() -> int:
        nonlocal number
        count = 0
        while unconfirmed.add(handover(f"agent {count % 7}", f"{count:022}"), number + 1):
            number, count = number + 1, count + 1
        return count

    count = fill()
    for _ in range(3):
        assert len(unconfirmed.confirm(number)) == count
        assert fill() == count


FILE = unconfirmed_handovers.__file__
LONGEST = tuple("did:webvh:" + "Q" * 46 + ":" + each * (DID_CHARS_MAX - 8) for each in "ab")
USUAL = ("did:key:z6Mk" + "x" * 44, "did:peer:4zQm" + "y" * 44)


def remembered(names: Sequence[str], messages: int) -> int:
    """How many handovers have room, of so many messages each; and none takes more bytes."""
    did, speaker = names
    ids, found, number = [new_id() for _ in range(100)], Unconfirmed(), 300
    tracemalloc.start()
    try:
        while found.add(Handover(did, speaker, b"c" * 16, ids[:messages]), number):
            number += 1
        snapshot = tracemalloc.take_snapshot()
    finally:
        tracemalloc.stop()
    own = snapshot.filter_traces([tracemalloc.Filter(inclusive=True, filename_pattern=FILE)])
    held_bytes = sum(map(getsizeof, names)) + sum(trace.size for trace in own.traces)
    assert held_bytes <= UNCONFIRMED_BYTES_MAX
    return number - 300


@pytest.mark.parametrize(("names", "singles", "batches"), [(USUAL, 120, 3), (LONGEST, 75, 2)])
def test_what_a_client_may_request_before_it_reads_has_room(
    names: Sequence[str], singles: int, batches: int
) -> None:
    assert remembered(names, 1) >= singles
    assert remembered(names, 100) >= batches


@pytest.mark.parametrize("odd", ["1", "", "-" * 22, "A" * 21 + "B", "\xe9" * 22, "A" * 44, "===="])
def test_ids_of_any_form_come_back_as_they_are(odd: str) -> None:
    unconfirmed, own = Unconfirmed(), [new_id(), new_id()]
    given = [handover("alice", *ids) for ids in ([odd], own, [*own, odd], [odd, *own], [odd] * 2)]
    for each in given:
        assert unconfirmed.add(each, 1)
    assert unconfirmed.confirm(1) == given
