"""The edge as a Ray actor: each edge is a process, and all listen on the same port."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
import ray

from actors.core.placement_table import PlacementTable, merged
from actors.host.connected_host import Caller, ConnectedHostPort
from actors.host.port import HostPort, HostUnavailable
from actors.host.tasks import Tasks
from actors.host.vital_thread import end_failed_start, end_process
from actors.placement.placer_link import PlacerLink, PlacerLinks
from actors.ray.processes import Prepare, is_restart
from http_edge.crypto.mediator_keys import load
from http_edge.crypto.private_files import KeyFileRefused
from http_edge.dispatch.routes import Routes
from http_edge.server.hosts import host_finder, placement_of
from http_edge.server.status_files import read_away
from http_edge.settings.settings import Settings

if TYPE_CHECKING:
    from http_edge.server.edge import Edge

_GC_THRESHOLDS: Final = (5_000, 20, 50)
"""A large JSON text makes tens of thousands of objects at once; with the default of 700 the
collector runs through them dozens of times, which takes longer than parsing. An upgraded connection
leaves 50 objects to the collector, which stops the process for 2 µs for each: 90 ms for 50,000."""
_SWITCH_S: Final = 0.001
"""How long the thread that reads large bodies may keep the interpreter while the event loop waits,
a fifth of the default: one request waits several times."""
_PLACER_AGAIN_S: Final = 0.5
_LOG = logging.getLogger(__name__)


class RayEdge:
    """One edge process. ``serve`` runs until ``stop``; call it again after a restart."""

    def __init__(
        self,
        name: str,
        settings: Settings,
        prepare: Prepare,
        public_halves: tuple[bytes, bytes],
        former_urls: Sequence[str] = (),
    ) -> None:
        """An edge of the mediator with the keys of these ``MediatorKeys.public_halves``.

        Agents may still know the mediator by ``former_urls``.

        If a restart fails, the process ends and is started again.
        """
        try:
            prepare(name)
            self._settings = settings
            self._former_urls = former_urls
            self._public_halves = public_halves
            self._name = name
            placement = placement_of(settings)
            self._finder = host_finder(settings, lambda: read_away(settings))
            has_placer = settings.has_placer
            self._routes = Routes(placement) if has_placer else Routes.fixed(placement)
            self._placers = PlacerLinks(name, self._finder, placement) if has_placer else None
            self._tables: dict[int, PlacementTable] = {}
            self._edge: Edge | None = None
            self._following = Tasks()
            self._listening = asyncio.Event()
            self._stopped = asyncio.Event()
        except Exception as error:
            if is_restart():
                end_failed_start(error)
            raise

    async def serve(self) -> None:
        """Listen, and return after ``stop``; an edge that cannot listen ends its process."""
        asyncio.get_running_loop().set_exception_handler(_on_loop_fault)
        try:
            self._edge = await self._started()
        except Exception as error:  # noqa: BLE001 - whatever it is, it may pass
            end_failed_start(error)
        self._listening.set()
        await self._stopped.wait()
        self._following.cancel()
        await asyncio.to_thread(self._finder.close)

    async def _started(self) -> Edge:
        # Imported objects stay: collecting among them would take a fifth of the time of the import.
        gc.disable()
        from http_edge.server.edge import Edge  # noqa: PLC0415 - the main process needs none of it

        gc.enable()
        # They exist since the start of the mediator: other keys would make it another one. Only
        # that start has compared them with the log.
        keys = load(self._settings.keys_path)
        if keys.public_halves != self._public_halves:
            raise KeyFileRefused(
                f"the keys in {self._settings.keys_path} have changed since the start of the"
                " mediator: restore them"
            )
        edge: Edge = Edge(
            self._name,
            self._settings,
            keys,
            lambda host: self._port(host, edge),
            routes=self._routes,
            placer=self._placers,
            former_urls=self._former_urls,
        )
        for database, placer in enumerate(self._placers.each if self._placers else ()):
            _ = self._following.run(self._follow(edge, database, placer))
        await edge.start()
        # The objects that exist now stay: collecting among them would slow down every request.
        gc.collect()
        gc.freeze()
        gc.set_threshold(*_GC_THRESHOLDS)
        sys.setswitchinterval(_SWITCH_S)
        return edge

    async def listening(self) -> int:
        """Return the number of this process, as soon as the edge listens."""
        await self._listening.wait()
        return os.getpid()

    async def report(self) -> bytes:
        """Return the msgpack of ``list[MetricFamily]``, as soon as the edge listens."""
        await self._listening.wait()
        assert self._edge is not None
        return msgspec.msgpack.encode(self._edge.report())

    async def stop(self, drain_s: float) -> None:
        """Drain for ``drain_s`` at most, and stop listening."""
        if self._edge is not None:
            await self._edge.stop(drain_s)
        self._stopped.set()

    async def _follow(self, edge: Edge, database: int, placer: PlacerLink) -> None:
        """Hand every new placement table to the edge, which uses the last one until then."""
        version = 0
        while True:
            try:
                table = await placer.table(version)
                self._routes.placer_answered()
                if table.version != version:
                    version = table.version
                    edge.take_table(self._with_others(database, table))
            except HostUnavailable:
                await asyncio.sleep(_PLACER_AGAIN_S)
            except Exception:  # noqa: BLE001 - without new tables an edge would ask wrong hosts
                _LOG.exception("failed to apply the placement table")
                await asyncio.sleep(_PLACER_AGAIN_S)

    def _with_others(self, database: int, table: PlacementTable) -> PlacementTable:
        """The table of one database with the last ones of the others."""
        known = self._tables.get(database)
        if table.dedicated is None and known is not None:
            # A new placer has not read the list yet: what the last one published still holds.
            table = msgspec.structs.replace(
                table, dedicated=known.dedicated, returned=known.returned
            )
        self._tables[database] = table
        return merged(self._tables.values())

    def _port(self, host: str, edge: Edge) -> HostPort:
        limits = self._settings.limits
        caller = Caller(self._name, limits.host_call_s_max, edge.take_pushes, edge.host_forgot)
        if self._settings.has_placer:
            # The placer's table says which sessions a host handed over before it ended in order.
            caller = caller._replace(on_left=edge.host_left)
        else:
            caller = caller._replace(patience_s=limits.move_wait_s_max)
        return ConnectedHostPort(caller, host, self._finder)


def _on_loop_fault(loop: asyncio.AbstractEventLoop, fault: dict[str, Any]) -> None:
    """End an edge that runs out of memory: it would cut one connection after the other."""
    if isinstance(error := fault.get("exception"), MemoryError):
        end_process("a connection ran out of memory", error)
    loop.default_exception_handler(fault)


def edge_name(index: int, node: str) -> str:
    """The name of an edge, which in a cluster contains the name of its node."""
    return f"edge-{node}-{index}" if node else f"edge-{index}"


def start_edge(
    name: str,
    settings: Settings,
    prepare: Prepare,
    public_halves: tuple[bytes, bytes],
    former_urls: Sequence[str],
) -> Any:
    """Start an edge as an actor: Ray restarts it whenever it dies; it ends with this process.

    The arguments are those of ``RayEdge``. It reads the keys from their file, also after a restart,
    so that Ray never has the private ones.
    """
    remote = ray.remote(RayEdge).options(
        name=name,
        max_restarts=-1,
        max_task_retries=0,
        max_concurrency=10_000,
        num_cpus=0,
    )
    return remote.remote(name, settings, prepare, public_halves, former_urls)
