"""The databases of the log that this node does not serve: away since its start, or found wrong.

The main process keeps them in a file of the data directory; edges read it for ``/health`` and
``/status``, and look for no hosts in them. If they cannot read it, none of several databases is
known to be served: one may be another log's. The hosts that an edge has found it keeps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from http_edge.server.status_files import Unreadable, publish, read_file
from http_edge.settings.settings import Settings

_NAME: Final = "databases-away.json"


def publish_away(data_dir: Path, away: Mapping[int, str]) -> None:
    """Publish to the edges of this machine why each of these databases is not served."""
    publish(data_dir / _NAME, msgspec.json.encode(away))


def read_away(settings: Settings) -> dict[int, str]:
    """What was published last; empty if every database is served, as a single one always is."""
    count = len(settings.log_dsns)
    away = read_file(settings.data_dir / _NAME, dict[int, str]) if count > 1 else None
    return dict.fromkeys(range(count), away.why) if isinstance(away, Unreadable) else away or {}


def problems_of(settings: Settings) -> Sequence[str]:
    """What was published last, a sentence for each database."""
    return [f"database {n} is not served here: {why}" for n, why in read_away(settings).items()]
