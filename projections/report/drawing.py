"""Draws figures with matplotlib as SVG for embedding in a page.

Colours are named, not fixed: the page defines them for its light and dark modes. Texts stay texts,
in the font of the page. Identifiers in the SVG are unique on the page, and its styles do not apply
to the rest of the page.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable
from typing import Final, NamedTuple
from xml.etree import ElementTree as ET

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

SERIES: Final = tuple(f"--series-{number}" for number in range(1, 9))
_NAMED: Final = ("--ink", "--soft", "--line", "--card", *SERIES)
_CODES: Final = {name: f"#01fe{number:02x}" for number, name in enumerate(_NAMED)}
"""The colours given to matplotlib, each a placeholder for a name."""
_SVG: Final = "http://www.w3.org/2000/svg"
_LINK: Final = "{http://www.w3.org/1999/xlink}href"
_DPI: Final = 72
"""The resolution at which a point of matplotlib is one unit of the SVG."""
_TEXT_STYLE: Final = re.compile(r"font(?:-family)?: (?:([\d.]+px) )?[^;]*'[^;]*(; |$)")
_DIGITS: Final = re.compile(r"(\.\d\d)\d+")
"""Digits of a path to cut: hundredths of a pixel cannot be seen."""
_REFERENCE: Final = re.compile(r"url\(#([^)]+)\)")


class Size(NamedTuple):
    """Width and height of a figure, in CSS pixels at its natural size."""

    name: str
    width: int
    height: int


WIDE: Final = Size("wide", 860, 270)
NARROW: Final = Size("narrow", 370, 260)


def colour(name: str) -> str:
    """The colour to give to matplotlib for a colour of the page."""
    return _CODES[name]


def figure_svg(draw: Callable[[Figure, Size], None], size: Size, name: str, label: str) -> str:
    """Draw a figure; return the SVG element.

    Args:
        draw: draws axes and their contents into an empty figure.
        size: the size of the figure.
        name: a word, unique on the page.
        label: the text for screen readers.
    """
    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        # Texts are drawn in the font of the page: this one only says how wide they are.
        warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)
        figure = Figure((size.width / _DPI, size.height / _DPI), _DPI, layout="constrained")
        draw(figure, size)
        drawn = io.BytesIO()
        figure.savefig(drawn, format="svg", transparent=True, metadata={"Date": None})
    return _inlined(drawn.getvalue(), f"{name}-{size.name}", label)


def open_axes(axes: Axes, ylabel: str = "") -> None:
    """Style axes with only horizontal lines and a base line."""
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.grid(visible=True, axis="y")
    axes.tick_params(length=0)
    axes.tick_params(axis="x", pad=6)
    axes.set_axisbelow(True)
    if ylabel:
        axes.set_ylabel(ylabel)


def _inlined(drawn: bytes, name: str, label: str) -> str:
    ET.register_namespace("", _SVG)
    root = ET.fromstring(drawn)  # noqa: S314 - matplotlib has just written it
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in {f"{{{_SVG}}}metadata", f"{{{_SVG}}}style"}:
                parent.remove(child)
    referenced = set(_REFERENCE.findall(drawn.decode()))
    referenced |= {link.removeprefix("#") for e in root.iter() if (link := e.get(_LINK))}
    for element in root.iter():
        _isolate(element, name, referenced)
    for attribute in ("width", "height", "version"):
        root.attrib.pop(attribute, None)
    root.set("role", "img")
    root.set("aria-label", label)
    root.set("class", name.rpartition("-")[2])
    root.set("stroke-linejoin", "round")
    text = " ".join(ET.tostring(root, encoding="unicode").split())
    text = text.replace(f' xmlns="{_SVG}"', "", 1)  # a page in HTML knows what SVG is
    for named, code in _CODES.items():
        text = text.replace(code, f"var({named})")
    return text


def _isolate(element: ET.Element, name: str, referenced: set[str]) -> None:
    identifier = element.attrib.pop("id", None)
    if identifier in referenced:
        element.set("id", f"{name}-{identifier}")
    for attribute, value in list(element.attrib.items()):
        if attribute == _LINK:
            element.attrib.pop(_LINK)
            element.set("href", f"#{name}-{value.removeprefix('#')}")
        elif attribute == "d":
            short = _DIGITS.sub(r"\1", value)
            element.set(attribute, " ".join(short.split()))
        elif "url(#" in value:
            element.set(attribute, _REFERENCE.sub(rf"url(#{name}-\1)", value))
        elif attribute == "style" and "font" in value:
            element.set(attribute, _TEXT_STYLE.sub(_size_alone, value))


def _size_alone(style: re.Match[str]) -> str:
    """Keep the size of a font, and drop its family: the page's font is used."""
    return f"font-size: {style[1]}{style[2]}" if style[1] else ""


_STYLE: Final = {
    "svg.fonttype": "none",
    "svg.hashsalt": "poste",
    "font.family": "DejaVu Sans",  # part of matplotlib, and wider than the fonts of pages
    "font.size": 11.5,
    "axes.labelsize": 11.5,
    "axes.titlesize": 12,
    "axes.titlelocation": "left",
    "axes.titlecolor": colour("--ink"),
    "axes.labelcolor": colour("--soft"),
    "axes.edgecolor": colour("--line"),
    "axes.unicode_minus": False,
    "text.parse_math": False,  # strangers' text is no formula
    "text.color": colour("--ink"),
    "xtick.color": colour("--line"),
    "ytick.color": colour("--line"),
    "xtick.labelcolor": colour("--soft"),
    "ytick.labelcolor": colour("--soft"),
    "xtick.labelsize": 11.5,
    "ytick.labelsize": 11.5,
    "grid.color": colour("--line"),
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "legend.fontsize": 11.5,
    "legend.borderpad": 0,
    "legend.borderaxespad": 0.2,
    "legend.handlelength": 1.0,
    "legend.handleheight": 0.8,
    "legend.columnspacing": 1.4,
    "lines.linewidth": 1.6,
    "path.simplify": True,
}
