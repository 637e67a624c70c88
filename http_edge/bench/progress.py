"""How a benchmark tells how far it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

ProgressBar: TypeAlias = Callable[[str, int], Callable[[int], None]]
"""Makes a bar from a title and a total; the bar hears how much is done."""
