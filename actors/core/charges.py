"""What senders are charged for their work at the host that has their nonces, whatever the edge."""

from __future__ import annotations

from actors.core.commands import Submission
from actors.core.cost import page_cost, source_key
from actors.core.decision import ContractRefs, Refs
from actors.core.limits import HostLimits
from actors.core.rate_limits import RateLimit
from actors.core.refusals import Refusal
from actors.core.replies import Refused, Reply


class Charges:
    """The rate of each sender, in the units of ``actors.core.cost``."""

    def __init__(self, limits: HostLimits) -> None:
        """No sender was charged yet."""
        self._rate = RateLimit(
            limits.per_sender_per_s, burst_s=limits.burst_s, keys_max=limits.keys_max
        )

    def refusal(self, submission: Submission, now_ms: int) -> Refused | None:
        """Charge a sender for its command; when it may send it, if that is not now.

        Asked once its nonce was found to be new, and before it is used up: a replay by another
        client spends nothing of the sender's rate, and what is over it can be sent again as it is.
        """
        if not submission.charge:
            return None
        wait_s = self._rate.take(submission.source, now_ms / 1000, submission.charge)
        return None if wait_s is None else Refused(Refusal.RATE_LIMITED, wait_s)

    def add_page(self, submission: Submission, reply: Reply | Refs, now_ms: int) -> None:
        """Charge a sender for the page that it gets, if any, and for the search for it.

        What they cost was not known before.
        """
        if submission.charge and isinstance(reply, Refs):
            looked_at = reply.looked_at if isinstance(reply, ContractRefs) else 0
            units = page_cost(len(reply.versions), reply.size_bytes, looked_at)
            self._rate.charge(submission.source, now_ms / 1000, units)

    def add_page_beside(self, owner: str, units: float, now_ms: int) -> None:
        """Charge an identity for a page of its events that was read beside its commands."""
        self._rate.charge(source_key(owner), now_ms / 1000, units)
