"""Turns: each sender gets its share of what is taken, in its own order, and not as they came."""

from __future__ import annotations

from collections import Counter
from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.core.turns import GroupedTurns, Turns

SENDERS = st.sampled_from("abcd")
COSTS = st.sampled_from([1.0, 3.0, 40.0])
PUTS = st.tuples(st.sampled_from("xyz"), SENDERS, COSTS)
STEPS = st.lists(
    st.one_of(st.tuples(SENDERS, COSTS), st.sampled_from([0.0, 1.0, 10.0, 100.0])), max_size=80
)


def test_one_that_comes_late_is_not_behind_all_that_another_has_sent() -> None:
    turns: Turns[str] = Turns()
    for number in range(100):
        turns.put("flood", 10, f"flood {number}")
    assert turns.take(20) == ["flood 0", "flood 1"]
    turns.put("late", 10, "late")
    assert "late" in turns.take(20)


def test_work_counts_and_not_the_number_of_commands() -> None:
    turns: Turns[str] = Turns()
    for _ in range(50):
        turns.put("large", 10, "large")
        for _ in range(10):
            turns.put("small", 1, "small")
    taken = Counter(item for _ in range(20) for item in turns.take(10))
    assert 8 <= taken["large"] <= 12
    assert 80 <= taken["small"] <= 120


def test_what_costs_more_than_may_be_taken_is_taken_alone() -> None:
    turns: Turns[str] = Turns()
    turns.put("a", 900, "large")
    turns.put("b", 900, "other")
    assert [turns.take(400), turns.take(400), turns.take(400)] == [["large"], ["other"], []]


class Sender:
    """A sender that counts how often its place in a table is computed."""

    looked_up = 0

    def __hash__(self) -> int:
        Sender.looked_up += 1
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other


def test_an_item_costs_the_same_however_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sender, "looked_up", 0)
    turns: Turns[int] = Turns()
    senders = [Sender() for _ in range(1_000)]
    for number, sender in enumerate(senders):
        turns.put(sender, 17, number)
    assert [turns.take(0) for _ in senders] == [[number] for number in range(1_000)]
    assert Sender.looked_up < 8 * len(senders)


def test_senders_that_come_and_go_are_not_remembered_while_another_waits() -> None:
    turns: Turns[int] = Turns()
    for _ in range(2):
        turns.put("always", 1, -1)
    for number in range(2_000):
        turns.put("always", 1, number)
        turns.put(f"once {number}", 1, number)
        for _ in range(2):
            assert len(turns.take(1)) == 1
        assert len(turns) == 2  # with none left, all would be forgotten at once
    assert len(turns._ends) < 20


@given(STEPS)
def test_everything_is_taken_once_and_that_of_one_sender_in_its_order(
    steps: list[tuple[str, float] | float],
) -> None:
    turns: Turns[tuple[str, int]] = Turns()
    put: list[tuple[str, int]] = []
    taken: list[tuple[str, int]] = []
    for number, step in enumerate(steps):
        if isinstance(step, tuple):
            put.append((step[0], number))
            turns.put(*step, put[-1])
        else:
            taken += turns.take(step)
        assert len(turns) == len(put) - len(taken)
    while turns:
        taken += turns.take(1)
    assert sorted(taken) == sorted(put)
    for _, mine in groupby(sorted(taken, key=lambda item: item[0]), key=lambda item: item[0]):
        numbers = [number for _, number in mine]
        assert numbers == sorted(numbers)


def test_a_group_gets_no_more_for_having_many_senders_and_in_it_they_take_turns() -> None:
    turns: GroupedTurns[str] = GroupedTurns()
    for number in range(60):
        turns.put("crowd", f"member {number % 20}", 10, "crowd")
    for _ in range(60):
        turns.put("one", "alone", 10, "one")
    assert Counter(turns.take() for _ in range(40)) == {"crowd": 20, "one": 20}
    turns.put("crowd", "late", 10, "late in the crowd")
    turns.put("later", "late", 10, "late")
    assert turns.take() == "late"
    assert "late in the crowd" in [turns.take() for _ in range(4)]


def test_items_are_taken_all_at_once_as_they_came_if_they_cost_no_more_than_may_be_taken() -> None:
    turns: GroupedTurns[int] = GroupedTurns()
    for number, sender in enumerate("aab"):
        turns.put(sender, sender, 10, number)
    assert turns.take_all(29) == []
    assert turns.take_all(30) == [0, 1, 2]
    for number in range(3):
        turns.put("a", "a", 10, number)
    assert turns.take() == 0
    assert turns.take_all(1_000) == []  # they have their turns by now
    assert [turns.take(), turns.take(), len(turns)] == [1, 2, 0]


@given(st.lists(st.one_of(PUTS, st.none(), st.sampled_from([1.0, 50.0])), max_size=80))
def test_of_groups_everything_is_taken_once_and_that_of_one_sender_in_its_order(
    steps: list[tuple[str, str, float] | float | None],
) -> None:
    turns: GroupedTurns[tuple[str, str, int]] = GroupedTurns()
    put: list[tuple[str, str, int]] = []
    taken: list[tuple[str, str, int]] = []
    for number, step in enumerate(steps):
        if isinstance(step, tuple):
            put.append((*step[:2], number))
            turns.put(*step, put[-1])
        elif step is not None:
            taken += turns.take_all(step)
        elif turns:
            coming = turns.next
            taken.append(turns.take())
            assert taken[-1] == coming
        assert len(turns) == len(put) - len(taken)
    taken += [turns.take() for _ in range(len(turns))]
    assert sorted(taken) == sorted(put)
    assert not turns._of
    for _, mine in groupby(sorted(taken, key=lambda item: item[:2]), key=lambda item: item[:2]):
        numbers = [number for *_, number in mine]
        assert numbers == sorted(numbers)
