"""Every call to Ray that concerns hosts: starting Ray, and the processes of hosts.

Each ``poste serve`` has a Ray of its own, on loopback, that ends with it. Ray starts the processes
of this machine, starts them again and ends them. Who lives and where is not asked of it, and no
command, answer or question passes through it.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec
import ray
from ray import exceptions as ray_errors
from typing_extensions import override

from actors.core.partitioning import dedicated_host_name
from actors.host.host_connection import Answer, HostServer
from actors.host.host_term import HostTerm, LeaseKeeper
from actors.host.identity_host import HostOptions, IdentityHost
from actors.host.port import AnyQuestion, EndHost, StartDedicated
from actors.host.question_threads import QuestionThreads
from actors.host.writer import always
from actors.ray.unused_parts import unused_left_out
from eventstore.log.errors import LogUnavailable
from eventstore.log.event_log import EventLog
from eventstore.log.host_leases import HostLease

_LOG = logging.getLogger(__name__)
_REOPEN_S: Final = 1.0
_END_S_MAX: Final = 3.0
_LOOK_S: Final = 0.05

NAMESPACE: Final = "poste"
OBJECT_STORE_BYTES: Final = 100 * 1024 * 1024
"""Ray's shared memory. Batches travel inside the calls, so the store stays almost empty; Ray
refuses less than 75 MB."""
_SESSIONS: Final = "s"
"""Within the folder for Ray: Ray opens to all users what it is given itself."""
_FOLDER_BYTES_MAX: Final = 107 - len(
    "/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store"
)
"""The path of a Unix socket has at most 107 bytes (unix(7)), and this is the longest of Ray's."""
_OWNER_ALONE: Final = 0o700
_OTHERS: Final = 0o077


class RayRefused(Exception):
    """Ray cannot be started; the message says why."""


