"""The page of a report: one HTML file that loads nothing and runs nothing.

Whatever strangers chose (DIDs, codes, names of commands) is escaped by the template engine; only
SVG that was made here is put in as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from projections.report import plots, units
from projections.report.headline import tiles
from projections.report.plots import Tables
from projections.report.provenance import Note
from projections.report.span import Span
from projections.report.tables import Table, table_of


@dataclass(frozen=True)
class _Outline:
    """One part of the page: a plot or none, what it says, and tables of numbers."""

    title: str
    plot: str
    numbers: tuple[str, ...]
    text: str
    nothing: str = "Nothing of this kind was recorded in this time."


@dataclass(frozen=True)
class _Part:
    title: str
    text: str
    svg: Markup
    tables: list[Table]


_OUTLINE: Final[Sequence[tuple[str, Sequence[_Outline]]]] = (
    (
        "Traffic",
        (
            _Outline(
                "Messages over time",
                "traffic",
                ("volume",),
                "Areas are messages that were queued, one protocol on the other; the thin line is "
                "messages that left the queues. Where the line stays below, queues grow.",
            ),
            _Outline(
                "Bytes over time",
                "bytes",
                (),
                "Payloads of the messages that were queued, one protocol on the other.",
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
                "Messages that waited at each moment, including those queued before this time.",
                "No message waited.",
            ),
            _Outline(
                "Age of the oldest message",
                "age",
                ("queue",),
                "How long the oldest waiting message had waited at each moment. A line that rises "
                "steadily is one message that nobody picks up.",
                "No message waited.",
            ),
        ),
    ),
    (
        "Pickup",
        (
            _Outline(
                "From queued to first delivery",
                "first-delivery",
                (),
                "How long messages waited until they were first handed out, in classes of equal "
                "width on a logarithmic scale. Decentrl has no deliveries: its owners read and "
                "acknowledge.",
                "No message was handed out for the first time in this time.",
            ),
            _Outline(
                "From queued to removed",
                "removal",
                ("latency", "latency_histogram"),
                "How long messages waited until they left their queue, by the reason: acknowledged "
                "by the owner, expired, or purged by the operator.",
                "No message left a queue in this time.",
            ),
            _Outline(
                "Redeliveries",
                "deliveries",
                ("redeliveries", "redelivered_most"),
                "How often each message was handed out in this time. More than once: the owner got "
                "it and did not acknowledge it, or lost it on the way.",
                "No message was handed out in this time.",
            ),
        ),
    ),
    (
        "People",
        (
            _Outline(
                "Growth",
                "growth",
                ("growth",),
                "Identities that ever registered, DIDComm agents that ever connected, contracts "
                "that were stored, and keys that belong to somebody.",
            ),
            _Outline(
                "Largest senders",
                "senders",
                ("senders",),
                "By what was queued in this time. DIDComm hides senders from its mediators: these "
                "are Decentrl's.",
                "No sender is known.",
            ),
            _Outline(
                "Largest recipients",
                "recipients",
                ("recipients",),
                "By what was queued for them in this time.",
            ),
        ),
    ),
    (
        "Refusals",
        (
            _Outline(
                "Refusals over time",
                "refusals",
                ("refusals_by_kind", "refused_senders", "refusals"),
                "Commands that were refused, each counted, and queues that began to refuse "
                "messages, each told once; by reason. Where senders are named, they had proven "
                "who they are.",
                "Nothing was refused.",
            ),
        ),
    ),
)
_CAPTIONS: Final = {
    "latency": "Waits by what ended them. p50, p90, p99: half, nine of ten and 99 of 100 messages "
    "waited at most this long.",
    "redelivered_most": "The messages that were handed out most often.",
    "senders": "The first by messages, and the first by bytes.",
    "recipients": "The first by messages, and the first by bytes.",
    "refusals_by_kind": "What was refused most.",
    "refused_senders": "Who was refused most, of those that are known.",
}


def page(span: Span | None, tables: Tables, export: Sequence[Note]) -> str:
    """The HTML of the report over a span.

    Args:
        span: the time it is about; None for an export without events.
        tables: the rows of every number by its name.
        export: what is said about the export.
    """
    environment = Environment(
        loader=PackageLoader("projections.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    shown = tiles(tables)
    sections = [
        {"title": title, "parts": [_part(outline, tables, span) for outline in parts]}
        for title, parts in _OUTLINE
        if span is not None and shown
    ]
    ends = [units.moment(at_ms) for at_ms in (span.since_ms, span.until_ms)] if span else []
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
