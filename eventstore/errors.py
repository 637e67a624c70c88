"""Errors of the event log.

LogError
├── AppendConflict   another writer stored one of these versions; nothing of the batch was stored
├── AppendUnknown    the store failed: the batch may or may not have been stored
├── AppendRefused    refused before anything was written (cannot be encoded, too large)
├── LogUnavailable   reading failed; try again
├── UnsafeLog        the store's durability settings are not what acknowledgements rest on
├── UnknownTopic     a row names an event type that this release does not know
└── CorruptRow       a row's state does not decode
"""


class LogError(Exception):
    """Base of all errors of the log; never raised itself."""


class AppendConflict(LogError):
    """Another writer stored one of these versions first; nothing of this batch was stored.

    The other writer can be this one, if an append whose outcome was unknown is made again: look
    for the batch's own seal before believing the conflict.
    """


class AppendUnknown(LogError):
    """The store failed during the append: the batch may or may not have been stored."""


class AppendRefused(LogError):
    """The batch was refused before anything was written."""


class LogUnavailable(LogError):
    """Reading the log failed; nothing is known to be wrong with its content."""


class UnsafeLog(LogError):
    """The store's durability settings do not keep what an acknowledgement promises."""


class UnknownTopic(LogError):
    """A row names an event type that this release does not know."""


class CorruptRow(LogError):
    """A row's state does not decode as the type its topic names."""
