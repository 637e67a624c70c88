"""A host in a process of its own, without Ray: batches come in on stdin, answers go out on stdout.

``python -m tests.crash.owner LOG [SYNCHRONOUS [CHECKPOINT_BYTES [ERASED_WITHIN_S]]]`` is that
process; ``Owner`` starts it and asks it.
What has left its stdout is known outside, so whatever happens to it later, it has to hold.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import IO, Any, Final, Self

import msgspec

from actors.core.limits import HostLimits
from actors.core.replies import BatchResult, Push, Reply
from actors.core.submissions import Submission
from actors.host.identity_host import HostOptions
from eventstore.log.event_log import EventLog
from eventstore.stores.recorder_log import RecorderLog
from eventstore.stores.sqlite_connections import CHECKPOINT_BYTES
from eventstore.stores.sqlite_erasure import WITHIN_S
from eventstore.stores.sqlite_log import SqliteStore
from tests.called_host import CalledHost
from tests.forked import started

PARTITION: Final = "shard-0"
ANSWER_S_MAX: Final = 60.0
_LENGTH_BYTES: Final = 4
_LOOK_S: Final = 0.001
_GO: Final = b"\n"
_BATCH: Final = msgspec.msgpack.Encoder()
_RESULT: Final = msgspec.msgpack.Decoder(BatchResult)


class Owner:
    """The process as a context manager; ``prefix`` runs it under another program."""

    def __init__(self, dsn: str, *options: str, prefix: Sequence[str] = ()) -> None:
        self._process: subprocess.Popen[bytes] | _Traced = subprocess.Popen(
            [*prefix, sys.executable, "-m", "tests.crash.owner", dsn, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    @classmethod
    def traced(cls, dsn: str, tracer: Sequence[str]) -> Self:
        """One that is there at once, and does nothing before this program has attached to it."""
        owner = cls.__new__(cls)
        owner._process = _Traced(dsn, tracer)
        return owner

    def ask(self, *submissions: Submission) -> list[Reply] | None:
        """The replies to one batch; None when the process has ended instead."""
        return self.answer() if self.send(*submissions) else None

    def send(self, *submissions: Submission) -> bool:
        """Hand over a batch; False when the process has ended."""
        batch = _BATCH.encode(submissions)
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(len(batch).to_bytes(_LENGTH_BYTES) + batch)
        except BrokenPipeError:
            return False
        return True

    def answer(self) -> list[Reply] | None:
        """The replies to the oldest batch without an answer; None when the process has ended."""
        assert self._process.stdout is not None
        assert self.has_answered(ANSWER_S_MAX), "no answer"
        result = _read(self._process.stdout)
        return None if result is None else _RESULT.decode(result).replies

    def has_answered(self, within_s: float) -> bool:
        """Is there, within so many seconds, an answer that was not taken, or has it ended?"""
        assert self._process.stdout is not None
        return bool(select.select([self._process.stdout], [], [], within_s)[0])

    def signal(self, number: signal.Signals) -> None:
        """A signal to the process and the one that it may run under; after SIGKILL both are gone.

        Signalled is not gone: what SQLite shares with a process that still ends is not read anew.
        """
        with suppress(ProcessLookupError):  # it has ended by itself
            os.killpg(self._process.pid, number)
        if number == signal.SIGKILL:
            self._process.wait()
            assert self._process.stdout is not None
            # The one that runs under another program is not our child: its end closes the pipe.
            while self._process.stdout.read(_LENGTH_BYTES):
                pass

    def stop(self) -> int:
        """Let it end when all is answered: its exit code."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self._process.wait(ANSWER_S_MAX)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self.signal(signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