def private_folder(data_dir: Path) -> Path:
    """A folder for the sockets and logs of Ray, which its owner alone can enter.

    Ray opens all that it makes there to every user of the machine, and follows links in it. It is
    ``ray`` in the data directory; where sockets would have too long a path, or one that Ray does
    not understand because it is not ASCII, a fresh one elsewhere.
    The session before is left for who looks for a fault, older ones are removed.

    Raises:
        OSError: it cannot be made, or something else has its name.
    """
    folder = data_dir / "ray"
    if len(os.fsencode(folder / _SESSIONS)) > _FOLDER_BYTES_MAX or not str(folder).isascii():
        folder = Path(tempfile.mkdtemp(prefix="poste-"))
        _LOG.info(
            "Ray's folder is not in the data directory, whose path is too long, or not ASCII",
            extra={"folder": str(folder)},
        )
        return folder
    folder.mkdir(mode=_OWNER_ALONE, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
        raise FileExistsError(errno.EEXIST, "belongs to another", str(folder))
    folder.chmod(_OWNER_ALONE)
    for older in sorted((folder / _SESSIONS).glob("session_2*"))[:-1]:
        shutil.rmtree(older, ignore_errors=True)
    return folder


def start(folder: Path) -> None:
    """Start Ray on this machine, with its sockets and logs in this folder.

    Raises:
        RayRefused: it does not start.
    """
    logging.getLogger("ray").setLevel(logging.WARNING)
    before = os.umask(_OTHERS)
    try:
        with _taken_port() as port, unused_left_out():
            # Ray has no public names for the address of a node and for its folder.
            ray.init(
                address="local",  # never one that happens to run on this machine
                namespace=NAMESPACE,
                include_dashboard=False,
                dashboard_port=port,
                log_to_driver=False,
                configure_logging=False,
                object_store_memory=OBJECT_STORE_BYTES,
                _node_ip_address="127.0.0.1",
                _temp_dir=str(folder / _SESSIONS),
            )
    except Exception as error:
        # What Ray raises is written nowhere, and differs by the part that did not start in time.
        raise RayRefused(str(error).partition("\n")[0] or type(error).__name__) from error
    finally:
        os.umask(before)


@contextlib.contextmanager
def _taken_port() -> Iterator[int]:
    """A port of this machine that is in use, for the dashboard that is not wanted.

    Ray starts the process of its dashboard even without one, to count usage, which is off here.
    Where the port is taken it says so, and goes on without that process: a tenth of the work of a
    start, and the memory of one more Python.
    """
    services = logging.getLogger("ray._private.services")
    before = services.level
    services.setLevel(logging.CRITICAL)
    try:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            yield taken.getsockname()[1]
    finally:
        services.setLevel(before)


def stop(folder: Path | None = None) -> None:
    """End Ray with all its actors, and remove its folder if it is named.

    Ray itself leaves the folder of every session behind.
    """
    ray.shutdown()
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


Prepare: TypeAlias = Callable[[str], None]
"""Called with the name of an actor in its new process, before it starts: sets up logging."""


CALLS_MAX: Final = 2
"""Threads for what has no group of its own: the start and the end."""
_DEDICATED_HOST: Final[Mapping[str, Any]] = {
    "get_if_exists": True,
    "lifetime": "detached",
    "max_restarts": 0,
    "max_task_retries": 0,
    "num_cpus": 0,
    "max_concurrency": CALLS_MAX,
}
"""How Ray starts a dedicated host: once, and not again by itself."""
_SWITCH_S: Final = 0.001
"""Time that a thread which reads a large page keeps the interpreter while the writer waits for it,
a fifth of the default: a transaction waits for it several times."""
CONCURRENCY_GROUPS: Final = {"control": 4}
"""Threads for calls through Ray: whether a host serves, and what it has measured."""


class RayIdentityHost(IdentityHost):
    """An ``IdentityHost`` that edges reach by TCP, where its row says."""

    def __init__(self, options: HostOptions, prepare: Prepare) -> None:
        """Prepare the process, then start as the options say; see ``IdentityHost``."""
        prepare(options.name)
        self._options, self._prepare = options, prepare
        term = HostTerm(options.lease_s)
        self._questions = QuestionThreads(self.answer)
        self._server = HostServer(self._take, self._questions.ask, self.forget_edge)
        super().__init__(
            options,
            self._server.push,
            log=_opened(options),
            # Without a placer no other is put in its place, so it need not stop.
            may_serve=term.is_running if options.is_placed else always,
        )
        address = self._server.listen(options.address)
        self._lease = LeaseKeeper(
            HostLease(
                options.name,
                options.node,
                self.incarnation,
                address.host,
                address.port,
                address.token,
            ),
            options.open_leases(),
            term,
            options.lease_s,
            # What is in the middle of an append that hangs is unknown to its edge from then on.
            on_over=self._server.close if options.is_placed else _nothing,
        )
        self._lease.start()
        sys.setswitchinterval(_SWITCH_S)

    @override
    def answer(self, question: AnyQuestion) -> object:
        """See ``IdentityHost.answer``; a host of shards also starts dedicated ones."""
        if isinstance(question, StartDedicated):
            self._start_dedicated(question.did)
            return None
        return super().answer(question)

    def _start_dedicated(self, did: str) -> None:
        name = dedicated_host_name(did, self._options.node)
        _end_stale(name)
        options = msgspec.structs.replace(self._options, name=name, partitions=[])
        ray.remote(concurrency_groups=CONCURRENCY_GROUPS)(RayDedicatedHost).options(
            name=name, **_DEDICATED_HOST
        ).remote(options, self._prepare)

    @override
    def stop(self) -> None:
        """See ``IdentityHost.stop``."""
        self._questions.stop()
        super().stop()
        self._lease.stop()
        self._server.leave()

    def _take(self, edge: str, batch: bytes, answer: Answer, incarnation: str) -> None:
        self._writer.submit(edge, batch, answer, incarnation)


class RayDedicatedHost(RayIdentityHost):
    """A dedicated host: that of one identity, which the placer starts and ends.

    It outlives the host that started it, and ends with Ray.
    """

    def __init__(self, options: HostOptions, prepare: Prepare) -> None:
        """As ``RayIdentityHost``."""
        self._is_ending = False
        super().__init__(options, prepare)

    @override
    def answer(self, question: AnyQuestion) -> object:
        """See ``IdentityHost.answer``; who asks for its end is answered before."""
        if isinstance(question, EndHost):
            if not self._is_ending:
                self._is_ending = True
                threading.Thread(target=self._end, name="end", daemon=True).start()
            return None
        return super().answer(question)

    def _end(self) -> None:
        self.stop()
        # Whether Ray answers or not.
        threading.Timer(_END_S_MAX, os._exit, (0,)).start()
        with contextlib.suppress(ray_errors.RayError, ValueError):
            # By Ray's hand: the name is free before the process ends, so no caller finds it dying.
            ray.kill(ray.get_actor(self._options.name))
        os._exit(0)


def _end_stale(name: str) -> None:
    """End the dedicated host of this name, if Ray knows one: it has no lease, so it serves nothing.

    It stands still, or has been starting for longer than the placer waits.
    """
    until_s = time.monotonic() + _END_S_MAX
    with contextlib.suppress(ValueError):  # there is none any more
        while time.monotonic() < until_s:
            ray.kill(ray.get_actor(name))
            time.sleep(_LOOK_S)


def _nothing() -> None:
    """A host without a placer serves on."""


def _opened(options: HostOptions) -> EventLog:
    """The log, as soon as it can be opened: Ray does not start an actor again that failed to start.

    Raises:
        UnsafeLog: waiting does not help.
    """
    while True:
        try:
            return options.open_log()
        except LogUnavailable as error:
            _LOG.error("log not opened yet: %s", error)
            time.sleep(_REOPEN_S)


def start_host(options: HostOptions, prepare: Prepare) -> Any:
    """A new host; Ray restarts it whenever it dies, and it ends with this process."""
    remote = ray.remote(concurrency_groups=CONCURRENCY_GROUPS)(RayIdentityHost)
    return remote.options(
        name=options.name,
        max_restarts=-1,
        max_task_retries=0,
        num_cpus=0,
        max_concurrency=CALLS_MAX,
    ).remote(options, prepare)
