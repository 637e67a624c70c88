"""Which of the 86 known traps of DCTRL-0004 have a test: ``test_trap_<number>_<promise>``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

TRAPS: Final = range(1, 87)
TESTS: Final = Path(__file__).parents[1]

NOT_TESTED_HERE: Final[dict[int, str]] = {}
"""Traps without a test of that name, and why."""


def traps_in(text: str) -> set[int]:
    return {int(number) for number in re.findall(r"def test_trap_(\d+)_", text)}


def test_every_trap_has_a_test_or_a_reason_to_have_none() -> None:
    tested: set[int] = set()
    for path in [*TESTS.glob("edge/test_*.py"), *TESTS.glob("unit/actors/test_*.py")]:
        tested |= traps_in(path.read_text())
    assert tested <= set(TRAPS)
    assert not tested & set(NOT_TESTED_HERE)
    assert set(TRAPS) - tested - set(NOT_TESTED_HERE) == set()
