"""The check that names are gone from rows only if the identity that they named was erased.

A digest may replace any name in the stream of an identity that the log says was erased
(``events.IdentityErased``). Elsewhere it may replace the names of such an identity, and with them
the other names in the event of a key, invitation or contract of that identity. The key in
``KeyReleased`` says no more than its stream, and may be gone in any case.

Memory: one entry for each stream that has rows without names, and for each such identity in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from uuid import UUID

from eventstore.log.event_log import LogReader, LogRow
from eventstore.log.events import (
    TOPIC_BY_TYPE,
    ContractStored,
    IdentityErased,
    InvitationUsed,
    KeyClaimed,
    KeyReleased,
)
from eventstore.log.faults import Fault, Finding, finding
from eventstore.log.redaction import erased_names
from eventstore.log.streams import ERASED, STREAM_BYTES

ERASURE: Final = TOPIC_BY_TYPE[IdentityErased]
"""The topic of the rows that say that an identity was erased."""
_RELEASED: Final = TOPIC_BY_TYPE[KeyReleased]
_NAMING_OWNER: Final = {
    TOPIC_BY_TYPE[KeyClaimed]: ("owner_did",),
    TOPIC_BY_TYPE[InvitationUsed]: ("by_did",),
    TOPIC_BY_TYPE[ContractStored]: ("requestor_did", "recipient_did"),
}
"""The fields that name an owner: all names of the event may be gone with its name."""


class NameCheck:
    """One pass over rows in the order of the log.

    Attributes:
        erased: the streams (16 bytes each) of the identities that rows say were erased.
        gone: a row that has lost a name, by its stream and the digest in place of the name.
    """

    def __init__(self) -> None:
        self.erased: set[bytes] = set()
        self.gone: dict[tuple[bytes, bytes], LogRow] = {}

    def take(self, row: LogRow) -> None:
        """Note the erasure or the missing names in the next row."""
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
        """Note the name that an export has for the identity of a row, if it is an erased one."""
        if identity is not None and identity.startswith(ERASED):
            self.gone.setdefault((row.stream, row.stream), row)


def missing_name(row: LogRow, digest: bytes) -> Finding:
    """The finding about a row that lost the name of an identity that was not erased."""
    why = f"a name is missing, but no row records the erasure of {digest.hex()}"
    return finding(Fault.MISSING_NAME, row, why)


def missing_names(check: NameCheck, log: LogReader) -> Iterator[Finding]:
    """Report the rows of a log that lost the name of an identity that was not erased.

    Raises:
        LogUnavailable: the log cannot be read.
    """
    for (stream, digest), row in check.gone.items():
        if not any(_is_erased(check, one, log) for one in (stream, digest)):
            yield missing_name(row, digest)


def _is_erased(check: NameCheck, stream: bytes, log: LogReader) -> bool:
    """Look in the check, and in the log for an erasure since the check began."""
    if stream in check.erased or len(stream) != STREAM_BYTES:
        return stream in check.erased
    return bool(log.stream_rows(UUID(bytes=stream), topics={ERASURE}))
