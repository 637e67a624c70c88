"""A real ``poste serve`` and all its processes, each of which a test may stop or kill."""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Final, Self

from eventstore.log.event_log import EventLog
from eventstore.stores.open_log import open_log
from http_edge.cli.running_mediator import operators_access
from http_edge.settings.settings import Settings
from tests.ports import free_port

READY_S_MAX: Final = 120.0
GONE_S_MAX: Final = 30.0
MEDIATOR_DID: Final = "did:web:mediator.test"

EDGE: Final = "ray::RayEdge"
HOST: Final = "ray::RayIdentityHost"
DEDICATED: Final = "ray::RayDedicatedHost"
RAYLET: Final = "raylet"
GCS: Final = "gcs_server"
"""Ray's own: without it no process of the mediator is started again."""
LINGERING: Final = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")
"""Ray's own two: on finding Ray dead they try for 60 s, fixed in Ray, to report it to Ray."""

_UNLIMITED: Final = {
    # One address and few senders make all of the load; rates have tests of their own.
    "rates.per_address_per_s": "0",
    "rates.per_sender_per_s": "0",
    "rates.public_reads_per_address_per_s": "0",
    "rates.sockets_auth_per_address_per_s": "0",
    "rates.registrations_per_s": "0",
    "rates.registrations_per_address_per_s": "0",
}
_STATE, _SESSION = 0, 3  # fields of /proc/<pid>/stat after the command's name


