"""Ray's folder is its owner's alone, and goes with the Ray that was started for a mediator."""

from __future__ import annotations

import os
import platform
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import ray

from actors.ray import environment, processes
from http_edge.server import serve
from http_edge.server.exits import Exit, Stop
from http_edge.settings.settings import Limits

SESSION = "session_2026-01-01_00-00-00_000000_1"


class Ray:
    """In place of Ray: does with its folder what Ray does, unless it fails."""

    def __init__(self) -> None:
        self.fault: Exception | None = None
        self.options: dict[str, Any] = {}

    def init(self, **options: Any) -> None:
        self.options = options
        folder = options.get("_temp_dir")
        if folder is not None:
            (Path(folder) / SESSION / "logs").mkdir(parents=True)
            Path(folder).chmod(0o777)
            (Path(folder) / SESSION).chmod(0o777)
            (Path(folder) / SESSION / "logs" / "raylet.out").write_text("started")
        if self.fault is not None:
            raise self.fault


@pytest.fixture
def fake_ray(monkeypatch: pytest.MonkeyPatch) -> Ray:
    """Ray itself neither starts nor ends."""
    found = Ray()
    monkeypatch.setattr(ray, "init", found.init)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    return found


@pytest.fixture
def data_dir() -> Any:
    """A data directory with a short path that others may enter, and that holds something else."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "log.db").touch()
        yield folder


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_no_other_user_of_the_machine_enters_the_folder_of_ray(
    data_dir: Path, fake_ray: Ray
) -> None:
    (data_dir / "ray").mkdir(mode=0o777)
    before = os.umask(0o022)
    try:
        folder = processes.private_folder(data_dir)
        processes.start(folder)
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(before)
    assert folder == data_dir / "ray"
    assert mode(folder) == 0o700
    # What Ray opens to all stands below, and its processes open nothing by themselves.
    sessions = Path(fake_ray.options["_temp_dir"])
    assert sessions.parent == folder
    assert mode(sessions / SESSION / "logs" / "raylet.out") == 0o600


def test_a_folder_that_another_user_put_there_is_refused(data_dir: Path) -> None:
    with tempfile.TemporaryDirectory() as elsewhere:
        (data_dir / "ray").symlink_to(elsewhere)
        with pytest.raises(OSError, match="belongs to another"):
            processes.private_folder(data_dir)


@pytest.mark.parametrize("name", ["d" * 60, "ü", "it's", "back\\slash"])
def test_where_ray_cannot_use_the_path_a_fresh_folder_is_made(data_dir: Path, name: str) -> None:
    data_dir /= name
    data_dir.mkdir()
    first, second = processes.private_folder(data_dir), processes.private_folder(data_dir)
    try:
        assert first != second
        assert {mode(first), mode(second)} == {0o700}
        assert list(data_dir.iterdir()) == []
    finally:
        processes.stop(first)
        processes.stop(second)
    assert not first.exists()


@pytest.mark.parametrize("name", ["d" * 60, "ü", "it's", "back\\slash"])
def test_where_ray_cannot_use_the_path_of_temporary_files_either_the_folder_is_below_tmp(
    data_dir: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data_dir /= name
    data_dir.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(data_dir))
    folder = processes.private_folder(data_dir)
    try:
        assert folder.parent == Path("/tmp")
        assert mode(folder) == 0o700
        assert list(data_dir.iterdir()) == []
    finally:
        processes.stop(folder)


_MEDIATOR = """
import sys
from pathlib import Path
from actors.ray import processes

