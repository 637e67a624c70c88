"""The check of the part of a log before its seam: the rows that stayed, and the states.

Seals prove nothing there, because some of the rows that they cover have left. The seam proves that
part instead (``eventstore.log.seam``).

Memory: one integer for each stream.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from itertools import takewhile

from eventstore.log.codec import decode_seal
from eventstore.log.errors import CorruptRow
from eventstore.log.event_log import LogReader, LogRow
from eventstore.log.events import SEAL_TOPIC
from eventstore.log.faults import Fault, Finding, Head, finding
from eventstore.log.seam import Seam, Sum, row_entry, state_entry


class SeamCheck:
    """One pass over the rows up to the seam.

    Attributes:
        versions: the last version of each stream (16 bytes) before the seam.
    """

    def __init__(self, log: LogReader, seam: Seam) -> None:
        self.versions: dict[bytes, int] = {}
        self._log = log
        self._seam = seam
        self._stayed = Sum()
        self._left: dict[bytes, int] = {}
        """The greatest version that has left, for each stream other than those of seals."""

    def take(self, row: LogRow) -> Iterator[Finding]:
        """Check the next row, which stands before the seam."""
        last = self.versions.get(row.stream, 0)
        if row.version <= last:
            yield finding(Fault.VERSION_BREAK, row, f"comes after version {last} of its stream")
        elif row.version > last + 1 and row.topic != SEAL_TOPIC:
            self._left[row.stream] = row.version - 1
        self.versions[row.stream] = max(row.version, last)
        try:
            self._stayed = self._stayed.plus([row_entry(row, self._seam.whole_to)])
        except (TypeError, ValueError, AttributeError, struct.error):
            return  # a column that does not hold its type is reported already, and the sum differs

    def join(self, begins: Mapping[bytes, LogRow]) -> Iterator[Finding]:
        """Check the first row of each stream behind the seam against what stands before it."""
        for stream, row in begins.items():
            last = self.versions.get(stream, 0)
            if row.topic == SEAL_TOPIC:
                expected = self._next_seal(row)
                if row.version != expected:
                    yield finding(Fault.VERSION_BREAK, row, f"version {expected} should stand here")
            elif row.version <= last or (not last and row.version != 1):
                yield finding(Fault.VERSION_BREAK, row, f"version {last + 1} should stand here")
            elif row.version > last + 1:
                self._left[stream] = row.version - 1

    def end(self) -> Iterator[Finding]:
        """Compare the rows and states that were read with the sums of the seam.

        Raises:
            LogUnavailable: the log cannot be read.
        """
        seam = self._seam
        if self._stayed != seam.stayed:
            why = (
                f"{self._stayed.number} rows are here, but {seam.stayed.number} were signed"
                " as staying"
            )
            if self._stayed.number == seam.stayed.number:
                why = f"some of the {seam.stayed.number} rows that stayed were changed"
            yield self._whole(Fault.WRONG_REST, why)
        found, states = Sum(), dict[bytes, int]()
        for stream, state in self._log.archived_states():
            if state is not None:
                found = found.plus([state_entry(stream, state)])
                states[stream.bytes] = state.version
        if found != seam.states:
            why = f"{found.number} states are here, but {seam.states.number} were signed"
            yield self._whole(Fault.MISSING_STATE, why)
        for stream_key, version in self._left.items():
            known = states.get(stream_key, 0)
            if known < version:
                row = LogRow(seam.position, stream_key, version, "", b"")
                why = f"versions up to {version} have left, but its state is of version {known}"
                yield finding(Fault.MISSING_STATE, row, why, first_position=1)

    def _next_seal(self, row: LogRow) -> int:
        try:
            sealed = decode_seal(row.state)
        except CorruptRow:
            return row.version  # reported already
        head = self._seam.heads.get(sealed.partition)
        return 1 if head is None else head.version + 1

    def _whole(self, fault: Fault, why: str) -> Finding:
        row = LogRow(self._seam.position, bytes(16), 0, "", b"")
        return finding(fault, row, why, first_position=1)


def older_than(seam: Seam, known: Mapping[str, Head]) -> dict[str, Head]:
    """The known heads that are older than those of the seam, and so may have left."""
    return {
        name: head
        for name, head in known.items()
        if name in seam.heads and head.version < seam.heads[name].version
    }


def check_before(log: LogReader, seam: Seam) -> Iterator[Finding]:
    """Check only the part of a log before its seam.

    Raises:
        LogUnavailable: the log cannot be read.
    """
    check = SeamCheck(log, seam)
    for row in takewhile(lambda one: one.position <= seam.position, log.rows_after(0)):
        yield from check.take(row)
    yield from check.end()
