"""The check of an export that an exporter changes meanwhile."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from eventstore.log.event_log import EventLog
from eventstore.parquet.errors import ExportUnavailable
from eventstore.parquet.files import ExportPlace, open_place
from eventstore.parquet.manifest import is_data, is_manifest
from eventstore.parquet.verify.export import verify_export
from eventstore.parquet.verify.mark import VerifiedMarks
from eventstore.parquet.write.exporter import ExportTimes
from eventstore.parquet.write.step import Bounds
from tests.export.samples import SIGNED_BY, SIGNER, Growing, export_all, exporter, findings


def test_an_exporter_that_never_rests_does_not_keep_the_check_from_its_end(
    sqlite_log: EventLog, place: ExportPlace
) -> None:
    growing = Growing(sqlite_log)
    steps = 0

    class ChangingPlace(ExportPlace):
        """A place in which a step and a compaction follow each reading of manifests."""

        def read_all(self, paths: Iterable[str]) -> Iterator[tuple[str, bytes]]:
            nonlocal steps
            found = list(super().read_all(paths))
            if any(is_manifest(path) for path, _ in found):
                growing.grow(2)
                assert export.step()
                export.compact(files_min=2)
                steps += 1
            return iter(found)

    kept = ExportTimes(replaced_kept_s=3_600)
    with closing(exporter(sqlite_log, place, Bounds(rows_max=20), kept)) as export:
        for _ in range(5):
            growing.grow(2)
            assert export.step()
        assert findings(ChangingPlace(place.filesystem, place.root)) == []
    assert steps > 1


@pytest.mark.parametrize("is_verified", [False, True])
def test_files_that_are_put_together_during_the_check_are_not_damaged(
    sqlite_log: EventLog, place: ExportPlace, tmp_path: Path, *, is_verified: bool
) -> None:
    marks = VerifiedMarks(open_place(str(tmp_path / "marks")), SIGNER)

    class ChangingPlace(ExportPlace):
        """A place in which the files are put together when the first of them is looked for."""

        listings = 0

        def data_sizes(self) -> dict[str, int]:
            self.listings += 1
            if self.listings == 2:  # the first is for the manifests
                put_together()
            return super().data_sizes()

        def read(self, path: str, bytes_max: int | None = None) -> bytes:
            if is_data(path):
                put_together()
            return super().read(path, bytes_max)

    def put_together() -> None:
        with closing(exporter(sqlite_log, place, Bounds())) as export:
            export.compact(files_min=2)
            export.sweep()

    Growing(sqlite_log).grow(8)
    export_all(sqlite_log, place)
    if is_verified:
        list(verify_export(place, SIGNED_BY, marks=marks))
    changing = ChangingPlace(place.filesystem, place.root)
    with pytest.raises(ExportUnavailable, match="check again"):
        list(verify_export(changing, SIGNED_BY, marks=marks))
    assert findings(place) == []
