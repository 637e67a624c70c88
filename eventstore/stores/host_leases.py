"""Opens the host leases of the log that a URL names."""

from __future__ import annotations

from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from eventstore.log.host_leases import LEASE_S, HostLeases
from eventstore.stores.host_lease_file import HostLeaseFile
from eventstore.stores.postgres_bounds import PostgresBounds

_BOUNDS: Final = PostgresBounds()
_FILE: Final = "-hosts"


def open_host_leases(
    dsn: str, postgres: PostgresBounds = _BOUNDS, *, lease_s: float = LEASE_S
) -> HostLeases:
    """The host leases of the log at this URL; the tables in PostgreSQL must exist.

    This opens no file or connection. ``postgres`` has the bounds that the leases do not set, and
    ``lease_s`` is the time of a lease in seconds: PostgreSQL has to answer in a quarter of it.
    """
    url = urlsplit(dsn)
    if url.scheme == "sqlite":
        log = Path(unquote(url.path)).absolute()
        return HostLeaseFile(log.with_name(log.name + _FILE))
    # Imported here, so that a process without PostgreSQL needs no driver.
    from eventstore.stores.postgres_host_leases import PostgresHostLeases  # noqa: PLC0415

    return PostgresHostLeases(dsn, postgres, lease_s=lease_s)
