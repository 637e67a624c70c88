"""Files that options name: whole, or as they were."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from http_edge.cli.output import require_writable, write_file
from http_edge.server.exits import Exit, Stop


@contextmanager
def _room_for(size: int) -> Iterator[None]:
    """Within the block this process writes no file beyond this size, as if the disk were full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("earlier", [None, b"earlier"])
def test_a_file_that_cannot_be_written_whole_is_left_as_it_was(
    tmp_path: Path, earlier: bytes | None
) -> None:
    path = tmp_path / "receipt.json"
    if earlier is not None:
        path.write_bytes(earlier)
    with _room_for(4), pytest.raises(Stop) as stop:
        write_file(path, b"content", "--receipt")
    assert (stop.value.exit_code, "--receipt" in stop.value.remedy) == (Exit.USAGE, True)
    left = {one.name: one.read_bytes() for one in tmp_path.iterdir()}
    assert left == ({} if earlier is None else {"receipt.json": earlier})


def test_a_file_replaces_what_a_link_names_and_a_device_stays_one(tmp_path: Path) -> None:
    path, link = tmp_path / "proof.json", tmp_path / "newest"
    path.write_bytes(b"earlier")
    link.symlink_to(path)
    for one in (link, Path("/dev/null")):
        require_writable(one, "--proof")
        write_file(one, b"content", "--proof")
    assert (link.is_symlink(), path.read_bytes()) == (True, b"content")
    assert Path("/dev/null").is_char_device()
    assert len([*tmp_path.iterdir()]) == 2