class Server:
    """A mediator in a session of its own, so that every process it makes can be found.

    A context manager that starts it and, whatever a test did, leaves no process behind.
    """

    defaults: Mapping[str, str] = _UNLIMITED
    """What is set where a test says nothing else."""

    def __init__(self, data_dir: Path, **settings: str) -> None:
        self.data_dir = data_dir
        self.environment: Mapping[str, str] = own_environment()
        self.prefix: Sequence[str] = ()
        """Before its command: where it is to run."""
        self.url = ""
        self._listen = settings.pop("listen", "") or f"127.0.0.1:{free_port()}"
        self._settings = {"did": MEDIATOR_DID, **self.defaults, **settings}
        self._process: subprocess.Popen[bytes] | None = None
        self._sessions: list[int] = []

    def run_from(self, tree: Path | None) -> None:
        """From the next start on run the packages of this checkout, or those of this one."""
        self.environment, self.prefix = own_environment(), ()
        if tree is not None:
            # They come before the installed ones, in Ray's workers too.
            self.environment = {**self.environment, "PYTHONPATH": str(tree)}
            self.prefix = ("env", "-C", str(tree))

    @property
    def pid(self) -> int:
        """The main process."""
        assert self._process is not None
        return self._process.pid

    def operators(self) -> tuple[str, str]:
        """Where it answers operators, and their token."""
        return operators_access(Settings(data_dir=self.data_dir))

    @property
    def dsn(self) -> str:
        """The address of its log."""
        return self._settings.get("log", f"sqlite:{self.data_dir / 'log.db'}")

    def log(self) -> EventLog:
        """The log, opened beside the server."""
        return open_log(self.dsn)

    def logs(self) -> Sequence[EventLog]:
        """The only database of the log, opened beside the server."""
        return [self.log()]

    def command(self) -> Sequence[str]:
        """Its command line."""
        return serve_command(self.data_dir, listen=self._listen, **self._settings)

    def start(self) -> None:
        """Start, and return when it is ready; a restart listens where it did."""
        self.data_dir.mkdir(parents=True, exist_ok=True)
        with (self.data_dir / "stderr").open("ab") as log:
            self._process = subprocess.Popen(
                [*self.prefix, *self.command()],
                stdout=subprocess.PIPE,
                bufsize=0,
                stderr=log,
                env=self.environment,
                start_new_session=True,
            )
        # A number is free for others as soon as nothing is left of its session.
        living = {os.getsid(pid) for pid, _ in self.processes()}
        self._sessions = [*living, self._process.pid]
        assert self._process.stdout is not None
        with self._process.stdout as output:
            self.url = ready_url(output)
        assert self.url, (self.data_dir / "stderr").read_text()
        if self._listen.endswith(":0"):
            self._listen = self.url.removeprefix("http://")

    def pids(self, title: str) -> list[int]:
        """The processes of the server with this title, which Ray lengthens by the task, by number.

        Ray starts processes ahead and takes any of them: the first need not have the least number.
        """
        return sorted(pid for pid, found in self.processes() if found.startswith(title))

    def edge_of(self, client_port: int) -> int:
        """The edge process that has accepted the connection from this local port."""
        ports = f":{int(self.url.rpartition(':')[2]):04X}", f":{client_port:04X}"
        rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()]
        # What changed while it was read stands there twice; what has ended has no number.
        (inode,) = {row[9] for row in rows if (row[1][8:], row[2][8:]) == ports} - {"0"}
        for edge in self.pids(EDGE):
            for descriptor in Path(f"/proc/{edge}/fd").iterdir():
                # One that was closed meanwhile is not the one.
                with contextlib.suppress(FileNotFoundError):
                    if str(descriptor.readlink()) == f"socket:[{inode}]":
                        return edge
        raise AssertionError("no edge has accepted the connection")

    def processes(self) -> Iterator[tuple[int, str]]:
        """Every process of the server that lives, Ray's included, with its title."""
        return processes_of(self._sessions)

    def kill(self) -> None:
        """``kill -9`` of the main process alone; the rest has to end by itself."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def kill_everything(self) -> None:
        """``kill -9`` of every process of the server at once."""
        assert self._process is not None
        while left := [pid for pid, _ in self.processes()]:
            for pid in left:
                send(pid, signal.SIGKILL)
            for pid in left:
                ended(pid, GONE_S_MAX)
        self._process.wait()

    def terminate(self) -> tuple[int, float]:
        """SIGTERM: the exit code and the seconds it took."""
        assert self._process is not None
        started = time.monotonic()
        self._process.terminate()
        return self._process.wait(GONE_S_MAX), time.monotonic() - started

    def exit_code(self, seconds_max: float) -> int | None:
        """With what the main process has ended by itself; None when it lives for so long."""
        assert self._process is not None
        try:
            return self._process.wait(seconds_max)
        except subprocess.TimeoutExpired:
            return None

    def wait_until_gone(self, *, but: tuple[str, ...] = ()) -> None:
        """Return when no process of the server lives, but those with these titles."""
        for pid, title in list(self.processes()):
            if not title.startswith(but or "\0"):
                assert ended(pid, GONE_S_MAX), f"{title} still lives"

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self._clean_up()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._clean_up()

    def _clean_up(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()
            try:
                self._process.wait(GONE_S_MAX)
            except subprocess.TimeoutExpired:
                self.kill()
        if self._process is not None:
            self.kill_everything()


def ready_url(output: IO[bytes]) -> str:
    """The URL after ``ready``; empty when the server ended or took too long instead."""
    while select.select([output], [], [], READY_S_MAX)[0]:
        line = output.readline()
        if not line or line.startswith(b"ready "):
            return line.decode().partition(" ")[2].split(" ")[0].strip()
    return ""


def processes_of(sessions: Collection[int]) -> Iterator[tuple[int, str]]:
    """Every living process of these sessions, with its title."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                command = (entry / "cmdline").read_text(errors="replace").split("\0")[0]
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended since the directory was read
            if int(fields[_SESSION]) in sessions and fields[_STATE] != "Z":
                yield int(entry.name), Path(command.strip()).name


def serve_command(data_dir: Path, **settings: str) -> list[str]:
    """The command line of ``poste serve`` with these settings."""
    named = [f"--set={name}={value}" for name, value in settings.items()]
    code = "from http_edge.cli.main import main; main()"
    return [sys.executable, "-c", code, "serve", f"--data-dir={data_dir}", *named]


def own_environment() -> dict[str, str]:
    """The environment without what the shell, or Ray in this process, has set for itself."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("POSTE_")}
    ours = {name: value for name, value in ours.items() if not name.startswith("RAY_")}
    return ours | {"TMPDIR": _place_for_ray()}


@cache
def _place_for_ray() -> str:
    """Of mediators whose data directory has a long path; what killed ones leave goes at the end."""
    place = tempfile.mkdtemp(prefix="p-", dir=os.environ.get("TMPDIR", "/tmp"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    return place


def send(pid: int, number: signal.Signals) -> None:
    """A signal to a process, which may have ended meanwhile."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def ended(pid: int, seconds_max: float) -> bool:
    """Wait for the end of a process, ours or not: did it come in time?"""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], seconds_max)[0])
    finally:
        os.close(descriptor)
