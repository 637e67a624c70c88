"""The check that contents are there until a row erases them, and no longer.

A content that is not in the log was erased if a later row erases it (``event_contents.ERASING``),
and is missing otherwise. A content whose row is not there, because it left for the archive, for
example, is a finding too.

Memory: one entry for each content that is not there, until the row that erased it is read: as many
as messages waited at the same time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final
from uuid import UUID

from eventstore.log.codec import decode_or_none
from eventstore.log.event_contents import ERASING, content_of
from eventstore.log.event_log import LogReader, LogRow
from eventstore.log.events import Event
from eventstore.log.faults import Fault, Finding, finding

_FIRST: Final = -(2**63)
_LAST: Final = 2**63 - 1
_PAGE_ROWS: Final = 256
_PAGE_BYTES: Final = 8 * 1024 * 1024
"""The contents in memory at once are at most these bytes and one content."""


class ContentCheck:
    """One pass over the rows of a log, from the first."""

    def __init__(self, log: LogReader) -> None:
        """Prepare the check of a log; others may append to it meanwhile."""
        self._log = log
        self._contents: dict[int, bytes] = {}
        self._until, self._read_to = 0, _FIRST
        self._missing: dict[tuple[bytes, int], LogRow] = {}

    def begin_page(self, until: int) -> None:
        """Begin the next rows, up to the position ``until``."""
        self._until = until

    def take(self, row: LogRow, event: Event | None) -> Iterator[Finding]:
        """Check the contents that the next row has or erases, if its event can be understood.

        Raises:
            LogUnavailable: the log cannot be read.
        """
        while row.position > self._read_to:
            yield from self._strays(self._contents)
            self._read()
        stored = self._contents.pop(row.position, None)
        if event is None:
            return
        fact = content_of(event)
        if fact is None:
            if stored is not None:
                yield finding(Fault.WRONG_CONTENT, row, "a content that the row does not name")
            if isinstance(event, ERASING):
                yield from self._erased(row, event.versions)
        elif stored is None:
            place = LogRow(row.position, row.stream, row.version, row.topic, b"")
            self._missing[row.stream, row.version] = place
        elif not fact.is_of(stored):
            yield finding(Fault.WRONG_CONTENT, row, "the content differs from the stored one")

    def end(self, reached: int) -> Iterator[Finding]:
        """Report missing contents, and contents behind the last row, ``reached``.

        Left out are contents that were erased, or whose rows were appended, since it was read.

        Raises: as ``take``.
        """
        behind = set(self._contents)
        self.begin_page(_LAST)
        while self._read_to < _LAST:
            self._read()
            behind.update(self._contents)
        while (behind or self._missing) and (
            page := self._log.read_log(after=reached, limit=_PAGE_ROWS)
        ):
            behind.difference_update(row.id for row in page)
            for row in page:
                event = decode_or_none(row.topic, row.state)
                if isinstance(event, ERASING) and isinstance(row.originator_id, UUID):
                    for version in event.versions:
                        self._missing.pop((row.originator_id.bytes, version), None)
            reached = page[-1].id
        yield from self._strays(sorted(behind))
        for place in self._missing.values():
            yield finding(
                Fault.MISSING_CONTENT, place, "no row records that its content was erased"
            )

    def _strays(self, positions: Iterable[int]) -> Iterator[Finding]:
        """Report the contents at these positions, which no row has taken."""
        for position in positions:
            place = LogRow(position, bytes(16), 0, "", b"")
            yield finding(Fault.WRONG_CONTENT, place, "a content whose row is not there")

    def _read(self) -> None:
        after, until = self._read_to, self._until
        found = self._log.read_contents(after=after, until=until, bytes_max=_PAGE_BYTES)
        is_cut = sum(map(len, found.values())) >= _PAGE_BYTES
        self._contents, self._read_to = found, max(found) if is_cut else self._until

    def _erased(self, row: LogRow, versions: Sequence[int]) -> Iterator[Finding]:
        left = [v for v in versions if self._missing.pop((row.stream, v), None) is None]
        if not left:
            return
        # They were there when their rows were read, or stand in rows of old types: look again.
        stream = UUID(bytes=row.stream)
        for version, (_, content) in self._log.read_records({stream: left})[stream].items():
            if content is not None:
                why = f"the content of version {version} of its stream still exists"
                yield finding(Fault.WRONG_CONTENT, row, why)
