"""Limit of problem reports for one sender (DIDComm v2, circuit breaker).

A sender that answers every report with another invalid message would get reports for ever. After
``error_reports_max`` reports within ``error_reports_s``, it gets one last report, which says that
there were too many errors, and then none until some of that time is over. Valid messages are
answered all the while, and so are messages that need only be sent again.
"""

from __future__ import annotations

import msgspec

from actors.core.rate_limits import RateLimit
from http_edge.didcomm.protocols.problems import Problem, report_of
from http_edge.didcomm.protocols.protocol import Outcome
from http_edge.settings.settings import DidComm


class ReportLimit:
    """The problem reports of one edge, by the account that they are for."""

    def __init__(self, settings: DidComm) -> None:
        period_s, keys_max = settings.error_reports_s, settings.accounts_remembered_max
        per_s = settings.error_reports_max / period_s
        self._reports = RateLimit(per_s, burst_s=period_s, keys_max=keys_max)
        self._last = RateLimit(1 / period_s, burst_s=period_s, keys_max=keys_max)

    def limited(self, sender: str, refused: Outcome, now_s: float) -> Outcome | None:
        """Return the refusal with its own report or the last report; None if no report is due.

        ``now_s`` is Unix time.
        """
        if refused.reply is None or refused.to_retry is not None:
            return refused
        if self._reports.take(sender, now_s) is None:
            return refused
        if self._last.take(sender, now_s) is not None:
            return None
        last = report_of(Problem.TOO_MANY_ERRORS)
        return msgspec.structs.replace(refused, reply=last, may_wait=False)
