"""How many examples of a property are tried: those of the run's profile, or more."""

from __future__ import annotations

from typing import Any

from hypothesis import settings

_QUICK_MAX = 50


def examples(number: int, **others: Any) -> settings:
    """Try so many examples, and a third of them in `make quick`, whose profile has few."""
    is_quick = settings().max_examples < _QUICK_MAX
    return settings(max_examples=number // 3 if is_quick else number, **others)
