"""Small files of the data directory that one process writes and others read."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from http_edge.server.status_files import (
    ArchiveReporter,
    ExportReporter,
    archive_figures,
    export_figures,
    problems_of,
    publish_away,
    read_away,
    status_parts,
)
from http_edge.settings.settings import Settings

NOW_MS = 1_700_000_000_000
FAULT = OSError("No space left on device")
LONG = OSError("the place is gone " * 20)
TWO = "postgresql://127.0.0.1:9/one postgresql://127.0.0.1:9/two"
TORN = [b"", b'{"position":', b"[]", b'{"fault":"\xff"}']


@pytest.mark.parametrize("number", [None, 1])
def test_a_fault_is_shown_although_no_new_file_can_be_written(
    tmp_path: Path, number: int | None
) -> None:
    export = ExportReporter(tmp_path, lambda: 1_000, number)
    archive = ArchiveReporter(tmp_path, lambda: 1_000, number)
    export.on_fault(LONG)
    archive.on_fault(LONG)
    for path in [*tmp_path.iterdir()]:
        path.with_suffix(".part").mkdir()  # instead of a full disk: no draft can be written
    export.on_fault(FAULT)
    archive.on_fault(FAULT)
    assert export_figures(tmp_path, 7, 2_000, number)["fault"] == str(FAULT)
    assert archive_figures(tmp_path, 2_000, number)["fault"] == str(FAULT)


@pytest.mark.parametrize("torn", TORN)
def test_without_a_readable_record_no_database_counts_as_served(
    tmp_path: Path, torn: bytes
) -> None:
    settings = Settings(data_dir=tmp_path, log=TWO)
    assert read_away(settings) == {}
    publish_away(tmp_path, {1: "it is another log's"})
    assert read_away(settings) == {1: "it is another log's"}
    (path,) = tmp_path.iterdir()
    path.write_bytes(torn)
    assert read_away(settings).keys() == {0, 1}
    assert all(f"{path} cannot be read" in problem for problem in problems_of(settings))
    publish_away(tmp_path, {})
    assert read_away(settings) == {}


@pytest.mark.parametrize("torn", TORN)
def test_a_status_that_cannot_be_read_is_a_fault_until_it_is_written_again(
    tmp_path: Path, torn: bytes
) -> None:
    def faults(name: str = "fault") -> list[Any]:
        shown = (
            export_figures(tmp_path, 7, 2_000),
            archive_figures(tmp_path, 2_000),
        )
        return [figures[name] for figures in shown]

    export = ExportReporter(tmp_path, lambda: 1_000)
    archive = ArchiveReporter(tmp_path, lambda: 1_000)
    archive.on_fault(FAULT)
    paths = sorted(tmp_path.iterdir(), reverse=True)
    for path in paths:
        path.write_bytes(torn)
        os.utime(path, (0.5, 0.5))
    assert all(f"{path} cannot be read" in why for path, why in zip(paths, faults(), strict=True))
    assert faults("fault_age_s") == [1.5, 1.5]
    export.on_fault(FAULT)
    archive.on_fault(FAULT)
    assert faults() == [str(FAULT)] * 2
    for path in paths:
        path.write_bytes(torn)
    ExportReporter(tmp_path, lambda: 1_000).on_step(7)
    assert faults()[0] == ""


def test_without_the_file_of_the_exporting_process_the_status_says_so(tmp_path: Path) -> None:
    status = export_figures(tmp_path, 5, NOW_MS)
    assert (status["position"], status["rows_behind"]) == (None, None)
    assert "runs on another machine or has not started" in status["fault"]


def test_one_that_starts_again_and_again_has_not_just_begun(tmp_path: Path) -> None:
    ExportReporter(tmp_path, lambda: NOW_MS).on_caught_up(5)
    ExportReporter(tmp_path, lambda: NOW_MS + 1_000).on_fault(ChildProcessError("killed"))
    ExportReporter(tmp_path, lambda: NOW_MS + 8_000)
    started = ExportReporter(tmp_path, lambda: NOW_MS + 9_000)
    status = export_figures(tmp_path, 7, NOW_MS + 9_000)
    assert (status["position"], status["caught_up_age_s"]) == (None, 9)
    assert (status["fault"], status["fault_age_s"]) == ("killed", 8)
    started.on_caught_up(7)
    status = export_figures(tmp_path, 7, NOW_MS + 9_000)
    assert (status["caught_up_age_s"], status["fault_age_s"]) == (0, None)


def test_work_that_hangs_from_its_first_step_on_is_as_old_as_its_first_start(
    tmp_path: Path,
) -> None:
    for now_ms in (NOW_MS, NOW_MS + 5_000):  # neither ends in any way that could be noted
        ExportReporter(tmp_path, partial(int, now_ms))
        ArchiveReporter(tmp_path, partial(int, now_ms)).on_begin()
    assert export_figures(tmp_path, 7, NOW_MS + 9_000)["caught_up_age_s"] == 9
    assert archive_figures(tmp_path, NOW_MS + 9_000)["last_round_age_s"] == 9
    ArchiveReporter(tmp_path, lambda: NOW_MS + 10_000).on_end()
    ArchiveReporter(tmp_path, lambda: NOW_MS + 11_000).on_begin()  # a later one
    assert archive_figures(tmp_path, NOW_MS + 13_000)["last_round_age_s"] == 3


def test_a_fault_of_rewriting_lasts_with_its_age_until_files_are_rewritten(tmp_path: Path) -> None:
    now_ms = 0
    export = ExportReporter(tmp_path, lambda: now_ms)

    def shown() -> tuple[str, float | None, int | None]:
        status = export_figures(tmp_path, None, now_ms)
        return status["fault"], status["fault_age_s"], status["position"]

    now_ms = 1_000
    export.on_rewriting_fault("erasing", FAULT)
    now_ms = 2_000
    export.on_rewriting_fault("pruning", LONG)
    export.on_step(5)
    assert shown() == (str(FAULT), 1, 5)
    export.on_fault(OSError("the store is away"))
    assert shown() == ("the store is away", 1, 5)
    now_ms = 3_000
    export.on_rewriting_fault("erasing", FAULT)
    export.on_caught_up(7)
    assert shown() == (str(FAULT), 2, 7)
    export.on_rewritten("erasing")
    export.on_step(8)
    assert shown() == (str(LONG), 1, 8)
    now_ms = 4_000
    restarted = ExportReporter(tmp_path, lambda: now_ms)
    restarted.on_rewriting_fault("pruning", LONG)
    restarted.on_step(9)
    assert shown() == (str(LONG), 2, 9)
    restarted.on_rewritten("pruning")
    restarted.on_step(10)
    assert shown() == ("", None, 10)


def test_a_process_that_stands_by_shows_no_fault_of_its_own_rewriting_later(
    tmp_path: Path,
) -> None:
    export = ExportReporter(tmp_path, lambda: 1_000)
    export.on_rewriting_fault("erasing", FAULT)
    export.on_standby()
    export.on_step(5)
    assert export.figures()["fault"] == ""


@pytest.mark.parametrize(
    ("set_to", "hangs_after_s"),
    [
        ({}, {"export": 900, "archive": 86_400}),
        ({"export": {"lag_s_max": 1_000}}, {"export": 2_000, "archive": 86_400}),
        ({"archive": {"every_s": 100_000}}, {"export": 900, "archive": 200_000}),
    ],
)
def test_work_hangs_by_no_status_before_it_is_due_again(
    tmp_path: Path, set_to: dict[str, Any], hangs_after_s: dict[str, float]
) -> None:
    set_to = {**set_to, "export": {"to": str(tmp_path), **set_to.get("export", {})}}
    for more in ({}, {"log": TWO, "archive": {"enabled": True, **set_to.get("archive", {})}}):
        settings = Settings(data_dir=tmp_path, **{**set_to, **more})
        parts = status_parts(settings, lambda: NOW_MS, {}, outbound=None, push=None)
        assert {name: parts[name]["hangs_after_s"] for name in hangs_after_s} == hangs_after_s
