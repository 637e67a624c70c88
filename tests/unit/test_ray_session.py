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


def put_there(kind: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What another user may have put where the folder of Ray is made."""
    match kind:
        case "link":
            path.symlink_to(path.parent)
        case "link to nothing":
            path.symlink_to("nothing")
        case "file":
            path.touch()
        case _:
            path.mkdir(mode=0o777)
            owner = os.geteuid()
            monkeypatch.setattr(os, "geteuid", lambda: owner + 1)


@pytest.mark.parametrize("kind", ["link", "link to nothing", "file", "folder"])
@pytest.mark.parametrize("is_temporary", [False, True])
def test_what_another_user_put_there_ends_the_start_with_its_name(
    data_dir: Path, kind: str, monkeypatch: pytest.MonkeyPatch, *, is_temporary: bool
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(data_dir))
    used = data_dir / "ü" if is_temporary else data_dir
    used.mkdir(exist_ok=True)
    folder = processes.private_folder(used)
    folder.rmdir()
    put_there(kind, folder, monkeypatch)
    before = folder.lstat()
    with pytest.raises(Stop, match="belongs to another") as stopped:
        serve._start_ray(used)
    assert str(folder) in stopped.value.message
    assert folder.lstat() == before


@pytest.mark.parametrize("name", ["d" * 60, "ü", "it's", "back\\slash"])
def test_where_ray_cannot_use_the_path_each_data_directory_has_a_temporary_folder_of_its_own(
    data_dir: Path, name: str
) -> None:
    names = [data_dir / name, data_dir / "other" / name]
    for each in names:
        each.mkdir(parents=True)
    folders = [processes.private_folder(each) for each in names]
    try:
        assert folders[0] != folders[1]
        for each, folder in zip(names, folders, strict=True):
            assert folder.parent == Path(tempfile.gettempdir())
            assert mode(folder) == 0o700
            assert list(each.iterdir()) == []
    finally:
        for folder in folders:
            processes.stop(folder)
    assert not any(folder.exists() for folder in folders)


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


@pytest.mark.usefixtures("fake_ray")
def test_the_folder_of_a_ray_of_its_own_is_removed_at_the_end(data_dir: Path) -> None:
    folder = processes.private_folder(data_dir)
    processes.start(folder)
    processes.stop(folder)
    assert [path.name for path in data_dir.iterdir()] == ["log.db"]


@pytest.mark.parametrize("name", ["", "ü"])
def test_of_mediators_that_were_killed_the_last_session_alone_is_kept(
    data_dir: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(data_dir))
    data_dir /= name
    data_dir.mkdir(exist_ok=True)
    left = processes.private_folder(data_dir)
    for number in range(3):
        (left / "s" / f"session_2026-01-0{number + 1}").mkdir(parents=True)
    folder = processes.private_folder(data_dir)
    assert folder == left
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


@pytest.mark.parametrize("shared", ["small", "missing", "not writable"])
def test_without_room_in_shared_memory_the_store_of_ray_is_in_its_folder(
    data_dir: Path, fake_ray: Ray, shared: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_SHARED_MEMORY", data_dir)
    match shared:
        case "small":
            monkeypatch.setattr(processes, "OBJECT_STORE_BYTES", 2**62)
        case "missing":
            monkeypatch.setattr(processes, "_SHARED_MEMORY", data_dir / "missing")
        case _:  # no mode forbids root anything, but a file system that is read-only does
            monkeypatch.setattr(os, "access", lambda *_: False)
    folder = processes.private_folder(data_dir)
    processes.start(folder)
    assert fake_ray.options["_plasma_directory"] == str(folder)


def test_with_room_in_shared_memory_ray_has_its_store_there(
    data_dir: Path, fake_ray: Ray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_SHARED_MEMORY", data_dir)
    monkeypatch.setattr(processes, "OBJECT_STORE_BYTES", 1)
    processes.start(processes.private_folder(data_dir))
    assert fake_ray.options["_plasma_directory"] is None


def test_variables_of_another_ray_reach_none_of_the_mediators(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    others = ["ADDRESS", "REDIS_ADDRESS", "USE_TLS", "CLIENT_MODE", "RUNTIME_ENV_HOOK"]
    others += ["JOB_CONFIG_JSON_ENV_VAR", "AUTH_TOKEN_PATH"]
    kept = {"RAY_worker_niceness": "5", "RAY_BACKEND_LOG_LEVEL": "debug", "RAYON_NUM_THREADS": "2"}
    given = {f"RAY_{name}": "1" for name in others} | kept
    monkeypatch.setattr(os, "environ", given)
    environment.prepare()
    assert not {f"RAY_{name}" for name in others} & given.keys()
    assert kept.items() <= given.items()


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
