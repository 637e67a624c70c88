"""One log line when a log begins to fail, and one when it takes writes again.

A full disk, or a database that is away, fails every transaction, which are many a second.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Final

from eventstore.log.errors import LogError

_LOG = logging.getLogger(__name__)
_LASTS_S: Final = 10.0
"""How long a failure counts if no append follows: without commands none shows that it is over."""


def reason(error: Exception) -> str:
    """The type of an error and, if it is one of the log, its first line.

    After that line a database may quote what was to be stored, and any other error may anywhere.
    """
    kind = type(error).__name__
    if not isinstance(error, LogError):
        return kind
    return f"{kind}: {next(iter(str(error).splitlines()), '')}"


class LogOutage:
    """Counts the failures of a log from the first one until an append succeeds."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._failures = 0
        self._failed_s = 0.0

    @property
    def is_on(self) -> bool:
        """Has the log failed within the last seconds, and stored nothing since? For any thread."""
        return self._failures > 0 and self._monotonic() - self._failed_s < _LASTS_S

    def failed(self, what: str, error: LogError, request_ids: Sequence[str]) -> None:
        """Log a failure: as an error if the log worked before, else at debug level."""
        level = logging.DEBUG if self._failures else logging.ERROR
        _LOG.log(level, "%s: %s", what, reason(error), extra={"request_ids": request_ids})
        self._failures += 1
        self._failed_s = self._monotonic()

    def appended(self) -> None:
        """Log the end of an outage, if there is one, with the number of its failures."""
        if self._failures:
            _LOG.warning("the log takes writes again", extra={"failures": self._failures})
            self._failures = 0
