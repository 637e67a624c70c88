"""The data files of ``tests/vectors``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

_FOLDER: Final = Path(__file__).parents[2] / "vectors"


def rows(name: str) -> list[dict[str, Any]]:
    """The rows of one data file."""
    found: list[dict[str, Any]] = json.loads((_FOLDER / name).read_text(encoding="utf-8"))
    return found
