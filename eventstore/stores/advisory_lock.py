"""An advisory lock in the database of a log: one process at a time, over all machines.

In PostgreSQL the lock belongs to a session: the server releases it when the connection ends, even
if the process or its machine failed. A log in SQLite is a file of one machine, where file locks do
the same. The process that has the lock checks it before each change that only one process may make.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Final, TypeAlias

from msgspec.structs import replace

from eventstore.log.errors import LockedElsewhere, LockLost, LogUnavailable
from eventstore.stores.postgres_bounds import PostgresBounds

if TYPE_CHECKING:
    from eventstore.stores.postgres_connections import BoundedConnection

_KEEPALIVES: Final = 3
_RELEASE_S_MAX: Final = 1.0
"""A server that hangs holds up the end of the process no longer; it ends the session by itself."""

Check: TypeAlias = Callable[[], None]
"""Raises ``LockLost`` if the lock was lost, or if that cannot be found out."""


@contextmanager
def advisory_lock(dsn: str, name: str, postgres: PostgresBounds) -> Iterator[Check]:
    """Hold the lock of this name in the database at this URL for the time of the block.

    Raises:
        LockedElsewhere: another process has it.
        LogUnavailable: the database cannot be reached, or its server is a standby.
    """
    if dsn.startswith("sqlite:"):
        yield lambda: None
        return
    # A log in SQLite needs none of it.
    from psycopg import Error  # noqa: PLC0415

    from eventstore.stores.postgres_connections import connected  # noqa: PLC0415

    with closing(connected(dsn, replace(postgres, at_primary=True))) as connection:
        try:
            is_ours = _taken(connection, name, postgres)
        except Error as error:
            raise LogUnavailable(f"PostgreSQL: {error}") from error
        if not is_ours:
            raise LockedElsewhere(name)

        def check() -> None:
            # A session that answers still has its locks.
            try:
                connection.execute("SELECT 1")
            except Error as error:
                why = next(iter(str(error).splitlines()), "")
                raise LockLost(f"PostgreSQL: the advisory lock was lost: {why}") from error

        try:
            yield check
        finally:
            # The server ends a session some time after its connection, and its locks with it.
            connection.answer_s_max = _RELEASE_S_MAX
            with suppress(Error):
                connection.execute("SELECT pg_advisory_unlock_all()")


def _taken(connection: BoundedConnection, lock: str, bounds: PostgresBounds) -> bool:
    """Take the lock, if it is free, in a session that the server ends soon after a silent peer."""
    each_s = max(1, round(bounds.idle_s_max / _KEEPALIVES))
    for name, value in (
        ("tcp_keepalives_idle", each_s),
        ("tcp_keepalives_interval", each_s),
        ("tcp_keepalives_count", _KEEPALIVES - 1),
    ):
        connection.execute("SELECT set_config(%s, %s, false)", (name, str(value)))
    key = int.from_bytes(hashlib.sha256(lock.encode()).digest()[:8], "big", signed=True)
    found = connection.execute("SELECT pg_try_advisory_lock(%s) AS taken", (key,)).fetchone()
    return found is not None and bool(found["taken"])
