"""All calls to Ray that concern hosts: starting Ray, and starting the processes of hosts.

Each ``poste serve`` has a Ray of its own, on loopback, that ends with it. Ray starts, restarts and
ends the processes of this machine. It is not asked which hosts are alive or where they are, and no
command, answer or question passes through it.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
import stat
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec
import ray
from ray import exceptions as ray_errors
from ray.job_config import JobConfig
from typing_extensions import override

from actors.core.partitioning import dedicated_host_name
from actors.host.clock import system_clock
from actors.host.clock_steps import ClockSteps, newest_ms
from actors.host.host_connection import Answer, HostServer
from actors.host.host_term import HostTerm, LeaseKeeper
from actors.host.identity_host import HostOptions, IdentityHost
from actors.host.port import AnyQuestion, EndHost, StartDedicated
from actors.host.question_threads import QuestionThreads
from actors.host.vital_thread import end_failed_start
from actors.host.writer import always
from actors.ray.unused_parts import handlers_kept, unused_left_out
from eventstore.log.errors import LogUnavailable
from eventstore.log.event_log import EventLog

_LOG = logging.getLogger(__name__)
_REOPEN_S: Final = 1.0
_END_S_MAX: Final = 3.0
_STOP_S_MAX: Final = 10.0
"""Ray ends in 1 to 2 s, and kills after one what does not end by itself."""
_LOOK_S: Final = 0.05

NAMESPACE: Final = "poste"
OBJECT_STORE_BYTES: Final = 100 * 1024 * 1024
"""Ray's shared memory. No batch passes through Ray, so the store stays almost empty; Ray refuses
less than 75 MB."""
_SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - Ray's store there has no name
_SESSIONS: Final = "s"
"""A folder within the private one: Ray opens the folder that it is given to all users."""
_FOLDER_BYTES_MAX: Final = 107 - len(
    "/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store"
)
"""The path of a Unix socket has at most 107 bytes (unix(7)), less the longest of Ray's below it."""
_TEMPORARY: Final = "poste-ray-"
_SHORT: Final = "/tmp"  # noqa: S108 - the folder there is its owner's alone
_OWNER_ALONE: Final = 0o700
_OTHERS: Final = 0o077
_SPLIT_BY_RAY: Final = frozenset("'\\")
"""Raylet splits the command of its workers at these, although it quotes their arguments."""


class RayRefused(Exception):
    """Ray cannot be started; the message says why."""


def private_folder(data_dir: Path) -> Path:
    """Make a folder for Ray's sockets and logs that only its owner can enter.

    Ray opens all that it makes there to every user of the machine, and follows links in it. The
    folder is ``ray`` in the data directory, or one for this data directory among the temporary
    files if the paths of sockets would be too long, or have characters that Ray does not
    understand; below /tmp if TMPDIR is no better. It keeps the logs of the last session for
    diagnosis, and those of older sessions are removed. The caller has locked the data directory.

    Raises:
        OSError: the folder cannot be made, or something else has its name.
    """
    folder = data_dir / "ray"
    if not _is_read(folder):
        name = _TEMPORARY + sha256(os.fsencode(data_dir.resolve())).hexdigest()[:8]
        usual = Path(tempfile.gettempdir(), name)
        folder = usual if _is_read(usual) else Path(_SHORT, name)
        _LOG.info(
            "Ray's folder is outside the data directory, because that path is too long, not"
            " ASCII, or has an apostrophe or a backslash",
            extra={"folder": str(folder)},
        )
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=_OWNER_ALONE)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise FileExistsError(errno.EEXIST, f"{folder} belongs to another", str(folder))
    folder.chmod(_OWNER_ALONE)
    for older in sorted((folder / _SESSIONS).glob("session_2*"))[:-1]:
        shutil.rmtree(older, ignore_errors=True)
    return folder


def _is_read(folder: Path) -> bool:
    """Does Ray understand the paths of sockets in this folder?"""
    is_short = len(os.fsencode(folder / _SESSIONS)) <= _FOLDER_BYTES_MAX
    return is_short and str(folder).isascii() and not _SPLIT_BY_RAY & {*str(folder)}


def _has_shared_memory() -> bool:
    """Is there room for Ray's store in shared memory? In a container there are often 64 MiB.

    Ray warns where there is less, and does not start where there is none that it can write to.
    """
    try:
        found = os.statvfs(_SHARED_MEMORY)
    except OSError:
        return False
    is_large = found.f_bavail * found.f_frsize >= OBJECT_STORE_BYTES
    return is_large and os.access(_SHARED_MEMORY, os.W_OK | os.X_OK)


