"""Draws the plots of a report: each function draws the rows of one number.

matplotlib draws them: its SVG needs no script in the page, its texts stay texts, and only its wheel
has to be installed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from projections.report import units
from projections.report.drawing import NARROW, SERIES, WIDE, Size, colour, figure_svg, open_axes
from projections.report.numbers import Rows
from projections.views.identities import GROWING
from projections.views.pickup import FIRST_DELIVERY
from projections.views.span import Span

Tables: TypeAlias = Mapping[str, Rows]
Draw: TypeAlias = Callable[[Figure, Size, Rows, Span], None]
_DAY_S: Final = 86_400
_BARS_MAX: Final = 10
_STEPS: Final = (1, 2, 2.5, 5, 10)
"""The steps between ticks, times a power of ten."""
_LONG: Final = {"d": "days", "h": "hours", "min": "minutes", "s": "seconds", "ms": "milliseconds"}
_LETTER_WIDTH: Final = 6.8
_MARK_WIDTH: Final = 38
"""The widths of a letter in a legend (above) and of the mark before a name, in pixels."""
_DATES: Final = {
    "formats": ["%Y", "%b", "%d %b", "%H:%M", "%H:%M", "%M:%S"],
    "zero_formats": ["", "%Y", "%b", "%d %b", "%H:%M", "%H:%M"],
    "offset_formats": ["", "", "%Y", "%Y", "%d %b %Y", "%d %b %Y"],
}
"""The formats of times: years, months, days, hours, minutes, seconds."""
_REASONS_SHOWN: Final = len(SERIES) - 1
_WAIT_TICKS: Final = {
    0.001: "1 ms", 0.01: "10 ms", 0.1: "0.1 s", 1: "1 s", 10: "10 s", 60: "1 min", 600: "10 min",
    3_600: "1 h", 21_600: "6 h", 86_400: "1 d", 604_800: "7 d", 2_592_000: "30 d",
    31_536_000: "1 y",
}  # fmt: skip
_NARROW_WAIT_TICKS: Final = (0.001, 0.1, 1, 60, 3_600, 86_400, 2_592_000)


@dataclass(frozen=True)
class Plot:
    """One part of the page: a plot of the rows of one number, its text, and tables of numbers.

    ``name`` is a word, unique on the page; ``label`` is the text for screen readers. Without rows,
    as ``has_rows`` says, the part has only the text ``nothing``.
    """

    title: str
    name: str
    number: str
    draw: Draw
    label: str
    text: str
    tables: tuple[str, ...] = ()
    nothing: str = "Nothing of this kind was recorded in this period."
    has_rows: Callable[[Rows], bool] = bool
    heights: Mapping[Size, int] = field(default_factory=dict)

    def svg(self, tables: Tables, span: Span) -> str:
        """The plot for wide and for narrow pages; empty if there is nothing to draw."""
        rows = tables[self.number]
        if not self.has_rows(rows):
            return ""

        def draw(figure: Figure, size: Size) -> None:
            self.draw(figure, size, rows, span)

        sizes = [
            size._replace(height=self.heights.get(size, size.height)) for size in (WIDE, NARROW)
        ]
        return "".join(figure_svg(draw, size, self.name, self.label) for size in sizes)


# Time ---------------------------------------------------------------------------------------


def _day(at: datetime) -> float:
    """A time in matplotlib's unit: days since 1970."""
    return at.timestamp() / _DAY_S


def time_locator(size: Size) -> AutoDateLocator:
    """Ticks for ranges of any length.

    The bounds on the number of ticks must allow a step for every length: with three to five ticks,
    150 seconds are too long for steps of 30 s and too short for minutes, and matplotlib warns.
    """
    few, many = (2, 5) if size.name == NARROW.name else (3, 10)
    return AutoDateLocator(tz=UTC, minticks=few, maxticks=many)


def _date_ticks(axes: Axes, size: Size) -> None:
    locator = time_locator(size)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=UTC, **_DATES))


def _time_axis(axes: Axes, size: Size, span: Span) -> None:
    """Show the span in whole bins; dim and label the part that the export lacks."""
    _date_ticks(axes, size)
    axes.xaxis.get_offset_text().set_color(colour("--soft"))
    first, *_, last = _edges(span)
    axes.set_xlim(first, last)
    whole_ms = max((edge for edge in span.edges_ms if edge <= span.complete_ms), default=0)
    if whole_ms < span.edges_ms[-1]:
        begin = max(first, whole_ms / 1000 / _DAY_S)
        axes.axvspan(begin, last, color=colour("--card"), alpha=0.65, linewidth=0, zorder=3)
        axes.axvline(begin, color=colour("--soft"), linewidth=0.8, linestyle=(0, (3, 3)), zorder=4)
        axes.text(
            begin,
            1.0,
            "not complete ",
            transform=axes.get_xaxis_transform(),
            ha="right",
            va="top",
            fontsize=10,
            color=colour("--soft"),
            zorder=4,
        )


