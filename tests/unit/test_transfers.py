"""Bytes on their way to or from clients are bounded: in all, by address, and by their pace."""

from __future__ import annotations

import math
from typing import Final

import pytest

from http_edge.listener.transfers import Cut, Pace, Transfer, Transfers

PACE: Final = Pace(grace_s=10, bytes_per_s_min=100, seconds_max=60)
SHARE_BYTES: Final = 100
ALL_BYTES: Final = 250


class Client:
    """A client, and why it was cut."""

    def __init__(self, transfers: Transfers, address: str = "a", since_s: float = 0) -> None:
        self.cuts: list[Cut] = []
        self.left_bytes = 0
        self.transfer = Transfer(address, since_s, self.cuts.append)
        self._transfers = transfers
        transfers.begin(self.transfer)

    def sends(self, size_bytes: int) -> None:
        self.transfer.moved_bytes += size_bytes
        self._transfers.grow(self.transfer, size_bytes)


@pytest.fixture
def transfers() -> Transfers:
    return Transfers(bytes_max=ALL_BYTES, bytes_per_address_max=SHARE_BYTES, pace=PACE)


def test_beyond_the_share_of_an_address_its_newest_is_cut_and_the_older_go_on(
    transfers: Transfers,
) -> None:
    first, second, other = Client(transfers), Client(transfers), Client(transfers, "b")
    first.sends(60)
    second.sends(40)
    other.sends(90)
    assert first.cuts == second.cuts == other.cuts == []
    first.sends(1)
    assert (first.cuts, second.cuts, other.cuts) == ([], [Cut.BYTES_PER_ADDRESS], [])
    assert transfers.size_bytes == 61 + 90


def test_one_answer_alone_may_be_larger_than_a_share(transfers: Transfers) -> None:
    alone = Client(transfers)
    alone.sends(SHARE_BYTES + 1)
    assert alone.cuts == []
    beside = Client(transfers)
    beside.sends(1)
    assert (alone.cuts, beside.cuts) == ([], [Cut.BYTES_PER_ADDRESS])
    assert transfers.settle(alone.transfer)
    beside = Client(transfers)
    beside.sends(1)
    assert beside.cuts == [Cut.BYTES_PER_ADDRESS]


def test_beyond_what_all_may_hold_the_address_that_holds_most_loses_its_newest(
    transfers: Transfers,
) -> None:
    small = Client(transfers, "small")
    small.sends(10)
    many = [Client(transfers, "many") for _ in range(2)]
    for client in many:
        client.sends(45)
    rest = [Client(transfers, f"other {number}") for number in range(3)]
    for client in rest:
        client.sends(60)
    assert small.cuts == many[0].cuts == []
    assert many[1].cuts == [Cut.BYTES]
    assert all(client.cuts == [] for client in rest)
    assert transfers.size_bytes <= ALL_BYTES


def test_a_client_that_is_slower_than_the_pace_is_cut_and_no_other(transfers: Transfers) -> None:
    stuck, slow, quick, late = (Client(transfers, name) for name in "abcd")
    slow.sends(50)
    quick.transfer.moved_bytes = 100 * 20
    late.transfer.moved_bytes = 1_000_000
    transfers.cut_slow(10)
    assert [client.cuts for client in (stuck, slow, quick, late)] == [[], [], [], []]
    transfers.cut_slow(10.1)
    assert (stuck.cuts, slow.cuts) == ([Cut.SLOW], [])
    transfers.cut_slow(30)
    assert (slow.cuts, quick.cuts) == ([Cut.SLOW], [])
    transfers.cut_slow(60)
    assert (quick.cuts, late.cuts) == ([Cut.SLOW], [])
    transfers.cut_slow(60.1)
    assert late.cuts == [Cut.SLOW]
    assert transfers.size_bytes == 0


def test_what_was_read_is_progress_and_what_is_added_is_not(transfers: Transfers) -> None:
    left = [90]
    cuts: list[Cut] = []
    transfer = Transfer("a", 0, cuts.append, lambda: left[0])
    transfers.begin(transfer, 90)
    left[0] = 40
    transfers.cut_slow(1)
    left[0] = 80
    transfers.cut_slow(2)
    assert (transfer.moved_bytes, transfers.size_bytes) == (50, 80)


def test_a_transfer_that_ended_or_was_cut_holds_nothing(transfers: Transfers) -> None:
    client = Client(transfers)
    client.sends(50)
    transfers.end(client.transfer)
    transfers.end(client.transfer)
    client.sends(50)
    assert transfers.size_bytes == 0
    transfers.cut_slow(math.inf)
    assert client.cuts == []
    for _ in range(2):  # frames of one socket come and go
        transfers.begin(client.transfer)
        client.sends(20)
        transfers.end(client.transfer)
    assert transfers.size_bytes == 0


def test_what_came_at_once_is_held_and_makes_room_for_itself(transfers: Transfers) -> None:
    slow = Client(transfers, "slow")
    slow.sends(90)
    assert transfers.take("a", SHARE_BYTES + 1) is Cut.BYTES_PER_ADDRESS
    assert transfers.take("a", SHARE_BYTES) is None
    assert transfers.take("a", 1) is Cut.BYTES_PER_ADDRESS
    assert transfers.take("b", 61) is None
    assert (slow.cuts, transfers.size_bytes) == ([Cut.BYTES], SHARE_BYTES + 61)
    assert transfers.take("c", 90) is Cut.BYTES
    transfers.release("a", SHARE_BYTES)
    assert transfers.take("c", 90) is None


def test_a_transfer_that_is_whole_is_held_and_not_cut(transfers: Transfers) -> None:
    client = Client(transfers)
    client.sends(50)
    assert transfers.settle(client.transfer)
    transfers.cut_slow(math.inf)
    assert (client.cuts, transfers.size_bytes) == ([], 50)
    transfers.release("a", 50)
    assert transfers.size_bytes == 0


def test_what_an_address_releases_is_forgotten_and_nothing_else(transfers: Transfers) -> None:
    waiting = Client(transfers)
    for size_bytes in (60, 40):
        assert transfers.take("a", size_bytes) is None
    transfers.release("a", 40)
    assert transfers.take("a", 41) is Cut.BYTES_PER_ADDRESS
    transfers.release("a", 60)
    waiting.sends(60)
    assert transfers.size_bytes == 60
    transfers.end(waiting.transfer)
    assert transfers.take("a", 60) is None
    assert transfers.take("a", 40) is None
    transfers.release("a", 40)
    assert transfers.take("a", 41) is Cut.BYTES_PER_ADDRESS
    transfers.release("a", 60)
    assert not transfers._shares


def test_what_would_be_cut_on_its_way_is_known_before_it_comes(transfers: Transfers) -> None:
    assert transfers.no_room_for("a", SHARE_BYTES + 1) is None  # one alone may be larger
    Client(transfers).sends(60)
    assert transfers.no_room_for("a", 40) is None
    assert transfers.no_room_for("a", 41) is Cut.BYTES_PER_ADDRESS
    Client(transfers, "b").sends(90)
    assert transfers.no_room_for("d", ALL_BYTES - 60 - 90) is None
    Client(transfers, "c").sends(100)
    assert transfers.no_room_for("d", 100) is None  # another's newest would be
    assert transfers.no_room_for("b", 1) is None
    assert transfers.no_room_for("a", 41) is Cut.BYTES_PER_ADDRESS
    assert transfers.no_room_for("d", 101) is Cut.BYTES
