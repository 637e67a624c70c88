"""The log of a mediator, opened beside it, and the keys that sign statements about that log."""

from __future__ import annotations

from msgspec.structs import replace

from eventstore.log.event_log import EventLog, LogReader
from eventstore.log.public_key import PublicKey
from eventstore.parquet.errors import ExportRefused
from eventstore.stores.open_log import open_log
from http_edge.crypto.mediator_keys import MediatorKeys, load
from http_edge.crypto.private_files import KeyFileRefused
from http_edge.server.log_check import MEDIATOR_KEY
from http_edge.settings.settings import Settings


def opened_to_read(settings: Settings) -> EventLog:
    """Open the log, or its first database, for reading only; see ``Settings.each_database``.

    Raises:
        LogError: as ``eventstore.stores.open_log.open_log``.
    """
    return open_log(settings.log_dsn, to_read=True, postgres=settings.postgres.bounds)


def opened_to_export(settings: Settings) -> EventLog:
    """Open the log as ``opened_to_read``, and never at a standby.

    An export of it would be declared complete until a time of which the standby may lack events.
    """
    bounds = replace(settings.postgres.bounds, at_primary=True)
    return open_log(settings.log_dsn, to_read=True, postgres=bounds)


def keys_of(settings: Settings, log: LogReader) -> MediatorKeys:
    """The keys that sign statements about a log: those of the mediator whose log it is.

    Raises:
        ExportRefused: this mediator has no keys yet.
        KeyFileRefused: the keys cannot be used, or the log is of another mediator.
        LogUnavailable: the log cannot be read.
    """
    path = settings.keys_path
    if not path.exists():
        raise ExportRefused(f"there are no mediator keys at {path}")
    keys = load(path)
    own = PublicKey(keys.signing_public).text
    # A log that was restored by an earlier release, and was not served since, names none.
    known = log.settings().get(MEDIATOR_KEY, own)
    if known != own:
        raise KeyFileRefused(
            f"the log belongs to the mediator with the key {known}; {path} holds {own}"
        )
    return keys