def _legend(axes: Axes, size: Size) -> None:
    """Put the legend above the axes, in as many columns as the longest name allows."""
    handles, names = axes.get_legend_handles_labels()
    column_width = max(map(len, names)) * _LETTER_WIDTH + _MARK_WIDTH
    columns = max(1, min(len(names), int(size.width * 0.85 / column_width)))
    axes.legend(handles, names, loc="lower left", bbox_to_anchor=(0, 1.03), ncols=columns)


def _whole_axis(axes: Axes) -> None:
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True, steps=_STEPS))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: units.short_count(value)))
    axes.set_ylim(bottom=0)


def _over_time(
    axes: Axes, size: Size, span: Span, ylabel: str, *, counts_whole: bool = True
) -> None:
    """Style axes of what happened over the span; they count from 0."""
    open_axes(axes, ylabel)
    if counts_whole:
        _whole_axis(axes)
    else:
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_locator(MaxNLocator(5, steps=_STEPS))
    _time_axis(axes, size, span)
    _legend(axes, size)


def _by(rows: Rows, key: str) -> dict[Any, Rows]:
    found: dict[Any, Rows] = {}
    for row in rows:
        found.setdefault(row[key], []).append(row)
    return found


def _stacked(axes: Axes, edges: Sequence[float], series: Mapping[str, Sequence[float]]) -> None:
    """Draw stacked bars, each series as one outline, so that the SVG stays small."""
    bottom = [0.0] * (len(edges) - 1)
    for (name, values), named in zip(series.items(), SERIES, strict=False):
        top = [low + value for low, value in zip(bottom, values, strict=True)]
        axes.stairs(top, edges, baseline=bottom, fill=True, color=colour(named), label=name)
        bottom = top


def _edges(span: Span) -> list[float]:
    return [edge / 1000 / _DAY_S for edge in span.edges_ms]


def traffic(figure: Figure, size: Size, rows: Rows, span: Span) -> None:
    """Messages queued, stacked by protocol, and messages removed."""
    axes, protocols = figure.subplots(), _by(rows, "protocol")
    edges = _edges(span)
    _stacked(
        axes,
        edges,
        {f"{p} queued": [r["queued"] for r in found] for p, found in protocols.items()},
    )
    removed = [sum(row["removed"] for row in found) for found in _by(rows, "bin_start").values()]
    axes.stairs(
        removed, edges, baseline=None, color=colour("--ink"), linewidth=1.1, label="removed"
    )
    _over_time(axes, size, span, f"messages per {units.bin_name(span.bin_ms)}")


def queued_bytes(figure: Figure, size: Size, rows: Rows, span: Span) -> None:
    """Bytes queued, stacked by protocol."""
    axes, protocols = figure.subplots(), _by(rows, "protocol")
    unit, name = units.size_step(max(row["queued_bytes"] for row in rows))
    series = {p: [r["queued_bytes"] / unit for r in found] for p, found in protocols.items()}
    _stacked(axes, _edges(span), series)
    ylabel = f"{name} per {units.bin_name(span.bin_ms)}"
    _over_time(axes, size, span, ylabel, counts_whole=False)


def depth(figure: Figure, size: Size, rows: Rows, span: Span) -> None:
    """Messages that wait, stacked by protocol."""
    axes, protocols = figure.subplots(), _by(rows, "protocol")
    times = [_day(row["at_time"]) for row in next(iter(protocols.values()))]
    axes.stackplot(
        times,
        [[row["messages"] for row in found] for found in protocols.values()],
        labels=list(protocols),
        colors=[colour(name) for name in SERIES],
        linewidth=0,
    )
    _over_time(axes, size, span, "messages waiting")


def age(figure: Figure, size: Size, rows: Rows, span: Span) -> None:
    """The age of the oldest message that waits, by protocol."""
    axes, protocols = figure.subplots(), _by(rows, "protocol")
    unit, name = units.duration_step(max(row["oldest_s"] or 0 for row in rows))
    for (protocol, found), named in zip(protocols.items(), SERIES, strict=False):
        ages = [(row["oldest_s"] or 0) / unit for row in found]
        times = [_day(row["at_time"]) for row in found]
        axes.plot(times, ages, color=colour(named), label=protocol)
    _over_time(axes, size, span, f"age of the oldest, {_LONG[name]}", counts_whole=False)


