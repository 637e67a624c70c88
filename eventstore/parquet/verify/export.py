"""Proves from the files of an export alone that it is complete and as it was written.

The check covers the signatures and the chain of manifests; each data file by its SHA-256; all rows
by the seals, that is the hash chain of each partition, from one manifest's heads to the next one's;
the versions of each stream; and every other column by what ``state`` decodes to. Seals are in the
states, so the check also finds rows that were changed before they were signed.

Damage does not end the check. After a manifest or a file that cannot be used, the check continues
from the heads that the next usable manifest names, and accepts any later version of the streams in
it: so one damage is reported once. For the rows of one manifest it reports ``FINDINGS_MAX``
findings, and counts the others.

The check cannot see an end that was cut together with all that names it (the newest commits of the
table, their manifests, the end mark and the signed head of the tree over all seals), and
replaced by the earlier files. Pass ``known_heads`` or ``witnessed`` for that, or compare with the
log (``eventstore.parquet.verify.against_log``). Seals cover neither the positions of rows nor the
order of whole transactions of different partitions: only signatures do.

Memory: the rows of some data files for each process (about 450 MB with the exporter's default
bounds), however many one manifest names, and about 300 bytes for each stream.
"""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import chain
from multiprocessing import get_context
from typing import Final, TypeAlias

import pyarrow.compute as pc

from eventstore.log.faults import Fault, Head
from eventstore.log.name_check import ERASURE
from eventstore.log.public_key import PublicKey, PublicKeyRefused, read_public_key
from eventstore.log.signed_note import NoteRefused
from eventstore.log.tree_head import TreeHead, verified_head
from eventstore.parquet.errors import Damage, ExportDamaged, ExportUnavailable
from eventstore.parquet.files import END, MANIFESTS, ExportPlace
from eventstore.parquet.rows import read_table
from eventstore.parquet.tree import TREE
from eventstore.parquet.verify.findings import (
    ExportFinding,
    ExportSummary,
    file_finding,
    finding_of,
)
from eventstore.parquet.verify.index import IndexCheck
from eventstore.parquet.verify.manifests import ManifestContents, ManifestPart, read_manifests
from eventstore.parquet.verify.mark import Verified, VerifiedMarks, file_hashes
from eventstore.parquet.verify.rows import (
    CheckedPart,
    check_part,
    require_part,
)
from eventstore.parquet.verify.stream_ends import StreamEnds
from eventstore.parquet.verify.tree import TreeCheck

Progress: TypeAlias = Callable[[int, int], None]
"""Called with the rows checked and the rows in all."""
Job: TypeAlias = tuple[ManifestPart, Mapping[str, Head]]
"""A manifest whose rows to check, and the known heads that they must have."""
_MARK: Final = "the mark of what was verified"
ROWS_PER_PROCESS: Final = 200_000
"""A process for fewer rows takes longer to start than to check them."""