def start(folder: Path) -> None:
    """Start Ray on this machine, with its sockets and logs in this folder.

    Its store is there, too, where shared memory has no room for it.

    Raises:
        RayRefused: Ray does not start.
    """
    logging.getLogger("ray").setLevel(logging.WARNING)
    before = os.umask(_OTHERS)
    try:
        with unused_left_out():
            # The arguments for a node's address and for its folders are not public.
            ray.init(
                address="local",  # never a Ray that already runs on this machine
                namespace=NAMESPACE,
                # As for a client, whose current directory is elsewhere: from ours the processes
                # would import before all other places, and anyone may write to a /tmp.
                job_config=JobConfig(_client_job=True),
                include_dashboard=False,
                log_to_driver=False,
                configure_logging=False,
                object_store_memory=OBJECT_STORE_BYTES,
                _plasma_directory=None if _has_shared_memory() else str(folder),
                _node_ip_address="127.0.0.1",
                _temp_dir=str(folder / _SESSIONS),
            )
    except Exception as error:
        # Ray does not document what it raises; it depends on the part that did not start in time.
        raise RayRefused(str(error).partition("\n")[0] or type(error).__name__) from error
    finally:
        os.umask(before)


def stop(folder: Path | None = None, *, code: int = 0) -> None:
    """End Ray with all its actors, and remove its folder if one is given.

    Ray itself leaves the folder of every session. While one of its own processes hangs, Ray does
    not end: then this process ends with this exit code, and Ray's end with it.
    """
    late = threading.Timer(_STOP_S_MAX, _end_without_ray, (code,))
    late.daemon = True
    late.start()
    ray.shutdown()
    late.cancel()
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


def _end_without_ray(code: int) -> None:
    _LOG.error("Ray does not end: it is killed", extra={"exit_code": code})
    logging.shutdown()  # so that the line is written
    os._exit(code)


Prepare: TypeAlias = Callable[[str], None]
"""Called in an actor's new process with its name, before the actor starts: sets up logging."""


CALLS_MAX: Final = 2
"""Threads for calls without a group of their own: the start and the end of an actor."""
_SWITCH_S: Final = 0.001
"""How long a thread that reads a large page may keep the interpreter while the writer waits for it:
a fifth of the default, because one transaction waits several times."""
CONCURRENCY_GROUPS: Final = {"control": 4}
"""Threads for calls through Ray: whether a host answers, and its measures."""