def growth(figure: Figure, size: Size, rows: Rows, span: Span) -> None:
    """One small plot for each kind of what grows."""
    across = 2 if size.name == NARROW.name else 4
    grid = figure.subplots(len(GROWING) // across, across).flatten()
    series = _by(rows, "what")
    for axes, what, named in zip(grid, GROWING, SERIES, strict=False):
        found = series[what]
        times, totals = [_day(row["at_time"]) for row in found], [row["total"] for row in found]
        axes.fill_between(times, totals, step="pre", color=colour(named), alpha=0.18, linewidth=0)
        axes.step(times, totals, where="pre", color=colour(named))
        axes.set_title(f"{what}: {units.count(totals[-1])}")
        open_axes(axes)
        _whole_axis(axes)
        _time_axis(axes, NARROW, span)
        axes.xaxis.get_offset_text().set_visible(False)


# Waits and deliveries -----------------------------------------------------------------------


def _wait_axis(axes: Axes, size: Size) -> None:
    low, high = axes.dataLim.intervalx
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    shown = _NARROW_WAIT_TICKS if size.name == NARROW.name else tuple(_WAIT_TICKS)
    ticks = [tick for tick in shown if low <= tick <= high]
    axes.set_xticks(ticks, [_WAIT_TICKS[tick] for tick in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("wait, logarithmic")


def _waits(axes: Axes, size: Size, series: Mapping[str, Rows]) -> None:
    found = sorted({(row["from_s"], row["to_s"]) for rows in series.values() for row in rows})
    lowest, highest = found[0][1] / 10**0.2, found[-1][1]
    edges = [lowest]
    while edges[-1] < highest * 0.999:
        edges.append(edges[-1] * 10**0.2)
    counts = {name: [0.0] * (len(edges) - 1) for name in series}
    for name, rows in series.items():
        for row in rows:
            place = min(range(1, len(edges)), key=lambda n: abs(edges[n] / row["to_s"] - 1))
            counts[name][place - 1] += row["messages"]
    _stacked(axes, edges, counts)
    open_axes(axes, "messages")
    _whole_axis(axes)
    _wait_axis(axes, size)
    _legend(axes, size)


def is_delivery(row: Mapping[str, Any]) -> bool:
    """Whether a row of waits is of the first delivery, not of the removal."""
    return bool(row["stage"] == FIRST_DELIVERY)


def delivery_waits(figure: Figure, size: Size, rows: Rows, _span: Span) -> None:
    """The distribution of waits for the first delivery, by protocol."""
    _waits(figure.subplots(), size, _by(list(filter(is_delivery, rows)), "protocol"))


def removal_waits(figure: Figure, size: Size, rows: Rows, _span: Span) -> None:
    """The distribution of waits for the removal, by reason."""
    removed = [row for row in rows if not is_delivery(row)]
    _waits(figure.subplots(), size, _by(removed, "stage"))


def class_name(row: Mapping[str, Any]) -> str:
    """``3``, ``6-10`` or ``over 100``: how often messages of a class were handed out."""
    first, last = row["deliveries_from"], row["deliveries_to"]
    if last is None:
        return f"over {first - 1}"
    return str(first) if first == last else f"{first}{units.DASH}{last}"


def deliveries(figure: Figure, size: Size, rows: Rows, _span: Span) -> None:
    """How many messages were handed out how often."""
    axes = figure.subplots()
    classes: dict[str, int] = {}
    for row in rows:
        classes[class_name(row)] = classes.get(class_name(row), 0) + row["messages"]
    bars = axes.bar(list(classes), list(classes.values()), width=0.72, color=colour(SERIES[0]))
    axes.bar_label(bars, [units.count(n) for n in classes.values()], padding=2, fontsize=10.5)
    axes.set_yscale("log")
    axes.set_ylim(bottom=0.5, top=max(classes.values()) * 3)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: units.short_count(value)))
    axes.yaxis.set_minor_locator(NullLocator())
    open_axes(axes, "messages, logarithmic")
    axes.set_xlabel("times handed out")
    if size.name == NARROW.name:
        axes.tick_params(axis="x", labelrotation=45)


# Identities and refusals ------------------------------------------------------------------------


def largest(key: str) -> Draw:
    """The largest by messages and by bytes, named by the column ``key``."""

    def draw(figure: Figure, size: Size, rows: Rows, _span: Span) -> None:
        across = 1 if size.name == NARROW.name else 2
        by_messages, by_bytes = figure.subplots(2 // across, across).flatten()
        names = units.short_names(row[key] for row in rows)
        _bars(by_messages, rows, "messages", names, key, units.count)
        _bars(by_bytes, rows, "bytes", names, key, units.size)

    return draw


def _bars(
    axes: Axes,
    rows: Rows,
    by: str,
    names: Mapping[str, str],
    key: str,
    shown: Callable[[float], str],
) -> None:
    largest = sorted(rows, key=lambda row: (-row[by], row[key]))[:_BARS_MAX]
    values = [row[by] for row in largest]
    places = range(len(largest))
    bars = axes.barh(places, values, height=0.66, color=colour(SERIES[0]))
    axes.set_yticks(places, [names[row[key]] for row in largest], fontsize=10)
    axes.bar_label(bars, [shown(value) for value in values], padding=4, fontsize=10.5)
    axes.set_title(f"by {by}")
    axes.invert_yaxis()
    axes.set_xlim(0, max([*values, 1]) * 1.3)
    axes.set_xticks([])
    axes.tick_params(length=0)
    for side in ("top", "right", "bottom", "left"):
        axes.spines[side].set_visible(False)


def _over_bins(rows: Rows, name: str, value: str, edges: Sequence[float]) -> dict[str, list[float]]:
    """The values of the most frequent names in each bin, and of all others together."""
    totals = {each: sum(r[value] for r in found) for each, found in _by(rows, name).items()}
    frequent = sorted(totals, key=lambda each: (-totals[each], each))[:_REASONS_SHOWN]
    short = units.short_names(frequent)
    series = {short[each]: [0.0] * (len(edges) - 1) for each in frequent}
    for row in rows:
        shown = short.get(row[name], "all others")
        values = series.setdefault(shown, [0.0] * (len(edges) - 1))
        place = round((_day(row["bin_start"]) - edges[0]) / (edges[1] - edges[0]))
        values[place] += row[value]
    return series


def in_bins(name: str, value: str, ylabel: str) -> Draw:
    """The sums of ``value`` over time, stacked by the column ``name``."""

    def draw(figure: Figure, size: Size, rows: Rows, span: Span) -> None:
        axes, edges = figure.subplots(), _edges(span)
        _stacked(axes, edges, _over_bins(rows, name, value, edges))
        _over_time(axes, size, span, f"{ylabel} per {units.bin_name(span.bin_ms)}")

    return draw


def service_level(figure: Figure, size: Size, rows: Rows, span: Span) -> None:
    """Draw the shares of complete bins in which anything was decided, each with a marker."""
    axes = figure.subplots()
    for (protocol, found), named in zip(_by(rows, "protocol").items(), SERIES, strict=False):
        decided = [row for row in found if row["share_in_time"] is not None and row["is_complete"]]
        times = [_day(row["bin_start"]) + span.bin_ms / 2000 / _DAY_S for row in decided]
        shares = [row["share_in_time"] * 100 for row in decided]
        axes.plot(
            times, shares, "o-", markersize=2.5, linewidth=1, color=colour(named), label=protocol
        )
    within = units.duration(span.within_ms / 1000)
    open_axes(axes, f"% picked up within {within}")
    axes.set_ylim(0, 104)
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=_STEPS))
    _time_axis(axes, size, span)
    _legend(axes, size)


def churn(figure: Figure, size: Size, rows: Rows, _span: Span) -> None:
    """Identities that came, came again and stayed away, by week."""
    axes = figure.subplots()
    weeks = [_day(row["week"]) for row in rows]
    again = [row["active"] - row["first_time"] for row in rows]
    first = [row["first_time"] for row in rows]
    gone = [-row["lapsed"] for row in rows]
    width = 7 * 0.86
    for values, base, name, named in (
        (again, None, "active again", SERIES[0]),
        (first, again, "first time", SERIES[2]),
        (gone, None, "stayed away", SERIES[3]),
    ):
        axes.bar(weeks, values, width, bottom=base, align="edge", color=colour(named), label=name)
    open_axes(axes, "identities per week")
    axes.axhline(0, color=colour("--soft"), linewidth=0.8)
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True, steps=_STEPS))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: units.short_count(abs(value))))
    axes.set_xlim(weeks[0], weeks[-1] + 7)
    _date_ticks(axes, size)
    _legend(axes, size)
