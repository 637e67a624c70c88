"""One log line when a log begins to fail, and one when it works again.

A full disk, or a database that is away, fails every transaction, which are many a second.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from eventsourcing.persistence import StoredEvent

from actors.host.clock import Clock
from eventstore.log.batch import batch_bytes
from eventstore.log.errors import LogError, LogUnavailable, NoRoom
from eventstore.log.events import Event

_LOG = logging.getLogger(__name__)
_SETTLED_MS: Final = 60_000
"""A full disk that takes something, and has refused nothing for so long, has room again."""


def reason(error: Exception) -> str:
    """The type of an error and, if it is one of the log, its first line.

    After that line a database may quote what was to be stored, and any other error may anywhere.
    """
    kind = type(error).__name__
    if not isinstance(error, LogError):
        return kind
    return f"{kind}: {next(iter(str(error).splitlines()), '')}"


class LogOutage:
    """Counts the failures of a log from the first one until the log works again.

    Only a command shows that. Any does: after a failed append its partition is claimed by the next
    command, which is an append.
    """

    def __init__(self, clock: Clock) -> None:
        """A log that works; ``clock`` tells Unix milliseconds."""
        self._clock = clock
        self._failures = 0
        self._is_of_writes = False
        self._refused_bytes = 0
        """What a full disk refused last, less what it has taken since."""
        self._refused_ms = 0

    @property
    def is_on(self) -> bool:
        """Has the log failed, and not worked since? For any thread."""
        return self._failures > 0

    def failed(self, what: str, error: LogError, request_ids: Sequence[str]) -> None:
        """Log a failure: as an error if the log worked before, else at debug level."""
        level = logging.DEBUG if self._failures else logging.ERROR
        _LOG.log(level, "%s: %s", what, reason(error), extra={"request_ids": request_ids})
        self._failures += 1
        self._is_of_writes |= not isinstance(error, LogUnavailable)
        if isinstance(error, NoRoom):
            self._refused_bytes, self._refused_ms = error.size_bytes, self._clock()

    def stored(self, rows: Sequence[StoredEvent], events: Sequence[Event]) -> None:
        """As ``worked``, once a full disk has taken as much as it refused last, or refuses no more.

        It still has room for claims and acknowledgements between the messages that it refuses.
        """
        if self._failures:
            self._refused_bytes -= batch_bytes(rows, events)
            if not self._is_refusing:
                self._end()

    def worked(self, *, has_stored: bool) -> None:
        """Log the end of an outage, if there is one, with the number of its failures.

        An outage goes on if the log was only read, but has failed to store: so does a full disk.
        """
        may_end = has_stored and not self._is_refusing
        if self._failures and (may_end or not self._is_of_writes):
            self._end()

    @property
    def _is_refusing(self) -> bool:
        """May a disk still be too full for what it refused last?"""
        return self._refused_bytes > 0 and abs(self._clock() - self._refused_ms) < _SETTLED_MS

    def _end(self) -> None:
        _LOG.warning("the log works again", extra={"failures": self._failures})
        self._failures, self._is_of_writes, self._refused_bytes = 0, False, 0
