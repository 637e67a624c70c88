"""The read model of dedicated identities: those that are partitions of their own.

An append that dedicates or releases an identity writes this table in the same transaction: the
placer finds all dedicated identities without reading the log.
"""

from __future__ import annotations

from uuid import UUID

from eventstore.log.event_log import DedicatedIdentity
from eventstore.log.events import IdentityDedicated
from eventstore.log.session import Session


def dedicate(session: Session, stream: UUID, event: IdentityDedicated) -> None:
    """Record that an identity is dedicated, and why."""
    session.run_many(
        "INSERT INTO dedicated (stream, did, reason) VALUES (?, ?, ?)"
        " ON CONFLICT (stream) DO UPDATE SET did = excluded.did, reason = excluded.reason",
        [(stream.bytes, event.did.encode(), event.reason.encode())],
    )


def release(session: Session, stream: UUID) -> None:
    """Record that an identity is no longer dedicated."""
    session.run_many("DELETE FROM dedicated WHERE stream = ?", [(stream.bytes,)])


def every(session: Session) -> list[DedicatedIdentity]:
    """The identities that are dedicated, in the order of their DIDs."""
    found = session.rows("SELECT did, reason FROM dedicated ORDER BY did")
    return [DedicatedIdentity(bytes(did).decode(), bytes(why).decode()) for did, why in found]
