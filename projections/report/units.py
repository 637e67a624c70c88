"""Formats counts, sizes, durations, times and DIDs for readers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import takewhile
from typing import Final

_SIZES: Final = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_THOUSANDS: Final = ("", "k", "M", "G", "T", "P", "E")
_LARGE: Final = 100
_DURATIONS: Final = (
    (86_400.0, "d", 2),
    (3_600.0, "h", 2),
    (60.0, "min", 2),
    (1.0, "s", 1),
    (0.001, "ms", 0),
)
"""The seconds of each unit, its name, and from how many of it on the unit is used."""
DASH: Final = "\N{EN DASH}"
"""Stands for a missing value, and between the ends of a range."""
_SHORT_MAX: Final = 26
"""Names up to this length are not shortened."""
_BEGIN_MAX: Final = 12
_END: Final = 8


def count(number: float) -> str:
    """``12,345``."""
    return f"{number:,.0f}"


def short_count(number: float) -> str:
    """``12k``, for the ticks of an axis."""
    step = 0
    while abs(number) >= 1_000 and step < len(_THOUSANDS) - 1:  # noqa: PLR2004 - as said by k
        number, step = number / 1_000, step + 1
    return f"{number:.3g}{_THOUSANDS[step]}"


def size_step(bytes_max: float) -> tuple[float, str]:
    """The unit that suits sizes up to this one: its bytes and its name."""
    step = 0
    while bytes_max >= 1_024 ** (step + 1) and step < len(_SIZES) - 1:
        step += 1
    return float(1_024**step), _SIZES[step]


def size(number: float) -> str:
    """``3.4 MiB``."""
    unit, name = size_step(abs(number))
    digits = 0 if unit == 1 or abs(number) / unit >= _LARGE else 1
    return f"{number / unit:.{digits}f}\u00a0{name}"


def duration_step(seconds_max: float) -> tuple[float, str]:
    """The unit that suits durations up to this one: its seconds and its name."""
    return next((s, name) for s, name, least in _DURATIONS if seconds_max >= least * s)


def duration(seconds: float | None, digits: int = 3) -> str:
    """``4.6 s``, with this many significant digits; a dash for None."""
    if seconds is None:
        return DASH
    unit, name = duration_step(seconds)
    shown = f"{seconds / unit:.{digits}g}"
    return f"{seconds / unit:.0f}\u00a0{name}" if "e" in shown else f"{shown}\u00a0{name}"


def bin_name(length_ms: int) -> str:
    """``hour`` or ``10 minutes``: the length of a bin in words."""
    for unit_ms, name in ((86_400_000, "day"), (3_600_000, "hour"), (60_000, "minute")):
        if length_ms % unit_ms == 0:
            number = length_ms // unit_ms
            return name if number == 1 else f"{number} {name}s"
    raise AssertionError(length_ms)


def utc(at_ms: int) -> datetime:
    """A time in UTC."""
    return datetime.fromtimestamp(at_ms / 1000, UTC)


def time(at: datetime) -> str:
    """``2030-12-31 23:59:59``, in UTC; with milliseconds if there are any."""
    at = at.astimezone(UTC).replace(tzinfo=None)
    return at.isoformat(" ", "milliseconds" if at.microsecond else "seconds")


def minute(at: datetime) -> str:
    """``2030-12-31 23:59``, in UTC."""
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M")


def printable(text: str) -> str:
    """A stranger's text with escapes for unprintable characters, so that a page can contain it.

    SVG with a NUL, or with most other control characters, is not well-formed.
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def short_names(names: Iterable[str]) -> dict[str, str]:
    """A short form of each name, all of them different, although DIDs of one method begin alike.

    A short form keeps the part in which names differ: their ends, else the text after their common
    beginning, else a number.
    """
    wanted = {name: printable(name) for name in names}
    long = list(dict.fromkeys(text for text in wanted.values() if len(text) > _SHORT_MAX))
    # The smallest and the largest name share exactly the beginning that all of them share.
    pairs = zip(min(long, default=""), max(long, default=""), strict=False)
    common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    for end in (_END, 2 * _END):
        found = {name: f"{_beginning(name)}…{name[-end:]}" for name in long}
        if len(set(found.values())) == len(long):
            break
    else:
        found = {name: f"{_beginning(name)}…{name[common : common + _END]}…" for name in long}
    shown = {name: found.get(text, text) for name, text in wanted.items()}
    taken = Counter(shown.values())
    return {
        name: short if taken[short] == 1 else f"{short[:-1]} {number}"
        for number, (name, short) in enumerate(shown.items(), start=1)
    }


def _beginning(name: str) -> str:
    """The beginning of a name; of a DID its method."""
    parts = name.split(":", 2)
    method = ":".join(parts[:2]) + ":" if len(parts) > 2 else name  # noqa: PLR2004 - did:method:id
    return method[:_BEGIN_MAX]