def verify_export(
    place: ExportPlace,
    key: PublicKey | None,
    *,
    known_heads: Mapping[str, Head] | None = None,
    witnessed: Mapping[str, bytes] | None = None,
    progress: Progress | None = None,
    marks: VerifiedMarks | None = None,
) -> Iterator[ExportFinding | ExportSummary]:
    """Check an export; the last item is the ``ExportSummary``. May run beside an exporter.

    A large export is checked by a process for each core; they import the main module of the
    program.

    Args:
        place: where the export is.
        key: the mediator's key, known from elsewhere. None: take the key from the export itself;
            the summary says that this does not prove who wrote it.
        known_heads: heads by partition from the log or an earlier check; each must be found.
        witnessed: signed heads of the tree that others hold, as notes, by the name of their
            source; the export must continue each.
        progress: called after the rows of each manifest were checked.
        marks: what was verified before; only with ``key``. The check does not read these rows
            again, unless ``known_heads`` must be found, or the rows are in other files now. It
            marks a sound export at the end.

    Raises:
        ExportUnavailable: the place cannot be read now.
    """
    tree = TreeCheck(place)
    verify = None if key is None else key.verify
    contents = read_manifests(place, verify)
    verified = None
    if marks and contents.head and not (contents.findings or known_heads):
        verified = marks.read(place, contents.head)
    check = _ExportCheck(place, contents, known_heads or {}, tree, verified)
    processes = min(len(os.sched_getaffinity(0)), check.rows_in_all // ROWS_PER_PROCESS)
    yield from contents.findings
    findings = len(contents.findings)
    for found in chain(
        check.run(processes, progress),
        check.check_heads(key, witnessed or {}),
        _strays(contents, lambda: read_manifests(place, verify)),
    ):
        findings += 1
        yield found
    summary = check.summary(findings, key_is_trusted=key is not None)
    # The mark is compared with the tree that the newest manifest names, if it names one.
    is_named = bool(contents.parts) and contents.parts[-1].manifest.tree is not None
    if marks and contents.head and summary.tree and is_named and not summary.findings:
        ended = check.streams.table()
        files = frozenset[bytes]().union(*[file_hashes(part.manifest) for part in contents.parts])
        marks.write(place, contents.head, Verified(summary.position, summary.tree, ended, files))
    yield summary


def _reaches(parts: Sequence[ManifestPart], position: int) -> bool:
    return bool(parts) and parts[-1].manifest.last >= position


def _erased_in(place: ExportPlace, part: ManifestPart) -> set[bytes]:
    """The streams of the identities that were erased by rows of a manifest.

    Raises as ``read_table``.
    """
    found: set[bytes] = set()
    for file in part.manifest.files:
        if ERASURE in file.types:
            table = read_table(place, file, ("stream", "type"))
            is_erasure = pc.equal(table["type"], ERASURE.rpartition(".")[0])
            found.update(table.filter(is_erasure)["stream"].to_pylist())
    return found


class _ExportCheck:
    """One pass over the rows of an export."""

    def __init__(
        self,
        place: ExportPlace,
        contents: ManifestContents,
        known: Mapping[str, Head],
        tree: TreeCheck,
        verified: Verified | None,
    ) -> None:
        self._place = place
        self._tree = tree
        self._manifests = contents
        self._index = IndexCheck(place, contents.row_index)
        self._known = dict(known)
        parts = contents.parts
        self._verified = verified if verified and _reaches(parts, verified.position) else None
        self._is_cut = verified is not None and self._verified is None
        self._verified_to = self._verified.position if self._verified else 0
        self._skipped = [part for part in parts if part.manifest.last <= self._verified_to]
        self._rewritten = [
            part
            for part in self._skipped
            if self._verified and not self._verified.has_files_of(part.manifest)
        ]
        self._parts = parts[len(self._skipped) :]
        self.streams = StreamEnds(self._verified.streams if self._verified else None)
        self._rows = self._seals = self._left_out = self._known_to = self._reached = 0
        self._erased: set[bytes] = set()
        self._nameless: dict[tuple[bytes, bytes], ExportFinding] = {}
        self._is_whole = True
        self.rows_in_all = sum(part.manifest.rows for part in [*self._rewritten, *self._parts])

    def run(self, processes: int, progress: Progress | None) -> Iterator[ExportFinding]:
        if self._is_cut:
            why = "it is now shorter than the part that was verified before"
            yield file_finding(END, Damage.ROLLED_BACK, why)
        yield from self._skip()
        again: Sequence[Job] = [(part, {}) for part in self._rewritten]
        for (part, _), checked in zip(again, _checked(self._place, again, processes), strict=True):
            yield from checked.findings
            self._note(part, checked, progress)
            # If the seals are the same, so are the rows, and the ends of the streams are known.
            if checked.leaves is not None:
                yield from self._tree.check_again(part.manifest, checked.leaves)
        jobs = [(part, self._known_in(part)) for part in self._parts]
        for (part, _), checked in zip(jobs, _checked(self._place, jobs, processes), strict=True):
            yield from checked.findings
            self._note(part, checked, progress)
            yield from self._join(part, checked)
            for name, head in checked.missing.items():
                yield _missing(name, head, part.manifest.path)
            if part.manifest.is_pruned:
                yield from self._tree.pass_over(part.manifest)
                yield from self._index.pass_over(part.manifest)
                continue
            # Damaged or missing rows are reported already; do not also report the tree for them.
            is_known = part.before is not None
            yield from self._tree.join(part.manifest, checked.leaves if is_known else None)
            yield from self._index.join(part.manifest, checked.entries)
        yield from self._index.end()
        yield from self._missing_names()
        for name, head in self._known.items():
            yield _missing(name, head, MANIFESTS)

    def _note(self, part: ManifestPart, checked: CheckedPart, progress: Progress | None) -> None:
        """Count what was checked, and note the names that are gone."""
        self._rows += checked.rows
        self._seals += checked.seals
        self._left_out += checked.left_out
        self._reached += part.manifest.rows
        if progress:
            progress(self._reached, self.rows_in_all)
        self._erased |= checked.names.erased
        self._is_whole = self._is_whole and checked.is_whole
        for place, found in checked.nameless.items():
            self._nameless.setdefault(place, found)

    def _missing_names(self) -> Iterator[ExportFinding]:
        """Yield names that are gone although no row says that their identity was erased.

        Yield none if files are damaged, because these may have had such a row.
        """
        if not self._nameless or not self._is_whole:
            return
        for part in self._skipped:
            try:
                self._erased |= _erased_in(self._place, part)
            except ExportDamaged as damage:
                if damage.damage is Damage.MISSING:
                    require_part(self._place, part)
                self._is_whole = False
                yield finding_of(damage)
        for place, found in self._nameless.items():
            if self._is_whole and self._erased.isdisjoint(place):
                yield found

    def check_heads(
        self, key: PublicKey | None, witnessed: Mapping[str, bytes]
    ) -> Iterator[ExportFinding]:
        """Check the signed heads, the export's own and those of witnesses, against the tree."""
        head = self._manifests.head
        try:
            signer = key or (read_public_key(head.public_key) if head else None)
        except PublicKeyRefused:
            signer = None  # then no signature is valid, which is reported
        if head is None or signer is None:
            return
        if not self._manifests.findings:  # otherwise the last seals may be lost
            yield from self._tree.end(signer, head.mediator_did)
        if self._verified is not None:
            before = self._verified.tree
            held = TreeHead(head.mediator_did, before.size, bytes.fromhex(before.root))
            yield from self._tree.check_head(_MARK, held, head.mediator_did)
        for name, note in witnessed.items():
            try:
                held = verified_head(note, signer)
            except NoteRefused as error:
                yield file_finding(name, Damage.BAD_SIGNATURE, str(error))
            else:
                yield from self._tree.check_head(name, held, head.mediator_did)

    def summary(self, findings: int, *, key_is_trusted: bool) -> ExportSummary:
        head, parts = self._manifests.head, self._manifests.parts
        return ExportSummary(
            position=parts[-1].manifest.last if parts else 0,
            manifests=len(parts),
            files=sum(len(part.manifest.files) for part in parts),
            rows=self._rows,
            seals=self._seals,
            streams=len(self.streams),
            findings=findings + self._left_out + self.streams.left_out,
            signed_by=head.public_key if head else "",
            key_is_trusted=key_is_trusted,
            complete_until_ms=self._manifests.complete_until_ms,
            verified_before_up_to=self._skipped[-1].manifest.last if self._skipped else 0,
            earlier_check_up_to=self._known_to,
            heads=dict(parts[-1].heads) if parts else {},
            tree=self._tree.tree,
            pruned_up_to=parts[0].manifest.last if parts and parts[0].manifest.is_pruned else 0,
            mediator_did=head.mediator_did if head else "",
            shards=head.shards if head else 0,
        )

    def _skip(self) -> Iterator[ExportFinding]:
        """Skip the verified part, after checking that its files exist in their old size."""
        if not self._skipped:
            return
        sizes = self._place.data_sizes()
        for part in self._skipped:
            for file in part.manifest.files:
                if sizes.get(file.path) != file.bytes:
                    require_part(self._place, part)
                    self._is_whole = False
                    fault = Damage.TRUNCATED if file.path in sizes else Damage.MISSING
                    why = f"{sizes.get(file.path, 0)} bytes, {file.bytes} when it was written"
                    yield file_finding(file.path, fault, why)
        newest = self._skipped[-1].manifest
        for part in self._skipped[-2:]:  # two, to see if the head is of an earlier step
            yield from self._tree.join(part.manifest, None)
        if self._tree.tree is None:
            why = "a part of the tree does not match the signature: poste verify --all names it"
            yield file_finding(TREE, Damage.CHANGED, why)
        self._index.skip(newest.last)

    def _known_in(self, part: ManifestPart) -> dict[str, Head]:
        """Take the known heads that are due in the rows of this manifest."""
        newest = {name: head.version for name, head in part.heads.items()}
        names = [name for name, head in self._known.items() if head.version <= newest.get(name, 0)]
        return {name: self._known.pop(name) for name in names}

    def _join(self, part: ManifestPart, checked: CheckedPart) -> Iterator[ExportFinding]:
        self._known_to = max(self._known_to, checked.known_to)
        if part.before is None:
            self.streams.lose()
        if checked.streams is not None:
            is_known = part.manifest.first <= self._verified_to
            yield from self.streams.join(checked.streams, is_partly_known=is_known)
        else:
            self.streams.lose()


def _checked(place: ExportPlace, jobs: Sequence[Job], processes: int) -> Iterator[CheckedPart]:
    """Check the rows of manifests, several at the same time; yield results in order."""
    if processes <= 1:
        for job in jobs:
            yield check_part(place, *job)
        return
    # A process forked from one with threads may hang.
    pool = ProcessPoolExecutor(processes, get_context("spawn"), initializer=_leave_signals)
    waiting: deque[Future[CheckedPart]] = deque()
    try:
        for job in jobs:
            waiting.append(pool.submit(check_part, place, *job))
            if len(waiting) == 2 * processes:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool as error:
        why = "a process that checked it was killed, perhaps for lack of memory"
        raise ExportUnavailable(place.address(), why) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _leave_signals() -> None:
    """Ignore the terminal's interrupt, which is for the process that started this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _missing(name: str, head: Head, path: str) -> ExportFinding:
    return ExportFinding(
        fault=Fault.MISSING_HEAD,
        path=path,
        shard=name,
        version=head.version,
        explanation=f"seal {head.version} with digest {head.digest.hex()} is not here",
    )


def _strays(
    contents: ManifestContents, read_again: Callable[[], ManifestContents]
) -> Iterator[ExportFinding]:
    """Yield files that no manifest explains, neither before the check nor after it."""
    if contents.strays:
        # An exporter writes files before the manifest that names them.
        for path in sorted(contents.strays & read_again().strays):
            why = "no manifest names it: added, or left by an exporter that was stopped"
            yield file_finding(path, Damage.STRAY, why)
