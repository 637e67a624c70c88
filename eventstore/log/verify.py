"""The proof that a log is as it was sealed: nothing changed, removed, added or moved.

Every transaction ends the rows of each partition with a seal (``eventstore.log.seal``) that chains
them to the partition's previous seal. One pass over the log in its order checks all of it.

The check cannot see that whole transactions are missing from the end of a partition, since a
chain has no mark of its end. Compare ``Summary.heads`` with heads kept elsewhere (the exporter's
signed manifest), or pass those as ``known_heads``.

Memory: one integer for each stream, one head for each partition, the rows of one transaction and
one page of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Final, TypeAlias

import msgspec
from eventsourcing.persistence import Notification

from eventstore.log.codec import decode_or_none
from eventstore.log.content_check import ContentCheck
from eventstore.log.errors import RowsLeft, SeamRefused
from eventstore.log.event_log import LogReader, LogRow
from eventstore.log.events import BatchSealed
from eventstore.log.faults import Fault, Finding, Head, finding
from eventstore.log.name_check import NameCheck, missing_names
from eventstore.log.public_key import PublicKey, PublicKeyRefused, read_public_key
from eventstore.log.row_check import RowCheck, is_well_formed, log_row, not_understood
from eventstore.log.seam import SEAM, Seam, read_seam, stored_seam, verified_seam
from eventstore.log.seam_check import SeamCheck, older_than
from eventstore.log.streams import partition_stream

PAGE_ROWS: Final = 256

Progress: TypeAlias = Callable[[int, int], None]
"""Called with the position reached and the position where the check ends."""


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a check: what was read, and the head of each partition's chain.

    ``seam`` is the position up to which rows have left, 0 for a log that is whole; ``left`` is how
    many. ``older_heads`` counts known heads that have left: the archive has them.
    """

    position: int
    rows: int
    seals: int
    streams: int
    findings: int
    heads: dict[str, Head]
    seam: int = 0
    left: int = 0
    older_heads: int = 0


def verify(
    log: LogReader,
    *,
    known_heads: Mapping[str, Head] | None = None,
    key: PublicKey | None = None,
    progress: Progress | None = None,
) -> Iterator[Finding | Summary]:
    """Check the log up to its present end; the last item is the ``Summary``.

    Args:
        log: the log to read; others may append meanwhile.
        known_heads: heads by partition from an earlier check or export; each must be found.
        key: the mediator's key, which must have signed the seam of a log that rows have left;
            without it the check accepts a seam by any key.
        progress: called after each page of rows.

    Raises:
        RowsLeft: rows left the log meanwhile; check it again.
        LogUnavailable: the log cannot be read.
    """
    one = _Verification(log, known_heads or {}, key)
    reached = findings = 0
    found: Sequence[Finding] = one.begin()
    while True:
        one.require_same_seam(found)
        findings += len(found)
        yield from found
        if reached >= one.end:
            break
        reached, found = one.page(reached)
        if progress:
            progress(reached, one.end)
    found = one.rest()
    one.require_same_seam(found)
    yield from found
    yield one.summary(findings + len(found))


