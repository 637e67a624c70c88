"""Reads the ``Retry-After`` of a mediator, for both client libraries."""

from __future__ import annotations


def retry_after_s(header: str | None) -> float | None:
    """Seconds in a ``Retry-After`` header; None for its date form: clocks may differ."""
    if header is None or not header.strip().isdecimal():
        return None
    return float(header)
