"""The check that names are gone from rows only where who they named was erased.

A digest may stand in place of a name in the stream of an identity that was erased, of which the
log says so (``events.IdentityErased``); elsewhere where it is the digest of such an identity, and
beside that in the streams of what it took: its keys and invitations. A key that was released says
no more than its stream, and may be gone.

Memory: one entry for each stream that has rows without names, and for each such identity in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from uuid import UUID

from eventstore.log.event_log import ANY_VERSION, EventLog, LogRow
from eventstore.log.events import (
    TOPIC_BY_TYPE,
    ContractStored,
    IdentityErased,
    InvitationUsed,
    KeyClaimed,
    KeyReleased,
)
from eventstore.log.faults import Fault, Finding, finding
from eventstore.log.redaction import STREAM_BYTES, erased_names
from eventstore.log.streams import ERASED

ERASURE: Final = TOPIC_BY_TYPE[IdentityErased]
"""The topic of the rows that say so."""
_RELEASED: Final = TOPIC_BY_TYPE[KeyReleased]
_NAMING_OWNER: Final = {
    TOPIC_BY_TYPE[KeyClaimed]: ("owner_did",),
    TOPIC_BY_TYPE[InvitationUsed]: ("by_did",),
    TOPIC_BY_TYPE[ContractStored]: ("requestor_did", "recipient_did"),
}
"""The fields that say whose it was, where all names may be gone because of that."""


class NameCheck:
    """One pass over rows in the order of the log.

    Attributes:
        erased: the streams (16 bytes each) of the identities that rows say to be erased.
        gone: a row that has lost a name, by its stream and the digest in place of the name.
    """

    def __init__(self) -> None:
        self.erased: set[bytes] = set()
        self.gone: dict[tuple[bytes, bytes], LogRow] = {}

    def take(self, row: LogRow) -> None:
        """Note what the next row says of names."""
        if row.topic == ERASURE:
            self.erased.add(row.stream)
            return
        names = {} if row.topic == _RELEASED else erased_names(row.topic, row.state)
        fields = [field for field in _NAMING_OWNER.get(row.topic, ()) if field in names]
        digests = [one for field in fields or names for one in names[field]]
        place = LogRow(row.position, row.stream, row.version, row.topic, b"")
        for digest in digests:
            self.gone.setdefault((row.stream, digest), place)

    def take_name(self, row: LogRow, identity: str | None) -> None:
        """Note what an export calls the identity of a row, if that is no name any more."""
        if identity is not None and identity.startswith(ERASED):
            self.gone.setdefault((row.stream, row.stream), row)


def missing_name(row: LogRow, digest: bytes) -> Finding:
    """What is wrong with a row that has lost a name of who was not erased."""
    why = f"a name is gone, and no row says that {digest.hex()} was erased"
    return finding(Fault.MISSING_NAME, row, why)


def missing_names(check: NameCheck, log: EventLog) -> Iterator[Finding]:
    """The rows of a log that have lost a name of who was not erased, by a check of its rows.

    Raises:
        LogUnavailable: the log cannot be read.
    """
    for (stream, digest), row in check.gone.items():
        if not any(_is_erased(check, one, log) for one in (stream, digest)):
            yield missing_name(row, digest)


def _is_erased(check: NameCheck, stream: bytes, log: EventLog) -> bool:
    """What was erased since the check began the log says by now."""
    if stream in check.erased or len(stream) != STREAM_BYTES:
        return stream in check.erased
    return bool(log.stream_rows(UUID(bytes=stream), until=ANY_VERSION, topics={ERASURE}))
