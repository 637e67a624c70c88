"""How long a mediator asks to wait before the next try, as both client libraries read it."""

from __future__ import annotations


def retry_after_s(header: str | None) -> float | None:
    """Seconds in a ``Retry-After`` header; None for its date form, which clocks make unsure."""
    if header is None or not header.strip().isdecimal():
        return None
    return float(header)