class _Traced:
    """An owner's process, forked from one that has imported all of this, and traced from its start.

    As far as ``Owner`` asks it, it is a ``Popen``.
    """

    def __init__(self, dsn: str, tracer: Sequence[str]) -> None:
        request, stdin = os.pipe()
        stdout, answers = os.pipe()
        self.stdin: IO[bytes] = os.fdopen(stdin, "wb", buffering=0)
        self.stdout: IO[bytes] = os.fdopen(stdout, "rb", buffering=0)
        self._process = started(_forked, dsn, DupFd(request), DupFd(answers))
        os.close(request)
        os.close(answers)
        assert self._process.pid is not None
        self.pid = self._process.pid
        self._tracer = subprocess.Popen(
            [*tracer, "-p", str(self.pid)], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while "TracerPid:\t0\n" in Path(f"/proc/{self.pid}/status").read_text():
            assert self._tracer.poll() is None, "it cannot be traced"
            time.sleep(_LOOK_S)
        self.stdin.write(_GO)

    def poll(self) -> int | None:
        """With what it has ended; None while it lives."""
        return self._process.exitcode

    def wait(self, seconds: float | None = None) -> int:
        """With what it ends; what was traced is written by then."""
        self._process.join(seconds)
        assert self._process.exitcode is not None, "it does not end"
        self._tracer.wait(seconds)
        return self._process.exitcode


def _forked(dsn: str, request: Any, answers: Any) -> None:
    os.setsid()
    os.dup2(request.detach(), 0)
    os.dup2(answers.detach(), 1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    assert os.read(0, len(_GO)) == _GO
    main(dsn)


@contextmanager
def here(dsn: str, log: EventLog | None = None) -> Iterator[CalledHost]:
    """The same host in this process.

    Raises:
        LogError: the log cannot be opened, or its partition not be claimed.
    """
    options = HostOptions("owner", dsn, [PARTITION], HostLimits())
    host = CalledHost(options, _no_other_edge, log=log)
    try:
        yield host
    finally:
        host.stop()


def ask(host: CalledHost, *submissions: Submission) -> list[Reply]:
    """The replies of a host in this process to one batch."""
    return _RESULT.decode(host.submit("edge", _BATCH.encode(submissions))).replies


def replies_in(result: bytes) -> list[Reply]:
    """The replies in what the process wrote to its stdout."""
    return _RESULT.decode(result[_LENGTH_BYTES:]).replies


def _no_other_edge(edge: str, pushes: list[Push]) -> None:
    raise AssertionError(f"{len(pushes)} pushes for {edge}")


def _read(pipe: IO[bytes]) -> bytes | None:
    """One message of a pipe without buffer; None at its end."""
    length = pipe.read(_LENGTH_BYTES)
    if not length:
        return None
    wanted, message = int.from_bytes(length), b""
    while len(message) < wanted and (chunk := pipe.read(wanted - len(message))):
        message += chunk
    return message


def _log_with(
    dsn: str, synchronous: str, checkpoint_bytes: int, erased_within_s: float
) -> EventLog:
    """The log with another setting than the one that it sets on each connection."""
    path = Path(dsn.removeprefix("sqlite:"))
    store = SqliteStore(path, checkpoint_bytes=checkpoint_bytes, erased_within_s=erased_within_s)
    store.writer.connection.execute(f"PRAGMA synchronous = {synchronous}")
    return RecorderLog(store)


def main(
    dsn: str,
    synchronous: str | None = None,
    checkpoint_bytes: str = f"{CHECKPOINT_BYTES}",
    erased_within_s: str = f"{WITHIN_S}",
) -> None:
    """Answer until stdin ends."""
    settings = int(checkpoint_bytes), float(erased_within_s)
    log = _log_with(dsn, synchronous, *settings) if synchronous else None
    with here(dsn, log) as host:
        request = os.fdopen(0, "rb", buffering=0)
        while (batch := _read(request)) is not None:
            answer = host.submit("edge", batch)
            # One call, so that an answer is out as a whole or not at all.
            os.write(1, len(answer).to_bytes(_LENGTH_BYTES) + answer)


if __name__ == "__main__":
    main(*sys.argv[1:])
