"""What a socket remembers of the messages that its client is not known to have read."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from sys import getsizeof

import pytest

from actors.core.limits import IdentityLimits
from actors.host.clock import new_id
from http_edge.didcomm import unconfirmed as unconfirmed_handovers
from http_edge.didcomm.unconfirmed import (
    SHARED_BYTES,
    UNCONFIRMED_BYTES_MAX,
    Handover,
    Shared,
    Unconfirmed,
)
from http_edge.dids.document import DID_CHARS_MAX


def handover(did: str, *message_ids: str) -> Handover:
    return Handover(did, "did:example:speaker", b"c" * 16, [*message_ids])


def none_left() -> Shared:
    shared = Shared()
    shared.taken_bytes = SHARED_BYTES
    return shared


def test_a_pong_confirms_what_precedes_its_ping_and_nothing_later() -> None:
    unconfirmed = Unconfirmed(Shared())
    given = [handover("alice", "1"), handover("bob", "2", "3"), handover("alice", "4")]
    for number, each in enumerate(given, start=10):
        assert unconfirmed.add(each, number)
    assert unconfirmed.confirm(9) == []
    assert unconfirmed.confirm(11) == given[:2]
    assert unconfirmed.confirm(11) == []
    assert unconfirmed.confirm(99) == given[2:]


def test_a_batch_of_any_size_is_confirmed_if_no_other_waits() -> None:
    unconfirmed = Unconfirmed(none_left())
    batch = handover("alice", *map(str, range(UNCONFIRMED_BYTES_MAX)))
    for number in (1, 2):
        assert unconfirmed.add(batch, number)
        assert not unconfirmed.add(handover("alice", "more"), number)
        assert unconfirmed.confirm(number) == [batch]


def test_what_was_confirmed_makes_room_for_as_much() -> None:
    unconfirmed, number = Unconfirmed(none_left()), 0

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


def fill(unconfirmed: Unconfirmed, messages: int) -> int:
    """Fill what has room by handovers of so many messages each; return how many those are."""
    ids, count = [new_id() for _ in range(messages)], 0
    while unconfirmed.add(handover("alice", *ids), count):
        count += 1
    return count


@pytest.mark.thorough
@pytest.mark.parametrize("messages", [10, 100])
def test_a_socket_has_room_for_all_that_an_agent_may_hold_and_leaves_others_theirs(
    messages: int,
) -> None:
    shared = Shared()
    assert messages * fill(Unconfirmed(shared), messages) > IdentityLimits().leased_max
    assert messages * fill(Unconfirmed(shared), messages) > IdentityLimits().leased_max
    for _ in range(1_000):
        fill(Unconfirmed(shared), 100)
    assert 0 < shared.taken_bytes < SHARED_BYTES
    assert fill(Unconfirmed(shared), 100) >= 3


def test_one_pong_confirms_no_more_single_messages_than_a_socket_has_room_for_of_its_own() -> None:
    shared = Shared()
    assert fill(Unconfirmed(shared), 1) < 150
    assert shared.taken_bytes == 0


def test_what_all_sockets_share_has_room_again_once_one_confirms_or_ends() -> None:
    shared = Shared()
    one, other = Unconfirmed(shared), Unconfirmed(shared)
    count, taken_bytes = fill(one, 100), shared.taken_bytes
    fill(other, 100)
    other.clear()
    assert shared.taken_bytes == taken_bytes > 0
    assert other.confirm(count) == []
    assert len(one.confirm(count)) == count
    assert shared.taken_bytes == 0
    assert fill(other, 100) == count


FILE = unconfirmed_handovers.__file__
LONGEST = tuple("did:webvh:" + "Q" * 46 + ":" + each * (DID_CHARS_MAX - 8) for each in "ab")
USUAL = ("did:key:z6Mk" + "x" * 44, "did:peer:4zQm" + "y" * 44)


def remembered(names: Sequence[str], messages: int) -> int:
    """How many handovers have room, of so many messages each; and none takes more bytes."""
    did, speaker = names
    ids, found, number = [new_id() for _ in range(100)], Unconfirmed(none_left()), 300
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
    unconfirmed, own = Unconfirmed(Shared()), [new_id(), new_id()]
    given = [handover("alice", *ids) for ids in ([odd], own, [*own, odd], [odd, *own], [odd] * 2)]
    for each in given:
        assert unconfirmed.add(each, 1)
    assert unconfirmed.confirm(1) == given
