"""One log line when a log begins to fail, and one when it takes writes again.

A full disk, or a database that is away, fails every transaction, which are many a second.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from eventstore.log.errors import LogError

_LOG = logging.getLogger(__name__)


class LogOutage:
    """Counts the failures of a log from the first one until an append succeeds."""

    def __init__(self) -> None:
        self._failures = 0

    def failed(self, what: str, error: LogError, request_ids: Sequence[str]) -> None:
        """Log a failure: as an error if the log worked before, else at debug level."""
        level = logging.DEBUG if self._failures else logging.ERROR
        _LOG.log(level, "%s: %s", what, type(error).__name__, extra={"request_ids": request_ids})
        self._failures += 1

    def appended(self) -> None:
        """Log the end of an outage, if there is one, with the number of its failures."""
        if self._failures:
            _LOG.warning("the log takes writes again", extra={"failures": self._failures})
            self._failures = 0
