"""The log as tools open it, which only read: one database of it, as the settings say."""

from __future__ import annotations

from eventstore.log import EventLog
from eventstore.open_log import open_log
from http_edge.config import Settings


def opened_to_read(settings: Settings) -> EventLog:
    """The log, or its first database; see ``Settings.each_database``.

    Reading asks nothing of the store's durability.

    Raises:
        LogError: as ``eventstore.open_log.open_log``.
    """
    return open_log(settings.log_dsn, allow_unsafe=True, postgres=settings.postgres.bounds)
