"""What a host tells whoever collects the measures of a mediator.

A report must come while the host is in trouble, most of all then: neither a writer that waits for
the log nor a log that does not answer may keep it back. What cannot be had in time is left out, or
is told as it was the last time.
"""

from __future__ import annotations

import contextlib
from concurrent.futures import Future, ThreadPoolExecutor

import msgspec

from actors.host_stats import HostStats
from actors.measures import HostMeasures, ProcessUse
from eventstore.errors import LogError
from eventstore.log import EventLog, LogFigures


class HostReport(msgspec.Struct, kw_only=True):
    """Everything about one host; ``log`` is None if nobody asked for it or it did not answer."""

    stats: HostStats
    measures: HostMeasures
    use: ProcessUse
    log: LogFigures | None = None


class LogWatch:
    """Asks a log for its figures, one question at a time, and waits for no answer for long."""

    def __init__(self, log: EventLog) -> None:
        """A watch that has asked nothing yet."""
        self._log = log
        self._asking = ThreadPoolExecutor(max_workers=1, thread_name_prefix="log-watch")
        self._asked: Future[LogFigures] | None = None

    def figures(self, seconds_max: float) -> LogFigures | None:
        """The figures, or None when the log fails or takes longer."""
        # A question that was given up is still under way: its answer is as good as a new one's.
        asked = self._asked = self._asked or self._asking.submit(self._log.figures)
        with contextlib.suppress(TimeoutError):
            asked.exception(seconds_max)
        if not asked.done():
            return None
        self._asked = None
        return asked.result() if not isinstance(asked.exception(), LogError) else None

    def close(self) -> None:
        """Wait for the question that is under way, and ask no more."""
        self._asking.shutdown(cancel_futures=True)
