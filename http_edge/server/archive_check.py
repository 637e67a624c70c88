"""The check of a log together with its archive: what has left is there, and the chains meet.

The archive is checked like any export (``eventstore.parquet.verify.export``): its seals form one
chain for each partition, from the first one on. Those of the log go on behind the seam. What ties
the two is the newest seals that the seam names: the rows of the archive up to its position have to
end with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from eventstore.log.event_log import EventLog
from eventstore.log.faults import Fault, Head
from eventstore.log.public_key import PublicKey
from eventstore.log.seam import SEAM, Seam, verified_seam
from eventstore.log.verify import RowCheck
from eventstore.parquet.catalog import Catalog, catalog_of
from eventstore.parquet.errors import Damage
from eventstore.parquet.files import END, ExportPlace
from eventstore.parquet.manifest import Manifest, heads_of
from eventstore.parquet.rows import exported_sections, log_rows, manifest_table
from eventstore.parquet.verify.export import verify_export
from eventstore.parquet.verify.findings import ExportFinding, ExportSummary
from eventstore.parquet.verify.mark import VerifiedMarks
from eventstore.stores.restore import LogSection

Progress = Callable[[int, int], None]


def seam_of(log: EventLog, key: PublicKey) -> Seam | None:
    """The seam of a log; None of one that no rows have left.

    Raises:
        SeamRefused: it is not the mediator's.
        LogUnavailable: the log cannot be read now.
    """
    text = log.settings().get(SEAM)
    return None if text is None else verified_seam(text, key)


def check_archive(
    place: ExportPlace,
    seam: Seam,
    key: PublicKey,
    *,
    marks: VerifiedMarks | None,
    progress: Progress | None = None,
) -> Iterator[ExportFinding | ExportSummary]:
    """Check an archive, and that it goes up to the seam as this says; last the summary.

    ``marks`` say what was verified before, whose rows are not read again.

    Raises:
        ExportUnavailable: it cannot be read now.
        ExportDamaged: it changed meanwhile.
    """
    summary: ExportSummary | None = None
    is_sound = True
    for item in verify_export(place, key, marks=marks, progress=progress):
        if isinstance(item, ExportSummary):
            summary = item
        else:
            is_sound = False
            yield item
    assert summary is not None
    if summary.position < seam.position:
        why = (
            f"it ends at position {summary.position}, but rows up to {seam.position} have"
            " left the log"
        )
        yield _finding(Damage.ENDS_EARLY, seam, why)
    elif is_sound:
        found = heads_at(place, catalog_of(place, key.verify, is_whole=True), seam.position)
        if found != seam.heads:
            why = f"its newest seals at position {seam.position} are not those of the seam"
            yield _finding(Fault.WRONG_SEAM, seam, why)
    yield summary


def heads_at(place: ExportPlace, catalog: Catalog, position: int) -> Mapping[str, Head]:
    """The newest seals of an export up to a position, which it has, by its rows.

    Only the manifest that has the position is read; ``catalog`` has every manifest with its heads.

    Raises:
        ExportDamaged, ExportUnavailable: as ``manifest_table``.
    """
    before: Mapping[str, Head] = {}
    for statement in catalog.statements:
        manifest = statement.manifest
        if manifest.last > position:
            return _heads_within(place, manifest, before, position)
        before = heads_of(manifest.path, manifest)
    return before


def sections_to(place: ExportPlace, catalog: Catalog, seam: Seam) -> Iterator[LogSection]:
    """The rows of an archive up to the seam, the last of them with the seals that it names.

    ``catalog`` has every manifest with its heads. Raises as ``exported_sections``.
    """
    for section in exported_sections(place, catalog, seam.position):
        if section.rows[-1].position < seam.position:
            yield section
            continue
        rows = [row for row in section.rows if row.position <= seam.position]
        yield section._replace(rows=rows, heads=seam.heads)
        return


def _heads_within(
    place: ExportPlace, manifest: Manifest, before: Mapping[str, Head], position: int
) -> Mapping[str, Head]:
    if manifest.first > position:
        return before
    check = RowCheck(heads=before, part_after=manifest.first - 1)
    rows = log_rows(manifest_table(place, manifest))
    for _ in check.follow(row for row in rows if row.position <= position):
        return {}  # a seal that does not fit: nothing here ends as the seam says
    return check.heads


def _finding(fault: Damage | Fault, seam: Seam, why: str) -> ExportFinding:
    return ExportFinding(
        fault=fault, path=END, first_position=1, last_position=seam.position, explanation=why
    )
