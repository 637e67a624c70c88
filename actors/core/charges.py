"""Charges for each sender's work, kept by the host of the sender's nonces, whatever the edge."""

from __future__ import annotations

from typing import Final

from actors.core.commands import QuerySavedEvents
from actors.core.limits import HostLimits
from actors.core.rate_limits import RateLimit
from actors.core.refusals import Refusal
from actors.core.replies import Refused
from actors.core.submissions import Submission

_PAUSE_S_MAX: Final = 600.0
"""Beyond what the most expensive query costs by default, 80,000 units at 200 a second."""


class Charges:
    """The rate of each sender, in the units of ``actors.core.cost``."""

    def __init__(self, limits: HostLimits) -> None:
        self._rate = RateLimit(
            limits.per_sender_per_s, burst_s=limits.burst_s, keys_max=limits.keys_max
        )
        self._per_s = limits.per_sender_per_s
        self._owed_max = self._per_s * limits.burst_s
        self._pauses: dict[bytes, float] = {}
        """Until when, in seconds, these identities query no history. Few: each has kept the one
        thread for histories busy for a good part of a second, and pauses for twenty times that."""

    def refusal(self, submission: Submission, now_ms: int) -> Refused | None:
        """Charge a sender for its command; return a refusal with the wait if it sends too often.

        The host calls this after it has found the nonce to be new and before it uses the nonce up:
        a replay by another client costs the sender nothing, and the sender can repeat a refused
        command unchanged. Where another host has used it up (``PAID``), the gateway says otherwise.
        """
        if not submission.charge:
            return None
        if isinstance(submission.command, QuerySavedEvents):
            pause_s = self.pause_s(submission.source, now_ms)
            if pause_s:
                return Refused(Refusal.RATE_LIMITED, pause_s)
        wait_s = self._rate.take(submission.source, now_ms / 1000, submission.charge)
        return None if wait_s is None else Refused(Refusal.RATE_LIMITED, wait_s)

    def add_page(self, source: bytes, units: float, now_ms: int) -> None:
        """Charge a sender for a page in its answer and for the search for it.

        Their cost (``page_cost`` and ``history_cost`` in ``actors.core.cost``) is known only now.
        """
        self._rate.charge(source, now_ms / 1000, units)

    def pause(self, source: bytes, units: float, now_ms: int) -> None:
        """Let a sender query no history until it would have paid what it cannot owe.

        Its other commands wait for no more than a bucket: a sender may owe no more of those.
        """
        if units > self._owed_max > 0:
            left_s = self.pause_s(source, now_ms) + (units - self._owed_max) / self._per_s
            pauses = {one: ends for one, ends in self._pauses.items() if self.pause_s(one, now_ms)}
            self._pauses = {**pauses, source: now_ms / 1000 + min(left_s, _PAUSE_S_MAX)}

    def pause_s(self, source: bytes, now_ms: int) -> float:
        """The seconds for which a sender has to query no history; any thread may call this."""
        left_s = self._pauses.get(source, 0.0) - now_ms / 1000
        return left_s if 0 < left_s <= _PAUSE_S_MAX else 0.0