class RayIdentityHost(IdentityHost):
    """An ``IdentityHost`` that edges reach by TCP, at the address in its row."""

    def __init__(
        self, options: HostOptions, prepare: Prepare, *, is_tried_again: bool = False
    ) -> None:
        """Prepare the process, then start as the options say; see ``IdentityHost``.

        If a restart fails, or a start that ``is_tried_again``, or memory is missing, the process
        ends and is started again. Any other error is raised, so that a mediator that cannot start
        ends at once.
        """
        try:
            prepare(options.name)
            self._open(options, prepare)
        except Exception as error:
            if is_tried_again or isinstance(error, MemoryError) or is_restart():
                end_failed_start(error)
            _LOG.critical("the start failed", exc_info=error)
            raise

    def _open(self, options: HostOptions, prepare: Prepare) -> None:
        self._options, self._prepare = options, prepare
        term = HostTerm(options.lease_s)
        call_s_max = options.limits.host_call_s_max
        self._questions = QuestionThreads(self.answer, call_s_max=call_s_max)
        self._server = HostServer(self._take, self._questions.ask, self.forget_edge)
        log, settles_s = _opened(options), options.limits.retention.clock_settles_s
        newest = newest_ms(log)
        super().__init__(
            options,
            self._server.push,
            log=log,
            # Without a placer no other host replaces it, so it need not stop.
            may_serve=term.is_running if options.is_placed else always,
            ahead_ms=ClockSteps(system_clock, settles_s, newest_ms=newest).ahead_ms,
        )
        self._lease = LeaseKeeper(
            self._server.listen(
                options.address,
                options.name,
                options.node,
                self.incarnation,
                protocol=options.protocol,
            ),
            options.open_leases(),
            term,
            # A host without a placer keeps serving.
            on_over=self._lease_over if options.is_placed else lambda: None,
        )
        self._lease.start()
        sys.setswitchinterval(_SWITCH_S)

    def _lease_over(self) -> None:
        _LOG.error("the lease of this host has ended: it serves nothing until it gets a new one")
        # Closing tells edges that the outcome of commands in a hanging append is unknown.
        self._server.close()

    def process(self) -> int:
        """The number of this process."""
        return os.getpid()

    @override
    def answer(self, question: AnyQuestion) -> object:
        """See ``IdentityHost.answer``; a host of shards also starts dedicated ones."""
        if isinstance(question, StartDedicated):
            self._start_dedicated(question.did)
            return None
        return super().answer(question)

    def _start_dedicated(self, did: str) -> None:
        options = msgspec.structs.replace(
            self._options, name=dedicated_host_name(did, self._options.node)
        )
        name = _name_in_ray(options.name)
        _end_stale(name)
        # Ray does not restart it by itself.
        once: dict[str, Any] = {"get_if_exists": True, "lifetime": "detached", "max_restarts": 0}
        _remote(RayDedicatedHost, name, **once)(options, self._prepare)

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
    """A dedicated host, which the placer starts and ends for its one identity.

    It outlives the host that started it, and ends with Ray.
    """

    def __init__(self, options: HostOptions, prepare: Prepare) -> None:
        self._is_ending = False
        super().__init__(options, prepare)

    @override
    def answer(self, question: AnyQuestion) -> object:
        """See ``IdentityHost.answer``; ``EndHost`` is answered before the host ends."""
        if isinstance(question, EndHost):
            if not self._is_ending:
                self._is_ending = True
                try:
                    threading.Thread(target=self._end, name="end", daemon=True).start()
                except RuntimeError:  # the process may have no more threads: the placer asks again
                    self._is_ending = False
                    raise
            return None
        return super().answer(question)

    def _end(self) -> None:
        try:
            self.stop()
            # End even if Ray does not answer.
            threading.Timer(_END_S_MAX, os._exit, (0,)).start()
            with contextlib.suppress(ray_errors.RayError, ValueError):
                # Ray frees the name before it ends the process, so no caller finds a dying host.
                ray.kill(ray.get_actor(_name_in_ray(self._options.name)))
        except Exception:  # noqa: BLE001 - the process ends whatever it is
            _LOG.exception("the end of this host had a fault")
        finally:
            os._exit(0)


def is_restart() -> bool:
    """Did Ray start this actor again? Also if Ray does not say: then it may have."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Ray warns of what it calls itself
            return bool(ray.get_runtime_context().was_current_actor_reconstructed)
    except Exception:  # noqa: BLE001 - Ray does not document what it raises
        return True


def _name_in_ray(name: str) -> str:
    """The name by which Ray knows a dedicated host: Ray's log files have it, so it has no DID."""
    return f"dedicated-{sha256(name.encode()).hexdigest()}"


def _end_stale(name: str) -> None:
    """End the dedicated host of this name in Ray, if Ray knows one.

    It has no lease, so it serves nothing. Such a host hangs, or has been starting for longer than
    the placer waits.
    """
    until_s = time.monotonic() + _END_S_MAX
    with contextlib.suppress(ValueError):  # Ray has no actor of this name any more
        while time.monotonic() < until_s:
            ray.kill(ray.get_actor(name))
            time.sleep(_LOOK_S)


def _opened(options: HostOptions) -> EventLog:
    """Open the log, retrying until its store answers.

    Raises:
        LogError: the store answers, and the log in it cannot be used.
    """
    while True:
        try:
            return options.open_log()
        except LogUnavailable as error:
            _LOG.error("cannot open the log yet: %s", error)
            time.sleep(_REOPEN_S)


def start_host(options: HostOptions, prepare: Prepare, *, is_tried_again: bool) -> Any:
    """Start a host; Ray restarts it whenever it dies, and it ends with this process.

    ``is_tried_again``: also if its first start fails.
    """
    start = _remote(RayIdentityHost, options.name, max_restarts=-1)
    with handlers_kept():  # with the first actor Ray starts a thread, as it does at its own start
        return start(options, prepare, is_tried_again=is_tried_again)


def _remote(kind: type, name: str, **how: Any) -> Callable[..., Any]:
    """What starts an actor of this name, by the arguments of its kind."""
    remote = ray.remote(concurrency_groups=CONCURRENCY_GROUPS)(kind)
    options = {"max_task_retries": 0, "num_cpus": 0, "max_concurrency": CALLS_MAX, **how}
    start: Callable[..., Any] = remote.options(name=name, **options).remote
    return start
