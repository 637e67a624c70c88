"""The place of an export: files that appear whole and durable, or not at all.

On a local disk, a file gets a temporary name, fsync, a rename, and fsync of its folder. In an
object store, a finished object appears whole.

A folder of an export that is made here is for its owner alone, as the file of a log is; one that
exists keeps its permissions.

Paths are relative to the root of the export. This module does not decide what a file means: only
a manifest makes data files count (``eventstore.parquet.manifest``).
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import parse_qs, quote, unquote, urlsplit

import pyarrow as pa
from pyarrow import fs

from eventstore.parquet.errors import Damage, ExportDamaged, ExportUnavailable

HEAD: Final = "export.json"
EVENTS: Final = "events"
MANIFESTS: Final = "manifests"
SUMMARIES: Final = "summaries"
INDEX: Final = "index"
END: Final = "end.json"
TABLE_LOG: Final = f"{EVENTS}/_delta_log"
PART: Final = ".part"
"""The suffix of the temporary name of a file that is being written."""
STATEMENT_BYTES_MAX: Final = 64 * 1024 * 1024
"""More than any file has of which nothing signed says the size: a statement, or a commit of the
table, which has about a kilobyte for each data file that it names."""
_PIECE_BYTES: Final = 8 * 1024 * 1024
_AT_ONCE: Final = 8
"""Files that are read or written at the same time: each waits for the disk or the store."""
_FEW: Final = 64
"""Files of this machine whose reading one by one takes less time than to start threads for it."""
_OF_OWNER: Final = 0o700
_OF_UMASK: Final = 0o777
_S3_OPTIONS: Final = {
    # A store that does not answer is reported as gone after about ten seconds, not minutes.
    "max_retries": "3",
    "retry_timeout": "10s",
    "connect_timeout": "5s",
    "aws_conditional_put": "etag",
}
_TAKEN_FOR_OTHERS: Final = re.compile(r"%[0-9A-Fa-f]{2}|[\\\x00-\x1f\x7f]")
"""Characters in a path that the library of the table decodes as if in a URI; twice in a store."""


class TableAddress(NamedTuple):
    """The address of the table for its library: a path or URI, and the options of the store."""

    uri: str
    options: Mapping[str, str]


class FileMissing(Exception):
    """There is no such file; the caller knows whether there should be."""


def _free() -> None:
    """Allow every change, in a place without a lock: its caller ensures that it writes alone."""


class ExportPlace:
    """A folder of this machine, or of an object store that ``pyarrow.fs`` knows.

    Every method raises ``ExportUnavailable`` when the file system fails.

    Attributes:
        check: Raises if this process may not write here now; called before each change.
        table: The address of this export's table, ``EVENTS`` of this folder.
        is_local: Whether the folder is on this machine. Only there has a file a temporary name
            while it is written, which a kill leaves.
    """

    def __init__(
        self,
        filesystem: fs.FileSystem,
        root: str,
        check: Callable[[], None] = _free,
        *,
        table: TableAddress | None = None,
    ) -> None:
        """Without a ``table`` the folder must be on this machine."""
        self.filesystem, self.root = filesystem, root.rstrip("/")
        self.check = check
        self.table = table or TableAddress(f"{self.root}/{EVENTS}", {})
        self.is_local = isinstance(self.filesystem, fs.LocalFileSystem)

    def address(self) -> str:
        """The address of this place, the same for all spellings of it."""
        return f"{self.filesystem.type_name}:{self.root}"

    def checked(self, check: Callable[[], None]) -> ExportPlace:
        """The same place, with ``check`` called before each change."""
        return ExportPlace(self.filesystem, self.root, check, table=self.table)

    def full_path(self, path: str) -> str:
        """The path as the file system knows it."""
        return f"{self.root}/{path}"

    def read(self, path: str, bytes_max: int | None = None) -> bytes:
        """Read a file; of a larger one than ``bytes_max``, one byte more than that.

        Others may write to an export, so no file is read to an end that only its writer knows:
        ``bytes_max`` follows from what is signed, or is ``STATEMENT_BYTES_MAX`` for None.

        Raises:
            FileMissing: there is no such file.
        """
        most = STATEMENT_BYTES_MAX if bytes_max is None else bytes_max
        with self.opened(path) as file:
            content: bytes = file.read(min(file.size(), most + 1))
        return content

    def sha256(self, path: str) -> str:
        """The SHA-256 of a file of any size, hexadecimal; empty if there is no such file."""
        found = hashlib.sha256()
        with suppress(FileMissing), self.opened(path) as file:
            for start in range(0, file.size(), _PIECE_BYTES):
                found.update(file.read_at(_PIECE_BYTES, start))
            return found.hexdigest()
        return ""

    def read_if_there(self, path: str, bytes_max: int | None = None) -> bytes | None:
        """Read a file as ``read``; None if there is no such file."""
        try:
            return self.read(path, bytes_max)
        except FileMissing:
            return None

    def read_named(self, path: str, why: str, bytes_max: int | None = None) -> bytes:
        """Read a file that another one names, as ``why`` says. Raises: ExportDamaged."""
        content = self.read_if_there(path, bytes_max)
        if content is None:
            raise ExportDamaged(path, Damage.MISSING, why)
        return content

    def read_all(self, paths: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        """Yield paths and contents of files, without missing ones; few are in memory at a time."""
        names = list(paths)
        if len(names) <= (_FEW if self.is_local else 1):
            read = ((path, self.read_if_there(path)) for path in names)
            yield from ((path, content) for path, content in read if content is not None)
            return
        with ThreadPoolExecutor(_AT_ONCE) as readers:
            for start in range(0, len(names), _AT_ONCE):
                few = names[start : start + _AT_ONCE]
                for path, content in zip(few, readers.map(self.read_if_there, few), strict=True):
                    if content is not None:
                        yield path, content

    def read_part(self, path: str, start: int, length: int) -> bytes:
        """Read up to ``length`` bytes of a file from an offset. Raises as ``read``."""
        with self.opened(path) as file:
            content: bytes = file.read_at(length, start)
        return content

    @contextmanager
    def opened(self, path: str) -> Iterator[pa.NativeFile]:
        """Open a file to read parts of it.

        Raises:
            FileMissing: there is no such file.
        """
        with _unavailable(path):
            try:
                with self.filesystem.open_input_file(self.full_path(path)) as file:
                    yield file
            except FileNotFoundError as error:
                raise FileMissing(path) from error

    def write(self, path: str, content: bytes | pa.Buffer) -> None:
        """Make or replace a file, whole and durable when this returns."""
        self.check()
        self._write(path, content)
        self._sync_folders([path])

    def write_all(self, contents: Mapping[str, bytes]) -> None:
        """Make or replace files that do not depend on one another, all durable on return."""
        if not contents:
            return
        self.check()
        with ThreadPoolExecutor(_AT_ONCE) as writers:
            for _ in writers.map(self._write, contents, contents.values()):
                pass
        self._sync_folders(contents)

    def _write(self, path: str, content: bytes | pa.Buffer) -> None:
        """Write a file; on this machine it is durable once its folder is synced."""
        with _unavailable(path):
            if self.is_local:
                _write_local(Path(self.root), path, content)
            else:
                self._write_elsewhere(self.full_path(path), content)

    def _sync_folders(self, paths: Iterable[str]) -> None:
        """Make the names of new files durable; finished objects of a store are already."""
        if self.is_local:
            for folder in sorted({Path(self.full_path(path)).parent for path in paths}):
                with _unavailable(str(folder)):
                    _sync(folder)

    def sizes(self, folder: str) -> dict[str, int]:
        """All files below a folder with their sizes in bytes; none if there is no such folder."""
        with _unavailable(folder):
            found = self.filesystem.get_file_info(
                fs.FileSelector(self.full_path(folder), recursive=True, allow_not_found=True)
            )
        start = len(self.root) + 1
        return {info.path[start:]: info.size for info in found if info.type == fs.FileType.File}

    def data_sizes(self) -> dict[str, int]:
        """All files below ``EVENTS`` with their sizes, except the table's own log."""
        found = self.sizes(EVENTS)
        return {path: size for path, size in found.items() if not path.startswith(f"{TABLE_LOG}/")}

    def sync(self, path: str) -> None:
        """Make a file of another writer durable; finished objects of a store are already."""
        if self.is_local:
            with _unavailable(path):
                _sync(Path(self.full_path(path)))
            self._sync_folders([path])

    def exists(self) -> bool:
        """Whether the folder exists, whatever it holds."""
        with _unavailable(self.root):
            info = self.filesystem.get_file_info(self.root)
        return bool(info.type == fs.FileType.Directory)

    def folders(self) -> list[str]:
        """The names of the folders at the root."""
        with _unavailable(self.root):
            found = self.filesystem.get_file_info(fs.FileSelector(self.root, allow_not_found=True))
        return [info.base_name for info in found if info.type == fs.FileType.Directory]

    def written_s(self, paths: Sequence[str]) -> list[float]:
        """When each of these files was written, Unix seconds by the clock of the store."""
        if not paths:
            return []
        with _unavailable(paths[0]):
            found = self.filesystem.get_file_info([self.full_path(path) for path in paths])
        return [(info.mtime_ns or 0) / 1e9 for info in found]

    def remove(self, path: str) -> None:
        """Remove a file, if it exists, and on a local disk the folder if that is empty then."""
        self.check()
        with _unavailable(path):
            with suppress(FileNotFoundError):
                self.filesystem.delete_file(self.full_path(path))
            if self.is_local:
                with suppress(OSError):
                    Path(self.full_path(path)).parent.rmdir()

    def remove_if(self, path: str, is_useless: Callable[[bytes], bool]) -> None:
        """Remove a file of this machine whose content is useless.

        If another process has replaced it by now, that file stays. A lock on the file ensures that
        no other process removes it, and so replaces it, between the check and the removal. A kill
        before the removal leaves the file, and no lock. NFS locks only files open for writing.
        """
        self.check()
        file = Path(self.full_path(path))
        with _unavailable(path), file.open("r+b") as opened:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_same = is_useless(opened.read(STATEMENT_BYTES_MAX + 1)) and os.path.samestat(
                os.fstat(opened.fileno()), file.stat()
            )
            if is_same:
                file.unlink()

    def _write_elsewhere(self, path: str, content: bytes | pa.Buffer) -> None:
        with self.filesystem.open_output_stream(path) as stream:
            stream.write(content)
        # A stream that fails and is then closed may leave a shorter file.
        written = self.filesystem.get_file_info(path).size
        if written != len(content):
            raise OSError(f"{written} of {len(content)} bytes were written")


