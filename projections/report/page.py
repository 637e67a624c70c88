"""The page of a report: one HTML file that loads nothing and runs nothing.

The template engine escapes all text of strangers (DIDs, codes, names of commands); only our own SVG
is inserted as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from projections.report import plots, units
from projections.report.drawing import NARROW, WIDE
from projections.report.numbers import NUMBERS, TOP, Number, Rows
from projections.report.plots import Plot, Tables
from projections.views.pickup import FIRST_DELIVERY
from projections.views.span import Span


@dataclass(frozen=True)
class _Part:
    title: str
    text: str
    svg: Markup
    tables: list[PageTable]


_BARS: Final = {NARROW: 520, WIDE: 290}
_NONE_WAITED: Final = "No message waited."
_NONE_HANDED_OUT: Final = "No message was handed out in this period."


def _any_waits(rows: Rows) -> bool:
    return any(row["messages"] for row in rows)


_SECTIONS: Final[Mapping[str, Sequence[Plot]]] = {
    "Traffic": (
        Plot(
            "Messages over time",
            "traffic",
            "volumes",
            plots.traffic,
            "Bars: messages queued over time, by protocol; a line: messages removed.",
            "Areas are queued messages, stacked by protocol; the thin line is messages"
            " that left the queues. Where the line is below the areas, queues grow.",
            ("volumes",),
            has_rows=lambda rows: any(row["queued"] or row["removed"] for row in rows),
        ),
        Plot(
            "Bytes over time",
            "bytes",
            "volumes",
            plots.queued_bytes,
            "Bars: bytes queued over time, by protocol.",
            "Payloads of queued messages, stacked by protocol.",
            has_rows=lambda rows: any(row["queued_bytes"] for row in rows),
        ),
        Plot(
            "Tenants",
            "tenants",
            "tenant_volumes",
            plots.largest("tenant"),
            "Bars: the largest tenants.",
            "Messages queued in this period, by the tenant of the recipient: from the"
            " operator's list, else the label that its agent chose.",
            ("tenant_volumes",),
            heights=_BARS,
        ),
    ),
    "Waiting messages": (
        Plot(
            "Depth of all queues",
            "depth",
            "queue_depth",
            plots.depth,
            "Areas: messages waiting over time, by protocol.",
            "Messages that waited at each time, including those queued before this time.",
            (),
            _NONE_WAITED,
            _any_waits,
        ),
        Plot(
            "Age of the oldest message",
            "age",
            "queue_depth",
            plots.age,
            "Lines: age of the oldest waiting message over time.",
            "Age of the oldest waiting message at each time. A steadily rising line is"
            " one message that is not picked up.",
            ("queue_depth",),
            _NONE_WAITED,
            _any_waits,
        ),
    ),
    "Pickup": (
        Plot(
            "Service level",
            "service-level",
            "service_level",
            plots.service_level,
            "Lines: the share of messages that were picked up soon enough, by protocol.",
            "Share of the messages queued at each time that were picked up soon enough."
            " A message that still waits counts as missed once its time is over.",
            ("service_level",),
            has_rows=lambda rows: any(row["decided"] and row["is_complete"] for row in rows),
        ),
        Plot(
            "From queued to first delivery",
            "first-delivery",
            "wait_classes",
            plots.delivery_waits,
            "Histogram: wait from queued to first delivery.",
            "How long messages waited for their first delivery, in classes of equal"
            " width on a logarithmic scale. Decentrl has no deliveries: owners read and"
            " acknowledge.",
            (),
            "No message had its first delivery in this period.",
            lambda rows: any(map(plots.is_delivery, rows)),
        ),
        Plot(
            "From queued to removed",
            "removal",
            "wait_classes",
            plots.removal_waits,
            "Histogram: wait from queued to removed, by reason.",
            "How long messages waited until they left their queue, by the reason: acknowledged "
            "by the owner, delivered to it, expired, purged by the operator, erased, or ended "
            "with the account.",
            ("waits", "wait_classes"),
            "No message left a queue in this period.",
            lambda rows: not all(map(plots.is_delivery, rows)),
        ),
        Plot(
            "Deliveries by channel",
            "channels",
            "deliveries",
            plots.in_bins("channel", "messages", "handed out"),
            "Bars: messages handed out, by channel.",
            "Deliveries by channel: the protocol of the request, live mode, or outbound"
            " to the endpoint of the agent.",
            ("deliveries", "endpoints"),
            _NONE_HANDED_OUT,
        ),
        Plot(
            "Redeliveries",
            "deliveries",
            "redeliveries",
            plots.deliveries,
            "Bars: messages by how often they were handed out.",
            "How often each message was delivered in this period. After a repeated"
            " delivery, the owner did not acknowledge the message, or it was lost on the"
            " way.",
            ("redeliveries", "redelivered"),
            _NONE_HANDED_OUT,
        ),
    ),
    "Identities": (
        Plot(
            "Growth",
            "growth",
            "growth",
            plots.growth,
            "Four lines: registrations, connections, contracts and keys over time.",
            "Identities that ever registered, DIDComm agents that ever connected, contracts "
            "that were stored, and keys that have an owner.",
            ("growth",),
            has_rows=lambda rows: any(row["total"] for row in rows),
            heights={WIDE: 200, NARROW: 330},
        ),
        Plot(
            "Who comes, and who stays away",
            "churn",
            "churn",
            plots.churn,
            "Bars: identities that came, came again and stayed away, by week.",
            "Identities that were active themselves, by week since the log began: for"
            " the first time, again, and no longer (below the line).",
            ("churn",),
        ),
        Plot(
            "Largest senders",
            "senders",
            "senders",
            plots.largest("identity"),
            "Bars: the largest senders.",
            "By messages queued in this period. DIDComm hides senders from mediators,"
            " so these are Decentrl senders.",
            ("senders",),
            "No sender is known.",
            heights=_BARS,
        ),
        Plot(
            "Largest recipients",
            "recipients",
            "recipients",
            plots.largest("identity"),
            "Bars: the largest recipients.",
            "By messages queued for them in this period.",
            ("recipients",),
            heights=_BARS,
        ),
    ),
    "Refusals": (
        Plot(
            "Refusals over time",
            "refusals",
            "refusals_over_time",
            plots.in_bins("reason", "refusals", "refusals"),
            "Bars: refusals over time, by reason.",
            "Refused commands, each counted, and queues that began to refuse messages,"
            " each recorded once; by reason. Named senders had proven their identity.",
            ("refusals_by_kind", "refused_senders", "refusals_over_time", "acceptance"),
            "Nothing was refused.",
        ),
    ),
}
PLOTS: Final[Mapping[str, Plot]] = {
    plot.name: plot for section in _SECTIONS.values() for plot in section
}
"""The plots by name."""
_CAPTIONS: Final = {
    "waits": (
        "Waiting times by the reason that ended them. p50, p90, p99: half, 90 % and 99 % of"
        " the messages waited at most this long."
    ),
    "redelivered": "The messages that were handed out most often.",
    "senders": f"The first {TOP} by messages, and the first {TOP} by bytes.",
    "recipients": f"The first {TOP} by messages, and the first {TOP} by bytes.",
    "refusals_by_kind": "What was refused most.",
    "refused_senders": "Who was refused most, of those that are known.",
    "endpoints": "Agents with an endpoint for which most messages wait.",
}


class Note(NamedTuple):
    """One line about the export: its name and text."""

    name: str
    text: str


def page(span: Span | None, tables: Tables, export: Sequence[Note]) -> str:
    """The HTML of the report over a span.

    Args:
        span: the time that the report is about; None for an export without events.
        tables: the rows of every number by its name.
        export: the lines about the export.
    """
    environment = Environment(
        loader=PackageLoader("projections.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    shown = tiles(tables, span)
    sections = [
        {"title": title, "parts": [_part(plot, tables, span) for plot in parts]}
        for title, parts in _SECTIONS.items()
        if span is not None and shown
    ]
    ends = [units.utc(at_ms) for at_ms in (span.since_ms, span.until_ms)] if span else []
    return environment.get_template("page.html.jinja").render(
        ends=[(at.isoformat(), units.time(at)) for at in ends],
        tiles=shown,
        notes=export,
        sections=sections,
    )


def _part(plot: Plot, tables: Tables, span: Span) -> _Part:
    svg = plot.svg(tables, span)
    shown = [
        table_of(name, tables[name], _CAPTIONS.get(name, ""))
        for name in plot.tables
        if svg and tables[name]
    ]
    text = plot.text if svg else plot.nothing
    return _Part(plot.title, text, Markup(svg), shown)  # noqa: S704 - our own SVG


_NUMBER: Final = "number"
_NAME: Final = "name"
_TIME: Final = "nowrap"
_OPEN_ROWS_MAX: Final = 30
"""Tables with more rows are folded."""
_NAMES: Final = {"identity", "sender_did", "message_id", "command", "endpoint", "tenant"}
_SHOWN: Final[Mapping[str, Sequence[str]]] = {
    "redelivered": ("message_id", "identity", "deliveries", "size_bytes", "queued_at"),
    "endpoints": ("identity", "endpoint", "messages", "attempts", "delivered", "waiting"),
}
"""Columns of wide tables that fit on the page; the files have all of them."""
_UNITS: Final[Mapping[str, Callable[[Any], str]]] = {
    "bytes": units.size,
    "_s": units.duration,
}


class PageColumn(NamedTuple):
    """The head of a column."""

    name: str
    about: str
    is_number: bool


class Cell(NamedTuple):
    """One cell: its text, its class in the page, and the whole text if it is shortened."""

    text: str
    kind: str = ""
    whole: str = ""


@dataclass(frozen=True)
class PageTable:
    """A table in the form that the page shows."""

    title: str
    caption: str
    summary: str
    columns: list[PageColumn]
    rows: list[list[Cell]]
    is_long: bool


def table_of(name: str, rows: Rows, caption: str = "") -> PageTable:
    """The table of one number with all its rows; one without a caption is shown folded."""
    number = {number.name: number for number in NUMBERS}[name]
    shown = _SHOWN.get(name, tuple(number.view.columns))
    return PageTable(
        title=number.title,
        caption=caption,
        summary=f"{number.title}: {units.count(len(rows))} rows",
        columns=[_column(number, column, rows) for column in shown],
        rows=[[_cell(column, row[column]) for column in shown] for row in rows],
        is_long=not caption or len(rows) > _OPEN_ROWS_MAX,
    )


def _column(number: Number, name: str, rows: Rows) -> PageColumn:
    words = name.removesuffix("_s").removesuffix("_did").removesuffix("_bytes").replace("_", " ")
    words = words.removeprefix("is ").removesuffix(" time") if name != "in_time" else "in time"
    is_number = any(type(row[name]) in (int, float) for row in rows)
    return PageColumn(words, number.view.columns[name], is_number)


def _cell(column: str, value: Any) -> Cell:
    if value is None:
        return Cell(units.DASH)
    if isinstance(value, bool):
        return Cell("yes" if value else "no")
    if isinstance(value, datetime):
        return Cell(units.minute(value), _TIME, units.time(value))
    if column.startswith(("share", "churn")):
        return Cell(f"{value:.1%}", _NUMBER)
    if isinstance(value, int | float):
        ends = (shown for end, shown in _UNITS.items() if column.endswith(end))
        return Cell(next(ends, units.count)(value), _NUMBER)
    return Cell(units.printable(value), _NAME if column in _NAMES else "")


class Tile(NamedTuple):
    """One figure of the summary: its name, its value, and a note."""

    name: str
    value: str
    note: str


def tiles(tables: Tables, span: Span | None) -> list[Tile]:
    """The figures of the summary; none if nothing happened and nothing waited."""
    queue, volume = tables["queue_depth"], tables["volumes"]
    growth = [row for row in tables["growth"] if row["change"]]
    if not (volume or queue or growth or tables["refusals_over_time"]):
        return []
    waiting = [
        _sum([row for row in queue if row["at_time"] == end["at_time"]], "messages")
        for end in (queue[:1] + queue[-1:])
    ]
    oldest = [
        r["oldest_s"] for r in queue if r["oldest_s"] and r["at_time"] == queue[-1]["at_time"]
    ]
    removed = Counter[str]()
    for row in tables["waits"]:
        removed[row["stage"]] += row["messages"]
    new = Counter[str]()
    for row in growth:
        new[row["what"]] += row["change"]
    refused, began = (
        _sum(tables["acceptance"], name) for name in ("commands_refused", "queues_refusing")
    )
    return [
        Tile(
            "messages queued",
            units.count(_sum(volume, "queued")),
            units.size(_sum(volume, "queued_bytes")),
        ),
        Tile(
            "messages acknowledged",
            units.count(removed["acknowledged"]),
            f"{units.count(removed.get('expired', 0))} expired, "
            f"{units.count(removed.get('purged', 0))} purged",
        ),
        Tile(
            "waiting at the end",
            units.count(waiting[-1] if waiting else 0),
            f"{units.count(waiting[0] if waiting else 0)} at the start; "
            f"oldest {units.duration(max(oldest, default=None), 2)}",
        ),
        _pickup(tables["waits"]),
        _in_time(tables["service_level"], span),
        Tile(
            "redelivered",
            _share(tables["redeliveries"]),
            "of all messages handed out",
        ),
        Tile(
            "new identities",
            units.count(new["registrations"] + new["connections"]),
            f"{units.count(new['registrations'])} registered for Decentrl, "
            f"{units.count(new['connections'])} agents of DIDComm connected",
        ),
        Tile(
            "commands refused",
            units.count(refused),
            f"queues began to refuse {_times(began)}",
        ),
    ]


def _pickup(latency: Rows) -> Tile:
    """The median wait for the first delivery, or for the acknowledgement without deliveries."""
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


def _in_time(level: Rows, span: Span | None) -> Tile:
    """The share of messages picked up soon enough, of those for which this is decided."""
    in_time, decided = _sum(level, "in_time"), _sum(level, "decided")
    within_s = span.within_ms / 1000 if span else None
    return Tile(
        f"picked up within {units.duration(within_s)}",
        f"{in_time / decided:.1%}" if decided else units.DASH,
        "of the messages queued in this period",
    )


def _share(redeliveries: Rows) -> str:
    once = _sum([row for row in redeliveries if row["deliveries_from"] == 1], "messages")
    handed_out = _sum(redeliveries, "messages")
    return f"{(handed_out - once) / handed_out:.1%}" if handed_out else units.DASH


def _times(number: int) -> str:
    return "once" if number == 1 else f"{units.count(number)} times"


def _sum(rows: Rows, key: str) -> int:
    return sum(row[key] for row in rows)
