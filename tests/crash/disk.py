"""The disk as a power cut may leave it: rebuilt from the system calls of a process.

``strace`` notes what a process writes and syncs. After each of its calls the power may fail; then
the disk holds all that was synced, and of the rest nothing, everything, or some of it, blocks
of 512 bytes torn apart. Directory entries are taken to last at once; the -shm file of SQLite is
left out, because SQLite makes it anew.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

STRACE: Final = ("strace", "-f", "--seccomp-bpf", "-qq")
"""Follows all threads, and stops them at no other calls than those that are named."""
STRACE_WRITES: Final = (
    *(*STRACE, "-xx", "-y", "-s", "1000000"),
    *("-e", "trace=pwrite64,write,fdatasync,fsync,ftruncate,unlink,unlinkat"),
)
BLOCK_BYTES: Final = 512
_STDOUT: Final = "1"
_CALL: Final = re.compile(r"(\w+)\((.*)\) += (-?\d+)")
_HEX: Final = re.compile(r"\\x([0-9a-f]{2})")
_FILE: Final = re.compile(r"(\d+)<(.*?)>")
_TEXT: Final = re.compile(r'"(.*?)"')


class Write(NamedTuple):
    """Bytes put at an offset of a file."""

    name: str
    offset: int
    data: bytes


class Resize(NamedTuple):
    """A file cut, or grown with zeros, to a size in bytes."""

    name: str
    size_bytes: int


class Sync(NamedTuple):
    """What was written to a file by the first ``begun`` operations is on the disk.

    What another thread wrote while it took place need not be.
    """

    name: str
    begun: int


class Unlink(NamedTuple):
    """A file is gone."""

    name: str


class Said(NamedTuple):
    """Bytes that left by stdout: from now on the world knows them."""

    data: bytes


Operation: TypeAlias = Write | Resize | Sync | Unlink | Said
Image: TypeAlias = dict[str, bytearray]


class Unsynced(Enum):
    """What becomes of writes that were not synced."""

    NONE = "none"
    ALL = "all"
    SOME = "some"
    TORN = "torn"


def operations(trace: Path, directory: Path) -> Iterator[Operation]:
    """What a process did to the files of a directory, and said, by its trace."""
    begun: dict[str, tuple[str, int]] = {}
    done = 0
    for line in trace.read_text("ascii").splitlines():
        thread, _, call = line.partition(" ")
        call = call.strip()
        if call.endswith("<unfinished ...>"):
            begun[thread] = call.removesuffix("<unfinished ...>"), done
            continue
        before = done
        if call.startswith("<..."):
            start, before = begun.pop(thread)
            call = start + call.partition("resumed>")[2]
        if match := _CALL.fullmatch(call):
            name, arguments, result = match.groups()
            if int(result) >= 0:
                for operation in _operation(name, arguments, int(result), directory, before):
                    yield operation
                    done += 1


def _operation(
    call: str, arguments: str, result: int, directory: Path, begun: int
) -> Iterator[Operation]:
    """What a call did that began after so many operations."""
    if call in {"unlink", "unlinkat"}:
        path = _text(_TEXT.search(arguments))
        if Path(path).parent == directory:
            yield Unlink(Path(path).name)
        return
    file = _FILE.match(arguments)
    assert file is not None, arguments
    rest = arguments[file.end() :]
    if call == "write":
        if file[1] == _STDOUT:
            yield Said(_bytes(rest)[:result])
        return
    path = _plain(file[2]).decode()
    if Path(path).parent != directory or path.endswith("-shm"):
        return
    name = Path(path).name
    match call:
        case "pwrite64":
            yield Write(name, int(rest.rpartition(",")[2]), _bytes(rest)[:result])
        case "ftruncate":
            yield Resize(name, int(rest.rpartition(",")[2]))
        case _:
            # It covers what came before its begin, not what came before its end.
            yield Sync(name, begun)


def after(
    base: Mapping[str, bytes], done: Sequence[Operation], fate: Unsynced, chance: random.Random
) -> Image:
    """The disk after a power cut that follows these operations."""
    disk = {name: bytearray(content) for name, content in base.items()}
    waiting: dict[str, list[tuple[int, Write | Resize]]] = {}
    for number, operation in enumerate(done):
        match operation:
            case Write(name) | Resize(name):
                waiting.setdefault(name, []).append((number, operation))
            case Sync(name, begun):
                changes = waiting.pop(name, [])
                for _, change in [c for c in changes if c[0] < begun]:
                    _apply(disk, change)
                waiting[name] = [c for c in changes if c[0] >= begun]
            case Unlink(name):
                disk.pop(name, None)
                waiting.pop(name, None)
            case Said():
                pass
    for _, change in [change for changes in waiting.values() for change in changes]:
        if kept := _kept(change, fate, chance):
            _apply(disk, kept)
    return disk


def _kept(change: Write | Resize, fate: Unsynced, chance: random.Random) -> Write | Resize | None:
    """What a power cut leaves of a change that was not synced."""
    if fate is Unsynced.NONE:
        return None
    if fate is Unsynced.ALL:
        return change
    if chance.random() < 1 / 2:
        return None
    if fate is Unsynced.TORN and isinstance(change, Write) and len(change.data) > BLOCK_BYTES:
        return change._replace(
            data=change.data[: chance.randrange(0, len(change.data), BLOCK_BYTES)]
        )
    return change


def _apply(disk: Image, change: Write | Resize) -> None:
    content = disk.setdefault(change.name, bytearray())
    match change:
        case Resize(_, size_bytes):
            del content[size_bytes:]
            content.extend(bytes(size_bytes - len(content)))
        case Write(_, offset, data):
            content.extend(bytes(max(0, offset - len(content))))
            content[offset : offset + len(data)] = data


def _bytes(arguments: str) -> bytes:
    match = _TEXT.search(arguments)
    assert match is not None, arguments
    return _plain(match[1])


def _text(match: re.Match[str] | None) -> str:
    return "" if match is None else _plain(match[1]).decode()


def _plain(escaped: str) -> bytes:
    """The bytes that strace wrote as hexadecimal escapes."""
    return bytes.fromhex("".join(_HEX.findall(escaped)))
