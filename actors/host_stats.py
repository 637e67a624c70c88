"""What a host counts of itself, as operators see it."""

from __future__ import annotations

import msgspec

from eventstore.log import LogFigures


class HostStats(msgspec.Struct):
    """Counters of a host since its start, and what it holds now.

    Rates are of the last few seconds. ``sockets`` counts the open sockets of each edge; ``log``
    is the state of the whole log. ``node`` is empty where there is only one.
    """

    name: str
    node: str = ""
    partitions: list[str] = []
    commits: int = 0
    commits_per_s: float = 0.0
    rows: int = 0
    commands: int = 0
    commands_per_s: float = 0.0
    append_failures: int = 0
    partitions_lost: int = 0
    activations: int = 0
    resident_identities: int = 0
    resident_bytes: int = 0
    nonces: int = 0
    leases: int = 0
    sessions: int = 0
    live_sessions: int = 0
    sockets: dict[str, int] = {}
    log: LogFigures | None = None
