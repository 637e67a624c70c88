"""Errors of the event log: every one is a ``LogError``; and the system's errors of a wrong path.

Nothing is imported from the library here: every command imports these errors.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Final

OF_WRONG_PATHS: Final = frozenset({
    errno.ENOENT, errno.EACCES, errno.EPERM, errno.EEXIST, errno.ENOTDIR, errno.EISDIR,
    errno.ELOOP, errno.ENAMETOOLONG,
})  # fmt: skip
"""The ``errno`` of an ``OSError`` that says of a path that it is wrong, before anything is done.

Not ``EROFS``: a disk that fails during the work becomes read-only.
"""


class LogError(Exception):
    """Base of all errors of the log; never raised itself."""


class AppendConflict(LogError):
    """Another writer stored one of these versions first; nothing of this batch was stored.

    Also raised if the seal that the batch follows is missing or another one stands in its place: a
    server lost it in a fail-over.

    The other writer can be this process, if it repeats an append whose outcome was unknown: look
    for the batch's own seal before believing the conflict.
    """


class AppendUnknown(LogError):
    """The store failed during the append: the batch may or may not have been stored."""


class NoRoom(AppendUnknown):
    """The disk of the store is full, at least for a batch of ``size_bytes``."""

    def __init__(self, why: str, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        super().__init__(why)


class AppendRefused(LogError):
    """The batch was refused before anything was written."""


class LogUnavailable(LogError):
    """Reading the log failed; nothing is known to be wrong with its content."""


class LockLost(LogUnavailable):
    """The advisory lock that this process held is no longer its own."""


class LogMissing(LogUnavailable):
    """There is no log at the place where one is to be read."""


class LogUnusable(LogUnavailable):
    """The database or its URL has to be corrected first: another try does not help."""


class LogFull(LogUnavailable):
    """The disk of the log, or of its database's temporary files, has no room for the work."""


class RowsLeft(LogUnavailable):
    """Rows left the log for its archive while it was being checked; check it again."""


class ReadTooLong(LogUnavailable):
    """A read was ended, because it took longer than it may."""


class ReadCancelled(LogUnavailable):
    """A standby cancelled a long read, to follow its primary, which has removed rows since."""


class LogDamaged(LogUnavailable):
    """The database cannot read its own file: bytes of it have changed, or are missing."""


class UnsafeLog(LogError):
    """The store's durability settings do not keep what an acknowledgement promises."""


class LogUnfinished(LogError):
    """A restore into this log has not come to its end: the log holds only a part of its rows."""


class LogOfLaterRelease(LogError):
    """A later release has written to the log, in a format that this release does not know."""


class ReadModelsMissing(LogError):
    """Tables that are made from the rows of the log are not there, or their rows are not.

    Attributes:
        tables: Their names.
    """

    def __init__(self, tables: Sequence[str]) -> None:
        self.tables = tables
        super().__init__(
            f"its tables {', '.join(tables)} are missing or empty; rebuild them from its rows with"
            " poste log rebuild-read-models"
        )


class NotComparable(LogError):
    """The store cannot hold temporary tables, with which those of the log would be compared.

    Or not for so long, because what is written meanwhile takes too much room.
    """


class LockedElsewhere(LogError):
    """Another process, on this machine or another, has the advisory lock."""


class WrongDatabase(LogError):
    """A database has another place in its log than the one where it is listed."""

    def __init__(self, place: int, what: str) -> None:
        """``place`` is where it is listed, from 0; ``what`` is what it is instead."""
        super().__init__(f"database {place} is {what}")


class ImportRefused(LogError):
    """This log must not be restored into: it holds something, or another restore took it over."""


class TargetHoldsLog(ImportRefused):
    """The target holds a whole log, perhaps by a restore that was interrupted at its end."""


class NotAsSealed(LogError):
    """Rows are not as they were sealed, or not in the order of their log."""

    def __init__(self, position: int, why: str) -> None:
        """``position`` is that of the row or seal that is wrong."""
        super().__init__(f"position {position} of the log: {why}")


class EndsTooEarly(NotAsSealed):
    """The position up to which a log is restored is before the end of its first transaction."""


class PageTooLarge(LogError):
    """The records of a page are more bytes than allowed; ask for a smaller page."""


class UnknownTopic(LogError):
    """A row names an event type that this release does not know."""


class CorruptRow(LogError):
    """A row's state does not decode as the type its topic names; says which row, and why."""

    def __str__(self) -> str:
        """Row and reason."""
        return ": ".join(self.args)


class ContentMissing(LogError):
    """The content of a fact is not in the log: it was erased, or never stored."""


class SeamRefused(LogError):
    """The seam of a log cannot be read, or another key signed it."""


class RowsStay(LogError):
    """Rows cannot leave for the archive now; the message says why. Nothing of this step is done."""


class TurnLost(RowsStay):
    """Another process was first to let rows leave; it continues, and nothing is wrong."""

    def __init__(self) -> None:
        super().__init__("another process is moving rows to the archive")