def open_place(target: str) -> ExportPlace:
    """The place that a path of this machine or a URI (``s3://bucket/folder?region=…``) names.

    Raises:
        ExportUnavailable: the target names no place, or one whose name the library of the table
            would misread, or the store cannot be reached.
    """
    place = _place_of_uri(target) if "://" in target else _place_of_path(target)
    if _TAKEN_FOR_OTHERS.search(place.root):
        why = "no table can be where a name has %20 or the like, a backslash or a tab"
        raise ExportUnavailable(place.root, why)
    return place


def _place_of_path(target: str) -> ExportPlace:
    """The place that a path names. Raises: ExportUnavailable."""
    try:
        folder = str(Path(target).expanduser().absolute())
    except RuntimeError as error:  # ~ of a user without a known home directory
        raise ExportUnavailable(target, str(error)) from error
    return ExportPlace(fs.LocalFileSystem(), folder)


def _place_of_uri(target: str) -> ExportPlace:
    """The place that a URI names. Raises: ExportUnavailable."""
    try:
        filesystem, root = fs.FileSystem.from_uri(target)
        if not root:
            raise ValueError(target)
        return ExportPlace(filesystem, root, table=_table_address(target, root))
    except (OSError, ValueError):
        # The message leaves out the error: the address may hold a password.
        place = f"{target.partition('://')[0]}://…"
        why = "not the address of a known and reachable store"
        raise ExportUnavailable(place, why) from None


