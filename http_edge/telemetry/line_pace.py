"""A bound on log lines about failures that anyone can bring about again and again."""

from __future__ import annotations

import logging
from typing import Final

LINES_APART_MS: Final = 10_000
"""Between two lines of one kind; metrics count what they leave out."""


class LinePace:
    """Chooses the level of each line of one kind, so that few of them fill the log."""

    def __init__(self) -> None:
        self._until_ms = 0

    def level(self, level: int, now_ms: int) -> int:
        """Return ``level`` once in ``LINES_APART_MS``, and DEBUG for the lines in between."""
        if 0 < self._until_ms - now_ms <= LINES_APART_MS:
            return logging.DEBUG
        self._until_ms = now_ms + LINES_APART_MS
        return level
