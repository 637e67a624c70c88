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
from projections.report.numbers import NUMBERS, TOP, Number, Rows
from projections.report.plots import Tables
from projections.views.pickup import FIRST_DELIVERY
from projections.views.span import Span


@dataclass(frozen=True)
class _Outline:
    """One part of the page: its plot, text and tables of numbers."""

    title: str
    plot: str
    numbers: tuple[str, ...]
    text: str
    nothing: str = "Nothing of this kind was recorded in this period."


@dataclass(frozen=True)
class _Part:
    title: str
    text: str
    svg: Markup
    tables: list[PageTable]


_OUTLINE: Final[Sequence[tuple[str, Sequence[_Outline]]]] = (
    (
        "Traffic",
        (
            _Outline(
                "Messages over time",
                "traffic",
                ("volumes",),
                "Areas are queued messages, stacked by protocol; the thin line is messages"
                " that left the queues. Where the line is below the areas, queues grow.",
            ),
            _Outline(
                "Bytes over time",
                "bytes",
                (),
                "Payloads of queued messages, stacked by protocol.",
            ),
            _Outline(
                "Tenants",
                "tenants",
                ("tenant_volumes",),
                "Messages queued in this period, by the tenant of the recipient: from the"
                " operator's list, else the label that its agent chose.",
            ),
        ),
    ),
    (
        "Waiting messages",
        (
            _Outline(
                "Depth of all queues",
                "depth",
                (),
                "Messages that waited at each time, including those queued before this time.",
                "No message waited.",
            ),
            _Outline(
                "Age of the oldest message",
                "age",
                ("queue_depth",),
                "Age of the oldest waiting message at each time. A steadily rising line is"
                " one message that is not picked up.",
                "No message waited.",
            ),
        ),
    ),
    (
        "Pickup",
        (
            _Outline(
                "Service level",
                "service-level",
                ("service_level",),
                "Share of the messages queued at each time that were picked up soon enough."
                " A message that still waits counts as missed once its time is over.",
            ),
            _Outline(
                "From queued to first delivery",
                "first-delivery",
                (),
                "How long messages waited for their first delivery, in classes of equal"
                " width on a logarithmic scale. Decentrl has no deliveries: owners read and"
                " acknowledge.",
                "No message had its first delivery in this period.",
            ),
            _Outline(
                "From queued to removed",
                "removal",
                ("waits", "wait_classes"),
                "How long messages waited until they left their queue, by the reason: acknowledged "
                "by the owner, delivered to it, expired, purged by the operator, erased, or ended "
                "with the account.",
                "No message left a queue in this period.",
            ),
            _Outline(
                "Deliveries by channel",
                "channels",
                ("deliveries", "endpoints"),
                "Deliveries by channel: the protocol of the request, live mode, or outbound"
                " to the endpoint of the agent.",
                "No message was handed out in this period.",
            ),
            _Outline(
                "Redeliveries",
                "deliveries",
                ("redeliveries", "redelivered"),
                "How often each message was delivered in this period. After a repeated"
                " delivery, the owner did not acknowledge the message, or it was lost on the"
                " way.",
                "No message was handed out in this period.",
            ),
        ),
    ),
    (
        "Identities",
        (
            _Outline(
                "Growth",
                "growth",
                ("growth",),
                "Identities that ever registered, DIDComm agents that ever connected, contracts "
                "that were stored, and keys that have an owner.",
            ),
            _Outline(
                "Who comes, and who stays away",
                "churn",
                ("churn",),
                "Identities that were active themselves, by week since the log began: for"
                " the first time, again, and no longer (below the line).",
            ),
            _Outline(
                "Largest senders",
                "senders",
                ("senders",),
                "By messages queued in this period. DIDComm hides senders from mediators,"
                " so these are Decentrl senders.",
                "No sender is known.",
            ),
            _Outline(
                "Largest recipients",
                "recipients",
                ("recipients",),
                "By messages queued for them in this period.",
            ),
        ),
    ),
    (
        "Refusals",
        (
            _Outline(
                "Refusals over time",
                "refusals",
                (
                    *("refusals_by_kind", "refused_senders", "refusals_over_time"),
                    "acceptance",
                ),
                "Refused commands, each counted, and queues that began to refuse messages,"
                " each recorded once; by reason. Named senders had proven their identity.",
                "Nothing was refused.",
            ),
        ),
    ),
)
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
        {"title": title, "parts": [_part(outline, tables, span) for outline in parts]}
        for title, parts in _OUTLINE
        if span is not None and shown
    ]
    ends = [units.utc(at_ms) for at_ms in (span.since_ms, span.until_ms)] if span else []
    return environment.get_template("page.html.jinja").render(
        ends=[(at.isoformat(), units.time(at)) for at in ends],
        tiles=shown,
        notes=export,
        sections=sections,
    )


def _part(outline: _Outline, tables: Tables, span: Span) -> _Part:
    svg = plots.drawn(outline.plot, tables, span)
    shown = [
        table_of(name, tables[name], _CAPTIONS.get(name, ""))
        for name in outline.numbers
        if svg and tables[name]
    ]
    text = outline.text if svg else outline.nothing
    return _Part(outline.title, text, Markup(svg), shown)  # noqa: S704 - our own SVG


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
