"""The settings of what the log keeps of refused commands; see ``http_edge.config``."""

from __future__ import annotations

from pydantic import Field

from http_edge.config_types import KIB, Section


class Audit(Section):
    """What the log keeps of commands that were refused and changed nothing."""

    refusals_period_s: float = Field(default=60, ge=0, le=86_400)
    """Each edge process counts what it refuses and records the counts once in this time, if there
    are any; 0 never. A process that is killed loses those of one period."""
    refusals_entries_max: int = Field(default=64, ge=16, le=4_096)
    """Entries of one record, each a kind of refusal with its count. Beyond, counts are put
    together without sender, then without command, then without reason: none is lost."""
    refusals_senders_bytes_max: int = Field(default=8 * KIB, ge=0, le=1_024 * KIB)
    """Bytes of all senders' DIDs in one record. With refusals_entries_max it bounds what refused
    commands add to the log: less than 30 MB a day for each edge process, whoever sends what."""
