"""The check of an export that an exporter changes meanwhile."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing

from eventstore.log.event_log import EventLog
from eventstore.parquet.files import ExportPlace
from eventstore.parquet.manifest import is_manifest
from eventstore.parquet.write.exporter import Kept
from eventstore.parquet.write.step import Bounds
from tests.export.samples import Growing, exporter, findings


def test_an_exporter_that_never_rests_does_not_keep_the_check_from_its_end(
    sqlite_log: EventLog, place: ExportPlace
) -> None:
    growing = Growing(sqlite_log)
    steps = 0

    class ChangingPlace(ExportPlace):
        """A place in which a step and a compaction follow each reading of manifests."""

        def read_all(self, paths: Iterable[str]) -> dict[str, bytes]:
            nonlocal steps
            found = super().read_all(paths)
            if any(map(is_manifest, found)):
                growing.grow(2)
                assert export.step()
                export.compact(files_min=2)
                steps += 1
            return found

    kept = Kept(replaced_s=3_600)
    with closing(exporter(sqlite_log, place, Bounds(rows_max=20), kept)) as export:
        for _ in range(5):
            growing.grow(2)
            assert export.step()
        assert findings(ChangingPlace(place.filesystem, place.root)) == []
    assert steps > 1
