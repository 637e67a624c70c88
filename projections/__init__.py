"""Projections of the exported log, rebuilt separately from the live system.

``projections.open`` opens them for a notebook: see ``projections.analysis.opening``.
"""

from projections.analysis.opening import Opened, open  # noqa: A004 - as gzip.open

__all__ = ["Opened", "open"]
