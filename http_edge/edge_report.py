"""What an edge measures, and what it tells whoever collects the measures of a mediator."""

from __future__ import annotations

import msgspec

from actors.measures import ITEMS, SECONDS, Histogram, ProcessUse, Tally, histogram
from http_edge.refusal_counts import DECENTRL, DIDCOMM

DONE = "done"
"""The result of what was not refused."""
UNKNOWN = "unknown"
"""The command of what could not be read, or is none of ours."""


class EdgeMeasures(msgspec.Struct, kw_only=True):
    """What an edge measures; times in seconds.

    ``commands`` are by protocol, command and result. ``decode``: from the bytes of a command to a
    verdict on its form and its signature. ``outbox``: its wait for a call to the host. ``call``:
    such a call, there and back. ``answer``: by protocol, from the last byte of a POST to its
    answer. ``call_items`` are the commands in one call.
    """

    commands: Tally = msgspec.field(default_factory=Tally)
    decode: Histogram = msgspec.field(default_factory=lambda: histogram(SECONDS))
    outbox: Histogram = msgspec.field(default_factory=lambda: histogram(SECONDS))
    call: Histogram = msgspec.field(default_factory=lambda: histogram(SECONDS))
    answer: dict[str, Histogram] = msgspec.field(
        default_factory=lambda: {name: histogram(SECONDS) for name in (DECENTRL, DIDCOMM)}
    )
    call_items: Histogram = msgspec.field(default_factory=lambda: histogram(ITEMS))


class EdgeReport(msgspec.Struct, kw_only=True):
    """Everything about one edge: what it has counted, and what it holds now.

    ``refusals`` are by protocol and reason, those included that nobody read. ``sockets`` are by
    protocol. ``outbox_items`` wait for a call to a host. ``outbound`` is what
    ``http_edge.outbound.courier.Courier.figures`` tells, empty where it does not run.
    """

    measures: EdgeMeasures
    refusals: Tally
    sockets: dict[str, int]
    listeners: int
    in_flight: int
    in_flight_bytes: int
    outbox_items: int
    outbound: dict[str, int]
    use: ProcessUse
