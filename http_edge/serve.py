"""``poste serve``: the composition of a mediator, its supervision and its end.

The main process owns the data directory, starts Ray, the hosts and the edges, and then only
watches. Killing it ends all of them: Ray's processes end with their parent.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import base58
import click
from ray import exceptions as ray_errors

from actors import ray_cluster
from actors.clock import new_id, system_clock
from actors.identity_host import HostOptions
from actors.limits import HostLimits, IdentityLimits
from actors.partitions import shards_of_database
from eventstore import databases
from eventstore.errors import LogError, LogUnfinished, UnsafeLog, WrongDatabase
from eventstore.log import EventLog
from eventstore.open_log import open_log
from http_edge import edge as edges
from http_edge.cli.output import Exit, Stop, unfinished
from http_edge.cluster_node import ClusterNode, node_name
from http_edge.config import Settings
from http_edge.config_sources import Loaded
from http_edge.data_dir import locked, make_data_dir
from http_edge.event_logging import configure
from http_edge.exporting import ExportProcess
from http_edge.log_pipe import LogPipe
from http_edge.mediator_keys import KeyFileRefused, load_or_create
from http_edge.ray_edge import edge_name, start_edge
from http_edge.scrape import AskEdge, AskHost, Scrape, listener, showing

_LOG = logging.getLogger(__name__)
_READY_S_MAX: Final = 120.0
_RETRY_S: Final = 0.2
_STOP_HOSTS_S_MAX: Final = 1.5
_ADDRESS_S_MAX: Final = 20.0
_NAME_S: Final = 3.0
_NAME_S_MAX: Final = 30.0
"""Ray notices after 15 s by default that a whole node has died; its names are taken until then."""


def run(loaded: Loaded) -> int:
    """Serve until SIGTERM or SIGINT; the exit code.

    Raises:
        Stop: it cannot start; says why and what to do.
    """
    settings = loaded.settings
    configure(settings.log_level)
    if settings.ray_address is not None and settings.log_dsn.startswith("sqlite:"):
        raise Stop(
            Exit.USAGE,
            "A Ray cluster cannot share a log in SQLite, which is a file of one machine.",
            "Name a PostgreSQL log with --log, or leave --ray-address out.",
        )
    if settings.ray_address is not None and (
        settings.placement == "dedicated" or settings.dedicated_dids
    ):
        raise Stop(
            Exit.USAGE,
            "In a Ray cluster no setting says which identities have hosts of their own.",
            "Leave placement and dedicated_dids out, or --ray-address. Then: poste identities.",
        )
    make_data_dir(settings.data_dir)
    with (
        locked(settings.data_dir) as was_killed,
        _reserved(settings, patient=was_killed) as port,
        listener(settings.metrics_listen) as metrics,
    ):
        settings = settings.bound_to(port)
        log_id = _check_log(settings)
        node = None
        if settings.ray_address is not None:
            settings = settings.on_node(settings.node or node_name())
            node = ClusterNode(settings, log_id)
        _start_ray(settings)
        try:
            mediator = _Mediator(
                settings, metrics, node, name_s_max=_NAME_S_MAX if was_killed else _NAME_S
            )
            return asyncio.run(mediator.serve())
        finally:
            ray_cluster.stop()


class _Mediator:
    """The hosts and edges of one ``poste serve``."""

    def __init__(
        self,
        settings: Settings,
        metrics: socket.socket | None,
        node: ClusterNode | None,
        *,
        name_s_max: float,
    ) -> None:
        """One that serves alone without ``node``; an earlier one may die for ``name_s_max``."""
        self._settings = settings
        self._metrics = metrics
        self._node = node
        self._name_s_max = name_s_max
        self._prepare = LogPipe().prepare(settings.log_level)
        self._stopping = asyncio.Event()
        self._exit = Exit.OK
        self._hosts: list[Any] = []
        self._edges: list[Any] = []

    async def serve(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        if self._node is not None:
            await self._node.join(self._prepare)
        await self._start()
        serving = [asyncio.create_task(self._keep_serving(edge)) for edge in self._edges]
        exporting = asyncio.create_task(self._keep_exporting())
        node = self._settings.node or ""
        names = edges.placement_of(self._settings).host_names_on(node)
        ask_hosts = {n: _ask_host(h) for n, h in zip(names, self._hosts, strict=True)}
        ask_edges = {edge_name(i, node): _ask_edge(e) for i, e in enumerate(self._edges)}
        scrape = Scrape(self._settings, ask_hosts, ask_edges, clock=system_clock)
        try:
            async with showing(scrape, self._metrics):
                await self._until_ready()
                self._announce()
                await self._stopping.wait()
        finally:
            self._stopping.set()
            await self._stop(serving)
            await exporting
        return int(self._exit)

    async def _start(self) -> None:
        """Start hosts and edges; those of this name that are dying yet are waited for."""
        deadline = time.monotonic() + self._name_s_max
        hosts = self._settings.hosts * len(self._settings.log_dsns)
        options = [host_options(self._settings, i) for i in range(hosts)]
        settings_json = self._settings.model_dump_json()
        while True:
            try:
                for option in options[len(self._hosts) :]:
                    self._hosts.append(ray_cluster.start_host(option, self._prepare))
                for i in range(len(self._edges), self._settings.edges):
                    name = edge_name(i, self._settings.node or "")
                    self._edges.append(start_edge(name, settings_json, options[0], self._prepare))
            except ray_cluster.NameTaken as error:
                if time.monotonic() > deadline:
                    raise Stop(
                        Exit.USAGE,
                        f"Another node of the cluster has the name of this one: {error} lives.",
                        "Give each node a name of its own: --set node=NAME.",
                    ) from error
                await asyncio.sleep(_RETRY_S)
            else:
                return

    def _announce(self) -> None:
        """What a newcomer needs next, then the one line that programs wait for."""
        settings = self._settings
        click.echo(f"DID   {settings.mediator_did}")
        click.echo(f"URL   {settings.url}")
        click.echo(f"Next  poste demo --url {settings.local_url}")
        if settings.didcomm.enabled:
            click.echo(f"Next  poste demo didcomm --url {settings.local_url}")
        click.echo(f"ready {settings.url} {settings.mediator_did}")

    async def _until_ready(self) -> None:
        try:
            async with asyncio.timeout(_READY_S_MAX):
                await asyncio.gather(*[host.ping.remote() for host in self._hosts])
                if self._node is not None:
                    await self._node.until_served()
                await asyncio.gather(*[edge.listening.remote() for edge in self._edges])
        except (ray_errors.RayError, TimeoutError) as error:
            raise Stop(
                Exit.INTERNAL,
                f"The mediator did not become ready: {type(error).__name__}.",
                "The log lines above say which part failed.",
            ) from error

    async def _keep_serving(self, edge: Any) -> None:
        """An edge that died was started anew by Ray, but has to be told to serve."""
        while not self._stopping.is_set():
            try:
                await edge.serve.remote()
            except ray_errors.ActorDiedError:
                # Ray restarts an edge for ever; that it gave up means that Ray itself is gone.
                _LOG.error("Ray has ended")
                self._exit = Exit.INTERNAL
                self._stopping.set()
            except ray_errors.RayError as error:
                _LOG.error("edge failed: %s", type(error).__name__)
                if await asyncio.to_thread(ray_cluster.is_lost):
                    # The actors will never be restarted: the head that was to do it is no more.
                    _LOG.error("Ray's head has come back without knowing this node")
                    self._exit = Exit.INTERNAL
                    self._stopping.set()
                await asyncio.sleep(_RETRY_S)

    async def _keep_exporting(self) -> None:
        if self._settings.export.to is not None:
            each = self._settings.each_database()
            children = (
                [ExportProcess(settings, number) for number, settings in enumerate(each)]
                if len(each) > 1
                else [ExportProcess(self._settings)]
            )
            await asyncio.gather(*[child.run(self._stopping) for child in children])

    async def _stop(self, serving: Sequence[asyncio.Task[None]]) -> None:
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + self._settings.limits.drain_s_max
        if self._node is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.limits.drain_s_max / 2):
                    await self._node.leave()
        with contextlib.suppress(TimeoutError, ray_errors.RayError):
            async with asyncio.timeout_at(ends_at):
                await asyncio.gather(*[edge.stop.remote() for edge in self._edges])
        with contextlib.suppress(TimeoutError, ray_errors.RayError):
            async with asyncio.timeout(_STOP_HOSTS_S_MAX):
                await asyncio.gather(*[host.stop.remote() for host in self._hosts])
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)


def _ask_host(host: Any) -> AskHost:
    report = host.report.options(concurrency_group="control")
    return lambda with_log: report.remote(with_log=with_log)


def _ask_edge(edge: Any) -> AskEdge:
    ask: AskEdge = edge.report.remote
    return ask


def host_options(settings: Settings, index: int) -> HostOptions:
    """What the host with this index in ``Placement.host_names`` starts with.

    In a cluster the placer says what it owns.
    """
    limits, placement = settings.limits, edges.placement_of(settings)
    is_alone = settings.ray_address is None
    name = placement.host_names_on(settings.node or "")[index]
    return HostOptions(
        name=name,
        dsn=settings.log_dsns[placement.database_of_host(name)],
        postgres=settings.postgres.bounds,
        allow_unsafe=settings.postgres.unsafe_ok,
        partitions=placement.partitions_of(index) if is_alone else [],
        node=settings.node or "",
        is_placed=not is_alone,
        limits=HostLimits(
            timestamp_window_ms=settings.protocol.timestamp_window_ms,
            nonces_per_shard_max=limits.nonces_per_shard_max,
            transaction_items_max=limits.transaction_items_max,
            transaction_bytes_max=limits.transaction_bytes_max,
            gather_s_max=0.0 if settings.log_dsn.startswith("sqlite:") else limits.gather_s_max,
            pages_bytes_max=limits.pages_bytes_max,
            active_identities_max=limits.active_identities_max,
            active_bytes_max=limits.active_bytes_max,
            identity_idle_s=limits.identity_idle_s,
            snapshot_after_events=limits.snapshot_after_events,
            dedicate_above_commands_per_s=0 if is_alone else limits.dedicate_above_commands_per_s,
            identity=IdentityLimits(
                queue_messages_max=limits.queue_messages_max,
                queue_bytes_max=limits.queue_bytes_max,
                contract_requests_max=limits.contract_requests_max,
                contracts_max=limits.contracts_max,
                saved_events_max=limits.saved_events_max,
                public_events_max=limits.public_events_max,
                message_bytes_max=settings.didcomm.message_bytes_max,
                queue_age_s_max=settings.didcomm.queue_age_s_max,
                keylist_keys_max=settings.didcomm.keylist_keys_max,
                live_in_flight_max=settings.didcomm.live_in_flight_max,
                leased_max=settings.didcomm.leased_max,
            ),
        ),
    )


@contextlib.contextmanager
def _reserved(settings: Settings, *, patient: bool) -> Iterator[int]:
    """Keep the address for the edges, which share it; nobody else may be on it yet.

    The processes of a mediator that was killed need a moment to end: ``patient`` waits for them.
    """
    family = socket.AF_INET6 if ":" in settings.listen_host else socket.AF_INET
    deadline = time.monotonic() + (_ADDRESS_S_MAX if patient else 0)
    while True:
        try:
            reserved = _reserve(family, settings.listen_host, settings.listen_port)
        except OSError as error:
            if error.errno == errno.EADDRINUSE and time.monotonic() < deadline:
                time.sleep(_RETRY_S)
                continue
            raise Stop(
                Exit.USAGE,
                f"The address {settings.listen} cannot be used: {error.strerror}.",
                "Stop what listens there, or name another address with --listen.",
            ) from error
        with reserved:
            yield reserved.getsockname()[1]
        return


def _reserve(family: socket.AddressFamily, host: str, port: int) -> socket.socket:
    """A bound socket that does not listen, so that no connection ever comes to it."""
    with socket.socket(family) as alone:
        # The edges share the port, so a second mediator could too, unnoticed.
        alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        alone.bind((host, port))
        port = alone.getsockname()[1]
    reserved = socket.socket(family)
    try:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reserved.bind((host, port))
    except OSError:
        reserved.close()
        raise
    return reserved


def _check_keys(settings: Settings, log: EventLog) -> None:
    """Hold the keys to those of the log, or make some for a log that has none yet."""
    path, known = settings.keys_path, log.settings().get("mediator_key")
    if known is not None and not path.exists():
        raise Stop(
            Exit.UNSAFE,
            f"The key file {path} is missing, and the log belongs to the key {known}.",
            "Restore it from a backup, or name it with --set keys_file=PATH.",
        )
    try:
        keys = load_or_create(path)
    except KeyFileRefused as error:
        raise Stop(Exit.UNSAFE, str(error)) from error
    own = base58.b58encode(keys.signing_public).decode()
    known = log.setting("mediator_key", own)
    if known != own:
        raise Stop(
            Exit.UNSAFE,
            f"The log belongs to the mediator with the key {known}; {path} holds {own}.",
            "Restore the key file of this log from a backup, on every node the same: contracts are"
            " bound to it.",
        )


def _start_ray(settings: Settings) -> None:
    try:
        ray_cluster.start(settings.ray_address, node_ip=settings.ray_node_ip)
    except ray_cluster.ClusterRefused as error:
        raise Stop(
            Exit.UNREACHABLE,
            f"The Ray cluster at {settings.ray_address} cannot be joined: {error}.",
            "Start a Ray node on this machine with: ray start --address=HOST:PORT.",
        ) from error


def _check_log(settings: Settings) -> str:
    """Open the log once, and hold it to what was fixed when it was created; its id."""
    postgres, dsns = settings.postgres, settings.log_dsns
    count = len(dsns)
    own = [shards_of_database(place, count, settings.shards) for place in range(count)]
    with _explained(), contextlib.ExitStack() as opened:
        logs = [
            opened.enter_context(
                contextlib.closing(
                    open_log(dsn, allow_unsafe=postgres.unsafe_ok, postgres=postgres.bounds)
                )
            )
            for dsn in dsns
        ]
        databases.agree(logs, own, new_id=new_id())
        for log in logs:
            _check_constants(log, settings)
        _check_keys(settings, logs[0])
        return logs[0].setting("log_id", new_id())


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Say what to do about a log that cannot be used."""
    try:
        yield
    except WrongDatabase as error:
        raise Stop(
            Exit.USAGE,
            f"{error}.",
            "Name all databases of the log with --log, in the order in which it was created.",
        ) from error
    except UnsafeLog as error:
        raise Stop(
            Exit.UNSAFE,
            f"{error}.",
            "Set it right, or, to experiment, --set postgres.unsafe_ok=on.",
        ) from error
    except LogUnfinished as error:
        raise unfinished(error) from error
    except LogError as error:
        raise Stop(
            Exit.UNREACHABLE, f"The event log cannot be opened: {error}.", "See --log."
        ) from error


def _check_constants(log: EventLog, settings: Settings) -> None:
    for name, value in (
        ("shards", str(settings.shards)),
        ("mediator_did", settings.mediator_did),
    ):
        fixed = log.setting(name, value)
        if fixed != value:
            raise Stop(
                Exit.USAGE,
                f"The log was created with {name} {fixed}, not {value}.",
                f"Set {'--shards' if name == 'shards' else '--did'} {fixed}.",
            )
