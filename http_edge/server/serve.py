"""``poste serve``: the composition of a mediator, its supervision and its end.

The main process owns the data directory, starts Ray, the hosts and the edges, and then only
watches them. Killing it ends them all: Ray's processes end with their parent.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import shlex
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from ray import exceptions as ray_errors

from actors.host.clock import system_clock
from actors.ray import processes
from actors.ray.hang_watch import keep_answering
from http_edge.crypto.mediator_keys import load, operators_token
from http_edge.didcomm.push.gateways import open_gateway
from http_edge.server.address import AUTO, address_towards, reserved_address
from http_edge.server.child_process import work_beside
from http_edge.server.clock_watch import ClockWatch
from http_edge.server.cluster_node import ClusterNode, node_name
from http_edge.server.data_dir import locked, make_data_dir, mark_begun, named_disk_faults, note
from http_edge.server.exits import Exit, Stop
from http_edge.server.hosts import host_leases, host_options, placement_of
from http_edge.server.log_check import check_log, note_start, only_mediator, why_unserved
from http_edge.server.metrics import Scrape, metrics_served, metrics_socket
from http_edge.server.ray_edge import edge_name, start_edge
from http_edge.server.status_files import database_numbers, publish_away
from http_edge.server.systemd import notify_ready
from http_edge.settings.settings import Settings
from http_edge.settings.sources import Loaded
from http_edge.telemetry.logs import LogPipe

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")
_STOPS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_READY_S_MAX: Final = 120.0
_RETRY_S: Final = 0.2
_AWAY_S: Final = 2.0
"""Between two looks for a database that was away at the start."""
_STOP_HOSTS_S_MAX: Final = 1.5
_STOP_LISTENING_S: Final = 0.5
"""The part of the drain time in which an edge closes its connections."""


def run(loaded: Loaded) -> int:
    """Serve until SIGTERM, SIGINT or SIGHUP; return the exit code.

    Raises:
        Stop: the mediator cannot start; says why and what to do.
        KeyFileRefused, OSError: a file of keys cannot be used.
    """
    started_s = time.monotonic()
    settings = loaded.settings
    with contextlib.closing(LogPipe(settings.log_level)) as lines:
        _leave_no_core_dump()
        _LOG.info("starting", extra={"version": version("poste-restante"), "pid": os.getpid()})
        settings = _on_node(settings)
        make_data_dir(settings.data_dir)
        with (
            locked(settings.data_dir) as was_killed,
            reserved_address(settings.listen, "--listen", patient=was_killed) as port,
            reserved_address(
                settings.operators.listen, "--set operators.listen", patient=was_killed
            ) as operators_port,
            metrics_socket(settings.metrics_listen) as metrics,
        ):
            if was_killed:
                _LOG.warning("the last mediator here was killed, or its machine stopped")
            settings = settings.bound_to(port, operators_port)
            away = check_log(settings)
            open_gateway(settings.push)  # reads its files, so that a wrong one ends the start here
            answers = min(set(range(len(settings.log_dsns))) - away.keys())
            clock = ClockWatch(host_leases(settings, answers), settings.limits.clock_off_s_max)
            clock.check()
            with only_mediator(settings):
                return _served(settings, away, metrics, clock, lines.prepare, started_s=started_s)


def _served(
    settings: Settings,
    away: dict[int, str],
    metrics: socket.socket | None,
    clock: ClockWatch,
    prepare: processes.Prepare,
    *,
    started_s: float,
) -> int:
    """Start Ray, hosts and edges, and serve until a signal to stop; return the exit code."""
    code: int = Exit.INTERNAL
    noted = _noted_stops()
    mark_begun(settings.data_dir)
    keys = load(settings.keys_path).public_halves
    token = operators_token(settings.operators_token_path)
    folder = _start_ray(settings.data_dir)
    try:
        note(settings.served_url_path, settings.url)
        parts = settings, away, metrics, token, clock, keys
        mediator = _Mediator(*parts, prepare=prepare, started_s=started_s)
        code = asyncio.run(mediator.serve(noted))
    except Stop as stop:
        code = stop.exit_code
        raise
    finally:
        # The loop restores the default actions, and Ray that of SIGTERM again: another signal to
        # stop would end this process before Ray.
        signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
        with contextlib.suppress(OSError):  # the disk may be read-only by now
            settings.operators_address_path.unlink(missing_ok=True)
        # After a fault the logs in Ray's folder can say more than ours.
        processes.stop(folder if code == Exit.OK else None, code=code)
        _LOG.info("stopped", extra={"exit_code": int(code)})
    return code


def _leave_no_core_dump() -> None:
    """Let this process and its children end without a file of their memory.

    It would hold the mediator's keys, and contents that are erased later, outside of the data
    directory. A limit of one byte also keeps the kernel from piping it to a program, for which no
    other limit counts. The hard limit stays, so an operator can still ask for a dump (``prlimit``).
    """
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (1 if hard else 0, hard))


def _as_typed_here() -> str:
    """What runs this program in a shell: ``poste``, or its file if the path leads elsewhere."""
    program, found = Path(sys.argv[0]), shutil.which("poste")
    if program.name != "poste" or (found and program.resolve() == Path(found).resolve()):
        return "poste"
    return shlex.quote(sys.argv[0])


def _noted_stops() -> Sequence[signal.Signals]:
    """Record stop signals in the returned list until the event loop handles them."""
    noted: list[signal.Signals] = []
    for number in _STOPS:
        if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
            continue  # nohup
        signal.signal(number, lambda came, _frame: noted.append(signal.Signals(came)))
    return noted


def _on_node(settings: Settings) -> Settings:
    """The settings, with the name and the address of this node if it is one of a cluster.

    Raises:
        Stop: the log is a file of one machine, or the address is not of this machine.
    """
    if settings.node_address is None:
        return settings
    if settings.log_dsn.startswith("sqlite:"):
        raise Stop(
            Exit.USAGE,
            "A cluster cannot share a SQLite log, which is a file on one machine.",
            "Name a PostgreSQL log with --log, or remove node_address.",
        )
    address = settings.node_address
    if address == AUTO:
        address = address_towards(settings.log_dsns)
        _LOG.info("address of this node", extra={"address": address})
    listen = f"[{address}]:0" if ":" in address else f"{address}:0"
    with reserved_address(listen, "--set node_address", patient=False):
        pass  # the address is one of this machine
    return settings.on_node(settings.node or node_name(), address)


class _Mediator:
    """The hosts and edges of one ``poste serve``."""

    def __init__(  # noqa: PLR0913 - the composition root hands over each part
        self,
        settings: Settings,
        away: dict[int, str],
        metrics: socket.socket | None,
        token: str,
        clock: ClockWatch,
        keys: tuple[bytes, bytes],
        *,
        prepare: processes.Prepare,
        started_s: float,
    ) -> None:
        """A mediator after the start of Ray; its own start began at ``started_s``, monotonic.

        ``away`` has the reason for each database that is not served, by its number. ``keys`` are
        the public halves of the keys that the log belongs to. ``prepare`` sets up the logging of
        a host or an edge.
        """
        self._settings = settings
        self._away = away
        self._beside: list[asyncio.Task[None]] = []
        self._metrics = metrics
        self._token = token
        self._clock = clock
        self._keys = keys
        self._former_urls: Sequence[str] = ()
        self._node: ClusterNode | None = None
        self._started_s = started_s
        self._prepare = prepare
        self._stopping = asyncio.Event()
        self._exit = Exit.OK
        self._hosts: dict[str, Any] = {}
        self._edges: dict[str, Any] = {}

    async def serve(self, noted: Sequence[signal.Signals]) -> int:
        """Serve until a signal to stop comes or is in ``noted``; return the exit code."""
        loop = asyncio.get_running_loop()
        for number in _STOPS:
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup
                loop.add_signal_handler(number, self._stop_on, number)
        if noted:
            self._stop_on(noted[0])
            return int(self._exit)
        if self._settings.has_placer:
            self._node = ClusterNode(self._settings, self._away, vital=self._vital)
        has_entered = False
        try:
            has_entered = await self._unless_stopping(self._enter())
        finally:
            if self._node is not None and not has_entered:
                await self._node.stop()
        if not has_entered:
            return int(self._exit)
        watching = [self._vital(each) for each in self._start()]
        watching += [self._vital(self._serve_once_back(number)) for number in self._away]
        serving = [self._vital(self._keep_serving(edge)) for edge in self._edges.values()]
        serving.append(self._vital(self._clock.run()))
        try:
            async with metrics_served(self._scrape().seen, self._metrics, self._token):
                if await self._unless_stopping(self._until_ready()):
                    self._announce()
                    await self._stopping.wait()
        finally:
            self._stopping.set()
            for task in watching:
                task.cancel()
            await self._stop([*serving, *watching])
            await asyncio.gather(*self._beside, return_exceptions=True)
        return int(self._exit)

    def _vital(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run what nothing else does; if it fails, the mediator ends, and is started again."""

        def ended(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                _LOG.critical("the main process failed", exc_info=error)
                if not self._stopping.is_set():
                    self._exit = Exit.INTERNAL
                    self._stopping.set()

        task = asyncio.create_task(work)
        task.add_done_callback(ended)
        return task

    def _stop_on(self, number: signal.Signals) -> None:
        _LOG.info("stopping", extra={"signal": number.name})
        self._stopping.set()

    async def _enter(self) -> None:
        """Join the cluster, but not without a database that other nodes serve: it is not away.

        After this last check note in the log what serves it from now on.

        Raises:
            Stop: as ``ClusterNode.join`` and ``note_start``, or there is such a database: says
                which one, and why it cannot be opened here.
        """
        if (node := self._node) is not None:
            await node.join()
            for number in await node.served_elsewhere() if self._away else ():
                raise Stop(
                    Exit.UNREACHABLE,
                    f"Database {number} of the log cannot be opened here, and other nodes have all"
                    f" its shards: {self._away[number]}.",
                    "See --log, and the network from here to that database.",
                )
        self._former_urls = await asyncio.to_thread(note_start, self._settings, self._away)

    def _start(self) -> Iterator[Coroutine[Any, Any, None]]:
        """Start hosts and edges; yield what keeps each of them answering."""
        databases = range(len(self._settings.log_dsns))
        hosts = self._settings.hosts * (len(databases) - len(self._away))
        about = {"hosts": hosts, "edges": self._settings.edges}
        _LOG.info("starting hosts and edges", extra=about)
        publish_away(self._settings.data_dir, self._away)
        for number in databases:
            if number in self._away:
                _LOG.error("database %d is away and not served: %s", number, self._away[number])
            else:
                yield from self._start_database(number)
        silent_s_max = self._settings.limits.process_silent_s_max
        for index in range(self._settings.edges):
            name = edge_name(index, self._settings.node or "")
            parts = self._settings, self._prepare, self._keys, self._former_urls
            edge = self._edges[name] = start_edge(name, *parts)
            yield keep_answering(name, edge.listening.remote, silent_s_max)

    def _start_database(
        self, number: int, *, is_late: bool = False
    ) -> Iterator[Coroutine[Any, Any, None]]:
        """Start the hosts of a database, its export and its archiving; yield as ``_start``."""
        self._beside.append(self._vital(self._work_beside(number)))
        first = self._settings.hosts * number
        for index in range(first, first + self._settings.hosts):
            options = host_options(self._settings, index)
            host = processes.start_host(options, self._prepare, is_tried_again=is_late)
            self._hosts[options.name] = host
            ask = host.process.options(concurrency_group="control").remote
            silent_s_max = self._settings.limits.process_silent_s_max
            yield keep_answering(options.name, ask, silent_s_max)

    async def _serve_once_back(self, number: int) -> None:
        """Serve a database that was away as soon as it passes the checks of a start.

        A database that fails the checks stays unserved until it passes; the others are served.
        """
        while True:
            await asyncio.sleep(_AWAY_S)
            try:
                why = await _aside(partial(why_unserved, self._settings, number))
            except RuntimeError:  # no thread can be started now
                continue
            if why is None:
                break
            if why != self._away[number]:
                _LOG.error("database %d is not served: %s", number, why)
                self._away[number] = why
                publish_away(self._settings.data_dir, self._away)
        _LOG.info("database %d has passed the checks: its hosts start", number)
        del self._away[number]
        publish_away(self._settings.data_dir, self._away)
        if self._node is not None:
            self._node.stand_by(number)
        await asyncio.gather(*self._start_database(number, is_late=True))

    def _scrape(self) -> Scrape:
        async def report(name: str, **how: Any) -> bytes:
            # A host of a database that is away is not there.
            host = self._hosts[name]
            found: bytes = await host.report.options(concurrency_group="control").remote(**how)
            return found

        names = placement_of(self._settings).host_names_on(self._settings.node or "")
        hosts = {name: partial(report, name) for name in names}
        edges = {name: edge.report.remote for name, edge in self._edges.items()}
        return Scrape(self._settings, hosts, edges, clock=system_clock)

    def _announce(self) -> None:
        """Print what a new user needs next, then the line that programs wait for; tell systemd."""
        settings = self._settings
        seconds = round(time.monotonic() - self._started_s, 1)
        about = {"url": settings.url, "mediator_did": settings.mediator_did, "seconds": seconds}
        _LOG.info("ready", extra=about)
        poste = _as_typed_here()
        with contextlib.suppress(OSError):  # no one reads it any more, or its disk is full
            click.echo(f"DID   {settings.mediator_did}")
            click.echo(f"URL   {settings.url}")
            click.echo(f"Next  {poste} demo --url {settings.local_url}")
            if settings.didcomm.enabled:
                click.echo(f"Next  {poste} demo didcomm --url {settings.local_url}")
            click.echo(f"ready {settings.url} {settings.mediator_did}")
        notify_ready()

    async def _unless_stopping(self, step: Coroutine[Any, Any, None]) -> bool:
        """Run a step of the start; return False if a signal stops the mediator before its end."""
        starting = asyncio.create_task(step)
        stopping = asyncio.create_task(self._stopping.wait())
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            return False
        stopping.cancel()
        await starting
        return True

    async def _until_ready(self) -> None:
        try:
            async with asyncio.timeout(_READY_S_MAX):
                await asyncio.gather(*[edge.listening.remote() for edge in self._edges.values()])
                note(self._settings.operators_address_path, self._settings.operators_url)
                if self._node is None:
                    await asyncio.gather(*[host.ping.remote() for host in self._hosts.values()])
                else:
                    await asyncio.gather(*[host.holdings.remote() for host in self._hosts.values()])
                    await self._node.until_served()
        except (ray_errors.RayError, TimeoutError) as error:
            raise Stop(
                Exit.INTERNAL,
                f"The mediator did not become ready: {type(error).__name__}.",
                "The log lines above say which part failed.",
            ) from error

    async def _keep_serving(self, edge: Any) -> None:
        """Have an edge serve, also again after each restart by Ray."""
        while not self._stopping.is_set():
            try:
                await edge.serve.remote()
            except ray_errors.ActorDiedError:
                # Ray restarts an edge without limit, so Ray itself has ended.
                _LOG.error("Ray has ended")
                self._exit = Exit.INTERNAL
                self._stopping.set()
            except ray_errors.RayError as error:
                _LOG.error("edge failed: %s", type(error).__name__)
                await asyncio.sleep(_RETRY_S)

    async def _work_beside(self, number: int) -> None:
        """Export and archive one database of the log until ``_stopping`` is set."""
        each = self._settings.each_database()
        await work_beside(each[number], self._stopping, database_numbers(len(each))[number])

    async def _stop(self, serving: Sequence[asyncio.Task[None]]) -> None:
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + self._settings.limits.drain_s_max
        steps = list[Awaitable[None]]()
        if self._node is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.limits.drain_s_max / 2):
                    await self._node.leave()
            # At the same time as the edges: a placer may be waiting for a host that is silent.
            steps.append(self._node.stop())
        drain_s = max(0.0, ends_at - loop.time() - _STOP_LISTENING_S)
        steps += [_stopped(edge.stop.remote(drain_s)) for edge in self._edges.values()]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(ends_at):
                await asyncio.gather(*steps)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_HOSTS_S_MAX):
                await asyncio.gather(*[_stopped(one.stop.remote()) for one in self._hosts.values()])
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)


