"""Host leases in a file beside a log in SQLite, for the processes of one machine.

A file lock, which ends with its process, admits one process at a time. Rows are written in place,
into blocks that the file has from the beginning: a full disk keeps no host from its lease. The time
is the machine's monotonic clock; rows from before the machine started are over. No process relies
on a row after a power cut, so no row is synced.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from struct import Struct
from typing import Final

import msgspec
from typing_extensions import override

from eventstore.log.errors import LogUnavailable
from eventstore.log.host_leases import HostLease, HostLeases

_TURN_S_MAX: Final = 1.0
_LOOK_S: Final = 0.005
_FILE_BYTES: Final = 64 * 1024
"""Room for some two hundred hosts, before the file has to grow."""
_HEAD: Final = Struct(">II")  # length and CRC-32 of the rows behind it


class _Rows(msgspec.Struct, array_like=True):
    """The content of the file: when it was written, and until when each host has its lease."""

    written_s: float
    rows: dict[str, tuple[float, HostLease]]


_ROWS: Final = msgspec.msgpack.Decoder(_Rows)


class HostLeaseFile(HostLeases):
    """A ``HostLeases`` in a file."""

    def __init__(self, path: Path, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Prepare the leases; opens no file. ``monotonic`` is a clock that all processes share."""
        self._path = path
        self._monotonic = monotonic
        self._turn = threading.Lock()
        self._file: int | None = None

    @override
    def take(self, lease: HostLease, seconds: float) -> None:
        with self._living() as (rows, now_s):
            rows[lease.name] = now_s + seconds, lease

    @override
    def renew(self, lease: HostLease, seconds: float) -> bool:
        with self._living() as (rows, now_s):
            if lease.name in rows and rows[lease.name][1].incarnation != lease.incarnation:
                return False
            rows[lease.name] = now_s + seconds, lease
            return True

    @override
    def living(self) -> Sequence[HostLease]:
        with self._living() as (rows, _):
            found = [row for _, row in sorted(rows.items())]
            return [msgspec.structs.replace(lease, ends_s=ends_s) for ends_s, lease in found]

    @override
    def leave(self, lease: HostLease) -> None:
        with self._living() as (rows, _):
            if lease.name in rows and rows[lease.name][1].incarnation == lease.incarnation:
                del rows[lease.name]

    @override
    def clock_s(self) -> None:
        """None: the clock is this machine's."""

    @override
    def close(self) -> None:
        with self._turn:
            self._close()

    @contextmanager
    def _living(self) -> Iterator[tuple[dict[str, tuple[float, HostLease]], float]]:
        """Yield the rows that have not ended, and the time; store the rows if they changed."""
        with self._turn:
            try:
                with self._locked() as file:
                    now_s = self._monotonic()
                    stored = _read(file)
                    rows = {
                        name: row
                        for name, row in stored.rows.items()
                        if stored.written_s <= now_s < row[0]
                    }
                    before = dict(rows)
                    yield rows, now_s
                    if rows != before:
                        _write(file, _Rows(now_s, rows))
            except OSError as error:
                self._close()
                raise LogUnavailable(f"host leases: {error}") from error

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """Lock the file for this process. Raises: OSError, also if another has it for too long."""
        if self._file is None:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            if os.fstat(self._file).st_size < _FILE_BYTES:
                os.posix_fallocate(self._file, 0, _FILE_BYTES)
        until_s = time.monotonic() + _TURN_S_MAX
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until_s:
                    raise
                time.sleep(_LOOK_S)
        try:
            yield self._file
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            os.close(file)


def _read(file: int) -> _Rows:
    """The rows in the file; none if they were not written whole, or in another layout."""
    content = os.pread(file, os.fstat(file).st_size, 0)
    length, checksum = _HEAD.unpack_from(content)
    packed = content[_HEAD.size : _HEAD.size + length]
    if packed and zlib.crc32(packed) == checksum:
        with suppress(msgspec.DecodeError):
            return _ROWS.decode(packed)
    return _Rows(0.0, {})


def _write(file: int, rows: _Rows) -> None:
    """Write the rows, and zeros over what was behind them: DIDs and tokens of hosts that are gone.

    Zeros reach as far as the file had anything, which an earlier release may have left there.
    """
    before = os.pread(file, os.fstat(file).st_size, 0).rstrip(b"\0")
    packed = msgspec.msgpack.encode(rows)
    content = _HEAD.pack(len(packed), zlib.crc32(packed)) + packed
    os.pwrite(file, content.ljust(len(before), b"\0"), 0)