def _write_local(root: Path, name: str, content: bytes | pa.Buffer) -> None:
    """Write a file that appears whole; it is durable once its folder is synced."""
    path = root / name
    _make_folder(path.parent, root)
    draft = path.with_name(f".{path.name}{PART}")
    try:
        with draft.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError:
        with suppress(OSError):
            draft.unlink()
        raise


def _make_folder(path: Path, root: Path) -> None:
    """Make a folder and its parents, each durable in its parent; ``root`` for its owner alone."""
    if path.is_dir():
        return
    _make_folder(path.parent, root)
    path.mkdir(_OF_OWNER if path == root else _OF_UMASK, exist_ok=True)
    _sync(path.parent)


def _table_address(target: str, root: str) -> TableAddress:
    """The address of the table in a store that ``pyarrow`` knows by this URI.

    Raises:
        ValueError: the library of the table does not know such a store.
    """
    parts, table = urlsplit(target), quote(f"{root}/{EVENTS}")
    if parts.scheme == "file":
        return TableAddress(f"{root}/{EVENTS}", {})
    if parts.scheme == "s3":
        return TableAddress(f"s3://{table}", _S3_OPTIONS | dict(_s3_options(target)))
    if parts.scheme in ("gs", "gcs"):
        return TableAddress(f"gs://{table}", {})
    if parts.scheme in ("abfs", "abfss"):
        return TableAddress(f"{target.partition('?')[0].rstrip('/')}/{EVENTS}", {})
    raise ValueError(parts.scheme)


def _s3_options(target: str) -> Iterator[tuple[str, str]]:
    """The options in the URI; the environment gives the others, as for ``pyarrow``."""
    parts = urlsplit(target)
    query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    if parts.username and parts.password:
        yield "aws_access_key_id", unquote(parts.username)
        yield "aws_secret_access_key", unquote(parts.password)
    if region := query.get("region"):
        yield "aws_region", region
    scheme = query.get("scheme", "https")
    if endpoint := query.get("endpoint_override"):
        yield "aws_endpoint_url", endpoint if "://" in endpoint else f"{scheme}://{endpoint}"
    if scheme == "http":
        yield "aws_allow_http", "true"


def _sync(path: Path) -> None:
    """Sync a file or a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _unavailable(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ExportUnavailable(path, _said(error)) from error


def _said(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error)).splitlines()[0]