(processes.private_folder(Path(sys.argv[1])) / "s" / "session_1").mkdir(parents=True)
print(flush=True)
sys.stdin.read()
"""


@pytest.fixture
def place(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """For temporary files, with a data directory ``ü`` whose path Ray does not understand."""
    monkeypatch.setattr(tempfile, "tempdir", str(data_dir))
    monkeypatch.setenv("TMPDIR", str(data_dir))
    (data_dir / "log.db").unlink()
    (data_dir / "ü").mkdir()
    return data_dir


def left(place: Path) -> Path:
    """A folder as a killed mediator leaves it."""
    folder = place / "poste-ray-_12345_a"
    (folder / "s" / SESSION / "logs").mkdir(parents=True)
    (folder / "s" / "session_latest").symlink_to(SESSION)
    (folder / "s" / SESSION / "logs" / "raylet.out").write_text("started")
    return folder


def test_a_start_removes_the_temporary_folder_of_a_mediator_that_was_killed_and_no_other(
    place: Path,
) -> None:
    command = [sys.executable, "-c", _MEDIATOR, str(place / "ü")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as mediator:
        try:
            assert mediator.stdout is not None
            mediator.stdout.readline()
            (of_it,) = place.glob("poste-*")
            first = processes.private_folder(place / "ü")
            assert {*place.glob("poste-*")} == {of_it, first}
        finally:
            mediator.kill()
    second = processes.private_folder(place / "ü")
    assert {*place.glob("poste-*")} == {first, second}


def test_a_temporary_folder_stays_while_a_process_of_its_ray_lives(place: Path) -> None:
    folder = left(place)
    with (folder / "s" / "session_latest" / "logs" / "raylet.out").open():
        processes.private_folder(place / "ü")
        assert (folder / "s" / SESSION / "logs").is_dir()
    processes.private_folder(place / "ü")
    assert not folder.exists()


def test_a_temporary_folder_of_another_user_stays(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, owner = left(place), os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    processes.private_folder(place / "ü")
    assert (folder / "s" / SESSION / "logs" / "raylet.out").exists()


def test_nothing_but_a_folder_of_ray_is_removed_and_no_link_is_followed(place: Path) -> None:
    folder = left(place).rename(place / "elsewhere")
    (place / "poste-ray-12345678").symlink_to(folder)
    for name in ("poste-ray-notes", "poste-ray-evidence", "poste-12345678", "poste-live-12345678"):
        (place / name / "s").mkdir(parents=True)
    (place / "poste-ray-evidence" / "kept").touch()
    before = {*place.iterdir()}
    new = processes.private_folder(place / "ü")
    assert {*place.iterdir()} == {*before, new}
    assert (folder / "s" / SESSION / "logs" / "raylet.out").exists()


@pytest.mark.usefixtures("fake_ray")
def test_the_folder_of_a_ray_of_its_own_is_removed_at_the_end(data_dir: Path) -> None:
    folder = processes.private_folder(data_dir)
    processes.start(folder)
    processes.stop(folder)
    assert [path.name for path in data_dir.iterdir()] == ["log.db"]


def test_of_mediators_that_were_killed_the_last_session_is_kept(data_dir: Path) -> None:
    for number in range(3):
        (data_dir / "ray" / "s" / f"session_2026-01-0{number + 1}").mkdir(parents=True)
    folder = processes.private_folder(data_dir)
    assert [path.name for path in (folder / "s").iterdir()] == ["session_2026-01-03"]


@pytest.mark.parametrize(
    "fault",
    [
        Exception("The current node timed out during startup.\nThis could happen"),
        TimeoutError(),
        RuntimeError("Failed to start GCS"),
    ],
)
def test_a_ray_that_does_not_start_is_a_sentence_with_its_remedy(
    data_dir: Path, fake_ray: Ray, fault: Exception
) -> None:
    fake_ray.fault = fault
    with pytest.raises(Stop) as stopped:
        serve._start_ray(data_dir)
    assert stopped.value.exit_code == Exit.UNREACHABLE
    said = str(fault).partition("\n")[0] or type(fault).__name__
    assert stopped.value.message == f"Ray did not start: {said}."
    assert str(data_dir / "ray") in stopped.value.remedy


def test_a_log_of_rays_is_small_beside_what_is_kept_free_on_the_disk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: dict[str, str] = {}
    monkeypatch.setattr(os, "environ", given)
    environment.prepare()
    size, older = "RAY_ROTATION_MAX_BYTES", "RAY_ROTATION_BACKUP_COUNT"
    assert int(given[size]) * (1 + int(given[older])) <= Limits().free_bytes_min / 10
    reads = (Path(ray.__file__).parent / "_private/node.py").read_text()
    assert size in reads
    assert older in reads


_FAULTS_OF_PAGES = """
import resource

def page():
    return len([b"%d" % number * 400_000 for number in range(6)])

page()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    page()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library decides itself")
def test_the_memory_of_a_page_of_messages_is_kept_for_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: dict[str, str] = {}
    monkeypatch.setattr(os, "environ", given)
    environment.prepare()
    said = subprocess.run(
        [sys.executable, "-c", _FAULTS_OF_PAGES], env=given, capture_output=True, check=True
    )
    # Each of the 50 pages has more than 500 pages of memory.
    assert int(said.stdout) < 500
