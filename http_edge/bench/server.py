"""Servers of the benchmark's own: ``poste serve`` in a temporary directory, above all."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from http_edge.bench.processes import ProcessTree
from http_edge.bench.target import Target

READY_S_MAX: Final = 180.0
LOOPBACK: Final = "127.0.0.1"
_OTHERS: Final = re.compile(r"POSTE_|RAY_|ACAPY_|.*_proxy\Z", re.IGNORECASE)
"""Variables that are meant for other servers, or lead elsewhere."""
_STOP_S_MAX: Final = 30.0
_POLL_S: Final = 0.05
_ANSWER_S_MAX: Final = 10.0
_OK: Final = 200
_LAST_LINES: Final = 5
_SERVE: Final = ("-c", "from http_edge.cli.main import main; main()", "serve")
_ECHO: Final = ("-m", "http_edge.bench.echo_edge")
_DID: Final = "did:web:bench.test"
"""Fixed, because the port is not, and a log belongs to one mediator for ever."""
UNLIMITED: Final[Mapping[str, str]] = {
    # One address and few senders make all of the load; rates are tested elsewhere.
    "rates.per_address_per_s": "0",
    "rates.per_sender_per_s": "0",
    "rates.public_reads_per_address_per_s": "0",
    "rates.sockets_auth_per_address_per_s": "0",
    "didcomm.socket_messages_per_s_max": "10000",
    "limits.sockets_max": "100000",
    "limits.sockets_per_address_max": "100000",
}


class NotReady(RuntimeError):
    """The server did not become ready, or ended."""


class OwnProcess(ABC):
    """A server process; a context manager that starts and stops it.

    Attributes:
        ready_s: Seconds from the start of the process until it was ready.
        target: Where it listens, once it is ready.
    """

    def __init__(
        self, command: Sequence[str], words: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        """A server that is not started; what it says goes to the file ``words``.

        ``environment`` is what it gets besides our own.
        """
        self.target = Target(LOOPBACK, 0)
        self.ready_s = 0.0
        self._command = list(command)
        self._words = words
        self._environment = environment or {}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def processes(self) -> ProcessTree:
        """The server's processes."""
        assert self._process is not None
        return ProcessTree(self._process.pid)

    def __enter__(self) -> Self:
        """Start, and wait until it is ready.

        Raises:
            NotReady: it ended, or took longer than READY_S_MAX.
        """
        started = time.monotonic()
        try:
            with self._words.open("wb") as words:
                self._process = subprocess.Popen(  # noqa: S603 - what the benchmark measures
                    self._command,
                    stdout=words,
                    stderr=words,
                    env={**own_environment(), **self._environment},
                )
        except OSError as error:
            raise NotReady(f"{self._command[0]}: {error.strerror}") from error
        try:
            while (url := self._ready_url()) is None:
                if self._process.poll() is not None:
                    raise NotReady(f"the server ended: {self._last_words()}")
                if time.monotonic() - started > READY_S_MAX:
                    raise NotReady(f"not ready after {READY_S_MAX} s: {self._last_words()}")
                time.sleep(_POLL_S)
        except BaseException:
            self.stop()
            raise
        self.ready_s = time.monotonic() - started
        self.target = Target.at(url)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End the server: politely, and after a while not."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        descendants = self.processes.pids()
        process.terminate()
        try:
            process.wait(_STOP_S_MAX)
        except subprocess.TimeoutExpired:
            for pid in reversed(descendants):
                _kill(pid)
            process.wait()

    @abstractmethod
    def _ready_url(self) -> str | None:
        """Where it listens; None as long as it is not ready."""

    def _last_words(self) -> str:
        return " | ".join(self._words.read_text(errors="replace").splitlines()[-_LAST_LINES:])


class OwnServer(OwnProcess):
    """``poste serve``, or the edge alone.

    ``data_dir`` outlives it, so that a second one can start from the same log.
    """

    def __init__(
        self, data_dir: Path, *, echo: bool = False, settings: Mapping[str, str] | None = None
    ) -> None:
        command = [sys.executable, *(_ECHO if echo else _SERVE)]
        facts = {"listen": f"{LOOPBACK}:0", "data_dir": str(data_dir), "did": _DID}
        for name, value in {**facts, **UNLIMITED, **(settings or {})}.items():
            command += ["--set", f"{name}={value}"]
        super().__init__(command, data_dir / "server.out")

    def _ready_url(self) -> str | None:
        for line in self._words.read_text(errors="replace").splitlines():
            word, *rest = line.split() or [""]
            if word == "ready" and rest:
                return rest[0]
        return None


def own_environment() -> dict[str, str]:
    """Our own environment without what was set for another server, or for Ray in this process."""
    return {name: value for name, value in os.environ.items() if not _OTHERS.match(name)}


def commits(target: Target) -> int | None:
    """Transactions of the log so far; None where the server does not tell."""
    try:
        status, body = _get(target, "/status")
        answer: Any = json.loads(body)
    except (OSError, http.client.HTTPException, ValueError):
        return None
    found = answer.get("commits") if status == _OK and isinstance(answer, dict) else None
    return found if isinstance(found, int) else None


def _get(target: Target, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(target.host, target.port, timeout=_ANSWER_S_MAX)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
