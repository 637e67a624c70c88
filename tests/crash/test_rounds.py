"""Writers reach everyone soon, whatever chance says."""

from __future__ import annotations

import random
from itertools import islice

import pytest

from tests.crash.rounds import in_rounds

pytestmark = pytest.mark.crash


def test_each_is_reached_within_two_rounds_and_in_another_order_in_each() -> None:
    drawn = list(islice(in_rounds(random.Random(1), range(4)), 40))  # noqa: S311 - repeatable
    windows = [set(drawn[at : at + 7]) for at in range(34)]
    assert windows == [{0, 1, 2, 3}] * 34
    assert len({tuple(drawn[at : at + 4]) for at in range(0, 40, 4)}) > 1
