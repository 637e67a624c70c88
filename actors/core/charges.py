"""Charges for each sender's work, kept by the host of the sender's nonces, whatever the edge."""

from __future__ import annotations

from actors.core.cost import source_key
from actors.core.limits import HostLimits
from actors.core.rate_limits import RateLimit
from actors.core.refusals import Refusal
from actors.core.replies import Refused
from actors.core.submissions import Submission


class Charges:
    """The rate of each sender, in the units of ``actors.core.cost``."""

    def __init__(self, limits: HostLimits) -> None:
        self._rate = RateLimit(
            limits.per_sender_per_s, burst_s=limits.burst_s, keys_max=limits.keys_max
        )

    def refusal(self, submission: Submission, now_ms: int) -> Refused | None:
        """Charge a sender for its command; return a refusal with the wait if it sends too often.

        The host calls this after it has found the nonce to be new and before it uses the nonce up:
        a replay by another client costs the sender nothing, and the sender can repeat a refused
        command unchanged. Where another host has used it up (``PAID``), the gateway says otherwise.
        """
        if not submission.charge:
            return None
        wait_s = self._rate.take(submission.source, now_ms / 1000, submission.charge)
        return None if wait_s is None else Refused(Refusal.RATE_LIMITED, wait_s)

    def add_page(self, submission: Submission, units: float, now_ms: int) -> None:
        """Charge a sender for the page in its answer and for the search for it.

        Their cost (``actors.core.cost.page_cost``) is known only now.
        """
        if submission.charge and units:
            self._rate.charge(submission.source, now_ms / 1000, units)

    def add_page_beside(self, owner: str, units: float, now_ms: int) -> None:
        """Charge an identity for a page of its events that was read outside of a transaction."""
        self._rate.charge(source_key(owner), now_ms / 1000, units)
