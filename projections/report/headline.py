"""The figures that a report begins with."""

from __future__ import annotations

from typing import Any, NamedTuple

from projections.report import units
from projections.report.numbers import Rows
from projections.report.pickup import FIRST_DELIVERY
from projections.report.plots import Tables
from projections.report.refusals import COMMANDS


class Tile(NamedTuple):
    """One figure, its name, and what else is to be said of it."""

    name: str
    value: str
    note: str


def tiles(tables: Tables) -> list[Tile]:
    """The figures; none where nothing happened and nothing waited."""
    queue, volume = tables["queue"], tables["volume"]
    growth = [row for row in tables["growth"] if row["change"]]
    if not (volume or queue or growth or tables["refusals"]):
        return []
    waiting = [_sum([row for row in queue if row["at"] == at], "messages") for at in _ends(queue)]
    oldest = [r["oldest_s"] for r in queue if r["oldest_s"] and r["at"] == queue[-1]["at"]]
    removed = _reasons(tables["latency"])
    new = {row["what"]: 0 for row in tables["growth"]}
    for row in growth:
        new[row["what"]] += row["change"]
    commands = [row for row in tables["refusals"] if row["refused"] == COMMANDS]
    began = _sum(tables["refusals"], "count") - _sum(commands, "count")
    return [
        Tile(
            "messages queued",
            units.count(_sum(volume, "queued")),
            units.size(_sum(volume, "queued_bytes")),
        ),
        Tile(
            "messages acknowledged",
            units.count(removed.get("acknowledged", 0)),
            f"{units.count(removed.get('expired', 0))} expired, "
            f"{units.count(removed.get('purged', 0))} purged",
        ),
        Tile(
            "waiting at the end",
            units.count(waiting[-1] if waiting else 0),
            f"{units.count(waiting[0] if waiting else 0)} at the start; "
            f"oldest {units.duration(max(oldest, default=None), 2)}",
        ),
        _pickup(tables["latency"]),
        Tile(
            "redelivered",
            _share(tables["redeliveries"]),
            "of all messages handed out",
        ),
        Tile("new identities", units.count(new["registrations"]), "registered for Decentrl"),
        Tile("new connections", units.count(new["connections"]), "of DIDComm agents"),
        Tile(
            "commands refused",
            units.count(_sum(commands, "count")),
            f"queues began to refuse {_times(began)}",
        ),
    ]


def _pickup(latency: Rows) -> Tile:
    """Until the first delivery, or the acknowledgement where a protocol has no deliveries."""
    found = [row for row in latency if row["stage"] in {FIRST_DELIVERY, "acknowledged"}]
    first: dict[str, dict[str, Any]] = {}
    for row in found:
        if row["protocol"] not in first or row["stage"] == FIRST_DELIVERY:
            first[row["protocol"]] = row
    shown = [units.duration(row["p50_s"], 2) for row in first.values()]
    return Tile(
        "half are picked up within",
        " · ".join(shown) or units.DASH,
        " · ".join(first) or "none was",
    )


def _ends(queue: Rows) -> list[Any]:
    return [queue[0]["at"], queue[-1]["at"]] if queue else []


def _reasons(latency: Rows) -> dict[str, int]:
    found: dict[str, int] = {}
    for row in latency:
        found[row["stage"]] = found.get(row["stage"], 0) + row["messages"]
    return found


def _share(redeliveries: Rows) -> str:
    once = _sum([row for row in redeliveries if row["deliveries_from"] == 1], "messages")
    handed_out = _sum(redeliveries, "messages")
    return f"{(handed_out - once) / handed_out:.1%}" if handed_out else units.DASH


def _times(number: int) -> str:
    return "once" if number == 1 else f"{units.count(number)} times"


def _sum(rows: Rows, key: str) -> int:
    return sum(row[key] for row in rows)
