"""Files that options name: whole, or as they were."""

import os
import select
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from http_edge.cli.output import require_writable, write_file
from http_edge.server.exits import Exit, Stop
from tests.full_disk import files_up_to


def _write(path: Path, content: bytes = b"content") -> None:
    require_writable(path, "--proof")
    write_file(path, content, "--proof")


@pytest.mark.parametrize("earlier", [None, b"old"])
def test_a_file_that_cannot_be_written_whole_is_left_as_it_was(
    tmp_path: Path, earlier: bytes | None
) -> None:
    path = tmp_path / "receipt.json"
    if earlier is not None:
        path.write_bytes(earlier)
    with files_up_to(4), pytest.raises(Stop) as stop:
        write_file(path, b"content", "--receipt")
    assert (stop.value.exit_code, "--receipt" in stop.value.remedy) == (Exit.USAGE, True)
    left = {one.name: one.read_bytes() for one in tmp_path.iterdir()}
    assert left == ({} if earlier is None else {"receipt.json": earlier})


@pytest.mark.parametrize("content", [b"content", b""])
def test_all_names_of_a_file_show_what_was_written_and_a_device_stays_one(
    tmp_path: Path, content: bytes
) -> None:
    path, link, hard = (tmp_path / name for name in ("proof.json", "newest", "other"))
    path.write_bytes(b"earlier and longer")
    link.symlink_to(path)
    hard.hardlink_to(path)
    for one in (link, Path("/dev/null")):
        _write(one, content)
    assert (link.is_symlink(), path.read_bytes(), hard.read_bytes()) == (True, content, content)
    assert Path("/dev/null").is_char_device()
    assert len([*tmp_path.iterdir()]) == 3


def test_a_file_keeps_its_rights(tmp_path: Path) -> None:
    path = tmp_path / "invitation.png"
    path.touch()
    path.chmod(0o600)
    _write(path)
    assert (stat.S_IMODE(path.stat().st_mode), path.read_bytes()) == (0o600, b"content")


def test_a_link_to_a_file_that_is_not_there_yet_stays_a_link(tmp_path: Path) -> None:
    path, link = tmp_path / "proof.json", tmp_path / "newest"
    link.symlink_to(path)
    _write(link)
    assert (link.is_symlink(), path.read_bytes()) == (True, b"content")


_AS_ANOTHER_USER_THAN_ROOT = """
import os, sys
from pathlib import Path
from http_edge.cli.output import require_writable, write_file

if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
path = Path(sys.argv[1])
require_writable(path, "--proof")
write_file(path, b"content", "--proof")
"""


def test_a_file_that_can_be_written_is_though_its_directory_cannot() -> None:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "proof.json"
        path.touch()
        path.chmod(0o666)
        Path(name).chmod(0o555)
        command = [sys.executable, "-c", _AS_ANOTHER_USER_THAN_ROOT, str(path)]
        done = subprocess.run(command, capture_output=True, check=False)
        Path(name).chmod(0o755)
        assert (done.returncode, done.stderr) == (0, b"")
        assert path.read_bytes() == b"content"


def test_a_file_that_cannot_be_read_is_refused_before_what_cannot_be_undone() -> None:
    """What is there is put back if the new content finds no room, so it is read before."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "receipt.json"
        path.write_bytes(b"earlier")
        path.chmod(0o222)
        Path(name).chmod(0o755)
        command = [sys.executable, "-c", _AS_ANOTHER_USER_THAN_ROOT, str(path)]
        done = subprocess.run(command, capture_output=True, check=False)
        path.chmod(0o644)
        assert b"in require_writable" in done.stderr
        assert b"receipt.json cannot be written: Permission denied" in done.stderr
        assert path.read_bytes() == b"earlier"


def test_an_open_file_is_written_and_no_other_one_in_its_place(tmp_path: Path) -> None:
    printed = tmp_path / "printed"
    with printed.open("wb") as output:
        _write(Path(f"/dev/fd/{output.fileno()}"))
        assert os.path.samestat(printed.stat(), os.fstat(output.fileno()))


def test_the_reader_of_a_pipe_is_there_still_when_the_file_comes(tmp_path: Path) -> None:
    pipe = tmp_path / "receipt"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    came = select.poll()
    came.register(reader)
    require_writable(pipe, "--receipt")
    assert came.poll(0) == []  # no end of the file, with which a reader leaves
    write_file(pipe, b"content", "--receipt")
    assert os.read(reader, 99) == b"content"
    os.close(reader)
