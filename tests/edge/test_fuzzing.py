"""A short run of the fuzzer; the long one is ``python -m tests.attacks.fuzzing``."""

from __future__ import annotations

import pytest

from tests.attacks.fuzzing import run


@pytest.mark.parametrize("seed", [1, 2])
async def test_whatever_is_sent_is_answered_without_a_fault(seed: int) -> None:
    report = await run(seed=seed, cases=400, seconds=120)
    assert (report.faults, report.error_lines) == ([], []), report.table()
