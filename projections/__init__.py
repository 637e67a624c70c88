"""Projections of the exported log, rebuilt separately from the live system.

``projections.open`` opens them for a notebook: see ``projections.analysis.opening``.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from projections.analysis.opening import Opened, open  # noqa: A004 - as gzip.open

__all__ = ["Opened", "open"]


def __getattr__(name: str) -> Any:
    """``Opened`` and ``open``, imported at their first use: the programs do not need them."""
    if name not in __all__:
        raise AttributeError(name)
    from projections.analysis import opening  # noqa: PLC0415 - see above

    return getattr(opening, name)
