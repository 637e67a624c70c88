"""What a program keeps in memory of the texts that it has seen."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Final

import pytest

_TEXTS: Final = 64
made_up = pytest.mark.parametrize(
    "made_up", ["t" * 1_000, "t" * 200 + "\N{GRINNING FACE}"], ids=["long", "wide"]
)
"""Ends of texts of which a stranger can send any number, and which take a KiB of memory each."""


def bytes_kept(use: Callable[[str], object], end: str) -> float:
    """Use many texts with this end; return the bytes that stay in memory of each, on average."""
    use(end)
    tracemalloc.start()
    try:
        for number in range(_TEXTS):
            use(f"{number}{end}")
        size_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return size_bytes / _TEXTS
