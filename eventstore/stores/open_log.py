"""Opens the log that a URL names, and the host leases of that log."""

from __future__ import annotations

from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from eventstore.log.errors import LogUnusable
from eventstore.log.event_log import EventLog
from eventstore.log.host_leases import LEASE_S, HostLeases
from eventstore.log.session import Store
from eventstore.stores.host_lease_file import HostLeaseFile
from eventstore.stores.postgres_bounds import PostgresBounds
from eventstore.stores.recorder_log import opened
from eventstore.stores.sqlite_log import open_sqlite_store

_BOUNDS: Final = PostgresBounds()
_LEASES: Final = "-hosts"
"""The end of the name of the file with the host leases, beside a log in SQLite."""


def open_log(
    dsn: str,
    *,
    allow_unsafe: bool = False,
    postgres: PostgresBounds = _BOUNDS,
    to_read: bool = False,
) -> EventLog:
    """Open the log at ``sqlite:///absolute/path.db`` or ``postgresql://user@host/database``.

    ``sqlite:relative/path.db`` is relative to the working directory. ``allow_unsafe`` accepts a
    PostgreSQL server that loses confirmed commits in a power cut; SQLite is always made safe.
    ``postgres`` bounds the connections to PostgreSQL; its URL may have every parameter of libpq
    (``?sslmode=verify-full&sslrootcert=...``), and several servers with commas between them.
    ``to_read``: the store need not be durable, may be read-only, and must have a log: none is made.

    Raises:
        LogUnavailable: the store cannot be opened.
        LogUnusable: the URL names no log, or the store needs a correction first.
        LogMissing: there is no log in it, with ``to_read``.
        LogUnfinished: a restore into it has not come to its end.
        LogOfLaterRelease: a later release has written to it.
        ReadModelsMissing: it has rows and lacks a table that is made from them.
        UnsafeLog: the store's durability settings are not what acknowledgements rest on.
    """
    return opened(open_store(dsn, allow_unsafe=allow_unsafe, postgres=postgres, to_read=to_read))


def file_of(dsn: str) -> Path | None:
    """The file of a log in SQLite; None for a log on a server, which has a disk of its own."""
    url = urlsplit(dsn)
    return Path(unquote(url.path)).absolute() if url.scheme == "sqlite" else None


def open_store(
    dsn: str,
    *,
    allow_unsafe: bool = False,
    postgres: PostgresBounds = _BOUNDS,
    makes_missing: bool = False,
    to_read: bool = False,
) -> Store:
    """Open the store of a log, whatever it holds.

    ``makes_missing``: accept a log that lacks read models; unless ``to_read``, make them, empty.

    Raises:
        LogMissing: there is no log in it, with ``to_read`` or ``makes_missing``.
        LogUnavailable, LogUnusable, ReadModelsMissing, UnsafeLog: as ``open_log``.
    """
    try:
        url = urlsplit(dsn)
    except ValueError as error:
        raise LogUnusable("not a URL") from error
    match url.scheme:
        case "sqlite" if url.path and not url.netloc:
            path = Path(unquote(url.path))
            return open_sqlite_store(path, makes_missing=makes_missing, to_read=to_read)
        case "postgresql" | "postgres":
            # Imported here, so that a process without PostgreSQL needs no driver.
            from eventstore.stores.postgres_log import PostgresStore  # noqa: PLC0415

            return PostgresStore(
                dsn,
                allow_unsafe=allow_unsafe or to_read,
                bounds=postgres,
                makes_missing=makes_missing,
                to_read=to_read,
            )
        case scheme:
            # The message leaves out the URL, which may hold a password.
            raise LogUnusable(f"not a log: {scheme or 'no scheme'}; use sqlite: or postgresql:")


def open_host_leases(
    dsn: str, postgres: PostgresBounds = _BOUNDS, *, lease_s: float = LEASE_S
) -> HostLeases:
    """The host leases of the log at this URL; the tables in PostgreSQL must exist.

    This opens no file or connection. ``postgres`` has the bounds that the leases do not set, and
    ``lease_s`` is the time of a lease in seconds: PostgreSQL has to answer in a quarter of it.
    """
    file = file_of(dsn)
    if file is not None:
        return HostLeaseFile(file.with_name(file.name + _LEASES))
    # Imported here, so that a process without PostgreSQL needs no driver.
    from eventstore.stores.postgres_host_leases import PostgresHostLeases  # noqa: PLC0415

    return PostgresHostLeases(dsn, postgres, lease_s=lease_s)