class _Verification:
    """One check of a log: the part before its seam, if it has one, and what follows."""

    def __init__(self, log: LogReader, known: Mapping[str, Head], key: PublicKey | None) -> None:
        self._log = log
        self._contents = ContentCheck(log)
        self._names = NameCheck()
        self._rows = 0
        self._refused = ""
        self._text = log.settings().get(SEAM)
        self.end = log.position()  # read after the seam, which is not beyond it
        seam = None if self._text is None else self._read(self._text, key)
        self._seam = seam
        self._before = None if seam is None else SeamCheck(log, seam)
        self._older = {} if seam is None else older_than(seam, known)
        known = {name: head for name, head in known.items() if name not in self._older}
        if seam is None:
            self._check = RowCheck(known=known)
            return
        behind = {name: head for name, head in known.items() if seam.heads.get(name) != head}
        self._check = RowCheck(known=behind, heads=seam.heads, part_after=seam.position)

    def begin(self) -> list[Finding]:
        """Report what is wrong with the seam, and the first of the rows before position 1.

        No writer makes such rows, and no reader of the log by position gets them; readers of their
        streams do.
        """
        outside = self._log.read_log(after=None, until=0, limit=PAGE_ROWS)
        why = "the log begins with position 1: this row was added, or moved"
        found = [finding(Fault.WRONG_POSITION, log_row(row), why) for row in outside]
        if self._refused:
            position = 0 if self._seam is None else self._seam.position
            row = LogRow(position, bytes(16), 0, "", b"")
            found.append(finding(Fault.WRONG_SEAM, row, self._refused, first_position=1))
        return found

    def page(self, reached: int) -> tuple[int, list[Finding]]:
        """Check the next page of rows; return the position reached, and the findings."""
        log = self._log
        page = [row for row in log.read_log(after=reached, limit=PAGE_ROWS) if row.id <= self.end]
        if not page:
            return self.end, []
        self._contents.begin_page(page[-1].id)
        self._rows += len(page)
        findings: list[Finding] = []
        for notification in page:
            findings += self._row(notification)
        return page[-1].id, sorted(findings, key=attrgetter("last_position"))

    def rest(self) -> list[Finding]:
        """Report the faults that show only when all rows are read."""
        found = [*self._check.end(), *_missing_heads(self._check.known, self.end)]
        found += [*self._contents.end(self.end), *missing_names(self._names, self._log)]
        if self._before is not None:
            assert self._check.begins is not None
            found += [*self._before.join(self._check.begins), *self._before.end()]
        return found

    def require_same_seam(self, found: Sequence[Finding]) -> None:
        """Make sure that rows which left meanwhile did not cause the findings.

        Raises:
            RowsLeft: rows have left.
        """
        if found and self._log.settings().get(SEAM) != self._text:
            raise RowsLeft("rows moved to the archive during the check")

    def summary(self, findings: int) -> Summary:
        """The result of the check."""
        seam, before = self._seam, self._before
        streams = {*self._check.versions, *(() if before is None else before.versions)}
        return Summary(
            position=self.end,
            rows=self._rows,
            seals=self._check.seals,
            streams=len(streams),
            findings=findings,
            heads=self._check.heads,
            seam=0 if seam is None else seam.position,
            left=0 if seam is None else seam.left,
            older_heads=len(self._older),
        )

    def _read(self, text: str, key: PublicKey | None) -> Seam | None:
        """Read the seam and note what is wrong with it; None if it cannot be read."""
        try:
            seam = read_seam(text)
            try:
                verified_seam(text, key or read_public_key(seam.signed_by))
            except (SeamRefused, PublicKeyRefused) as error:
                self._refused = str(error)
        except SeamRefused as error:
            self._refused = str(error)
            return None
        return seam

    def _row(self, notification: Notification) -> Iterator[Finding]:
        row = log_row(notification)
        is_before = self._seam is not None and row.position <= self._seam.position
        if not is_well_formed(notification):
            yield finding(Fault.MALFORMED_ROW, row, "a column does not hold its type")
            yield from self._contents.take(row, None)
            if not is_before:
                yield from self._check.take_malformed(row)
            return
        self._names.take(row)
        event = decode_or_none(row.topic, row.state)
        if event is None:
            yield not_understood(row)
        yield from self._contents.take(row, event)
        if is_before:
            assert self._before is not None
            yield from self._before.take(row)
        else:
            yield from self._check.follow([row], [event])


def heads_not_in(log: LogReader, heads: Mapping[str, Head]) -> dict[str, Head]:
    """The newest seals of an export (``heads``) that are not in a log.

    If rows have left the log, seals that may be among them are not reported.

    Raises:
        LogUnavailable: the log cannot be read now.
    """
    seam = stored_seam(log)
    older = {} if seam is None else older_than(seam, heads)
    return {
        name: head
        for name, head in heads.items()
        if name not in older and _head_in(log, name, head.version) != head
    }


def _head_in(log: LogReader, partition: str, version: int) -> Head | None:
    row = log.read_versions(partition_stream(partition), [version]).get(version)
    sealed = None if row is None else decode_or_none(row.topic, row.state)
    return Head(version, sealed.digest) if isinstance(sealed, BatchSealed) else None


def _missing_heads(missing: Mapping[str, Head], end: int) -> Iterator[Finding]:
    for name, known in missing.items():
        yield Finding(
            fault=Fault.MISSING_HEAD,
            first_position=end,
            last_position=end,
            stream=partition_stream(name),
            version=known.version,
            partition=name,
            explanation=f"seal {known.version} with digest {known.digest.hex()} is missing",
        )
