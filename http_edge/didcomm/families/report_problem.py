"""What is told to us and needs no answer: problem reports and acknowledgements (RFC 0035, 0015).

A problem report is never answered with another one, or two agents that misunderstand each other
would never come to an end.
"""

from __future__ import annotations

from http_edge.didcomm.handling import NOTHING, Asked, Family, Outcome


def families() -> tuple[Family, Family]:
    """report-problem 1.0, and notification 1.0, under which agents send the same messages."""
    handlers = {"problem-report": _take, "ack": _take}
    roles = ("notifier", "notified")
    return (
        Family("report-problem", 1, (0,), roles, handlers),
        Family("notification", 1, (0,), roles, handlers),
    )


async def _take(_asked: Asked) -> Outcome:
    return NOTHING
