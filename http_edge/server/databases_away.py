"""The databases of the log that this node does not serve: away since its start, or found wrong.

The main process keeps them in a file of the data directory; edges read it for ``/health`` and
``/status``, and look for no hosts in them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from http_edge.server.status_files import publish, read_status

_NAME: Final = "databases-away.json"


def publish_away(data_dir: Path, away: Mapping[int, str]) -> None:
    """Tell the edges of this machine why each of these databases, by its number, is not served."""
    publish(data_dir / _NAME, msgspec.json.encode(away))


def read_away(data_dir: Path) -> dict[int, str]:
    """What was published last; empty if every database is served."""
    return read_status(data_dir / _NAME, dict[int, str]) or {}


def problems_of(data_dir: Path) -> Sequence[str]:
    """What was published last, a sentence for each database."""
    return [f"database {n} is not served here: {why}" for n, why in read_away(data_dir).items()]
