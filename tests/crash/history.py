"""What clients saw of a mediator that was killed again and again, and what must hold of it.

The promises are checked on sets and sequences, not on counts: an acknowledged message is delivered
with its bytes; an acknowledged removal stays; a message whose outcome is unknown is there once or
not at all; one writer's messages keep their order.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

_NUMBER: Final = re.compile(r"^\d+")


@dataclass
class History:
    """Everything that happened between one writer and one reader."""

    sent: dict[str, bytes] = field(default_factory=dict)
    """Signed command by payload, noted before it was sent."""
    accepted: dict[str, str] = field(default_factory=dict)
    """Payload by message id, as the mediator acknowledged it."""
    unknown: set[str] = field(default_factory=set)
    """Payloads whose outcome the writer never learnt."""
    delivered: dict[str, str] = field(default_factory=dict)
    """Payload by message id, as the reader received it."""
    removed: set[str] = field(default_factory=set)
    """Ids whose removal the mediator acknowledged."""
    violations: list[str] = field(default_factory=list)

    def saw_page(self, removed_before: set[str], page: list[tuple[str, str]]) -> None:
        """A page of (id, payload); ``removed_before`` was acknowledged before it was asked for."""
        for message_id, payload in page:
            if message_id in removed_before:
                self.violations.append(f"{message_id} came back after its removal")
            if self.delivered.setdefault(message_id, payload) != payload:
                self.violations.append(f"{message_id} changed its bytes")
        numbers = [_number(payload) for _, payload in page]
        if numbers != sorted(numbers):
            self.violations.append(f"out of order: {numbers}")

    def check(self) -> list[str]:
        """What does not hold, after the queue was drained."""
        found = list(self.violations)
        found += [
            f"lost: {_number(payload)}, acknowledged as {message_id}"
            for message_id, payload in self.accepted.items()
            if self.delivered.get(message_id) != payload
        ]
        times = Counter(self.delivered.values())
        found += [f"duplicated: {_number(payload)}" for payload, n in times.items() if n > 1]
        found += [f"invented: {payload[:20]}" for payload in times if payload not in self.sent]
        known = set(self.accepted.values()) | self.unknown
        found += [f"refused and yet delivered: {_number(p)}" for p in times if p not in known]
        return found


def _number(payload: str) -> int:
    match = _NUMBER.match(payload)
    assert match is not None
    return int(match[0])