async def _aside(ask: Callable[[], _T]) -> _T:
    """Call a function that raises nothing in a thread that does not delay the process's end.

    A database that hangs is given up only after ``postgres.connect_s_max`` for each server.
    """
    answer: asyncio.Future[_T] = asyncio.get_running_loop().create_future()

    def settle(said: _T) -> None:
        if not answer.done():
            answer.set_result(said)

    def call() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)  # for the main thread, also while Ray ends
        said = ask()
        with contextlib.suppress(RuntimeError):  # the loop has ended
            answer.get_loop().call_soon_threadsafe(settle, said)

    threading.Thread(target=call, name="database-away", daemon=True).start()
    return await answer


async def _stopped(answer: Awaitable[None]) -> None:
    """Wait for a process to stop; ignore its death, so that the others are still stopped."""
    with contextlib.suppress(ray_errors.RayError):
        await answer


def _start_ray(data_dir: Path) -> Path:
    """Start Ray; return its folder.

    Raises:
        Stop: Ray does not start; says what to do.
    """
    _LOG.info("starting Ray")
    with named_disk_faults(data_dir):
        folder = processes.private_folder(data_dir)
    try:
        processes.start(folder)
    except processes.RayRefused as error:
        make_data_dir(data_dir)  # Ray does not say that the disk is full
        raise Stop(
            Exit.UNREACHABLE,
            f"Ray did not start: {error}.",
            "This machine may be too busy, or short of memory or processes: start again."
            f" Ray's own logs are in {folder}.",
        ) from error
    return folder
