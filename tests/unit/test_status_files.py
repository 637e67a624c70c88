"""Small files of the data directory that one process writes and others read."""

from __future__ import annotations

from pathlib import Path

import pytest

from http_edge.server import archive_status, export_status

FAULT = OSError("No space left on device")
LONG = OSError("the place is gone " * 20)


@pytest.mark.parametrize("number", [None, 1])
def test_a_fault_is_shown_although_no_new_file_can_be_written(
    tmp_path: Path, number: int | None
) -> None:
    export = export_status.Reporter(tmp_path, lambda: 1_000, number)
    archive = archive_status.Reporter(tmp_path, lambda: 1_000, number)
    export.on_fault(LONG)
    archive.on_fault(LONG)
    for path in [*tmp_path.iterdir()]:
        path.with_suffix(".part").mkdir()  # instead of a full disk: no draft can be written
    export.on_fault(FAULT)
    archive.on_fault(FAULT)
    assert export_status.figures(tmp_path, 7, 2_000, number)["trouble"] == str(FAULT)
    assert archive_status.figures(tmp_path, 2_000, number)["trouble"] == str(FAULT)
