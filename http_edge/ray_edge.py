"""The edge as a Ray actor: HTTP on the same port in as many processes as there are edges."""

from __future__ import annotations

import asyncio
import gc
from typing import Any, Final

import msgspec
import ray

from actors.host_port import HostPort
from actors.identity_host import HostOptions
from actors.partitions import dedicated_did
from actors.ray_cluster import NAMESPACE, Caller, Prepare, RayHostPort
from actors.ray_dedicated import RayDedicatedPort
from http_edge.config import Settings
from http_edge.edge import Edge, placement_of
from http_edge.mediator_keys import load_or_create

_GC_THRESHOLDS: Final = (50_000, 20, 50)
"""A large JSON text makes tens of thousands of objects at once; with the default of 700 the
collector runs through them dozens of times, which takes longer than parsing."""


class RayEdge:
    """One edge process. ``serve`` runs until ``stop``; a restarted actor is told to serve again."""

    def __init__(self, name: str, settings: str, template: HostOptions, prepare: Prepare) -> None:
        """An edge with settings as JSON; ``template`` is what a dedicated host starts with."""
        prepare(name)
        self._settings = Settings.model_validate_json(settings)
        self._prepare = prepare
        self._name = name
        self._template = template
        self._edge: Edge | None = None
        self._listening = asyncio.Event()
        self._stopped = asyncio.Event()

    async def serve(self) -> None:
        """Listen, and return after ``stop``."""
        keys = load_or_create(self._settings.keys_path)
        edge = Edge(self._name, self._settings, keys, self._port)
        await edge.start()
        # What is there now stays: looking through it again and again costs every request.
        gc.collect()
        gc.freeze()
        gc.set_threshold(*_GC_THRESHOLDS)
        self._edge = edge
        self._listening.set()
        await self._stopped.wait()

    async def listening(self) -> None:
        """Return as soon as the edge listens."""
        await self._listening.wait()

    async def report(self) -> bytes:
        """The msgpack of ``http_edge.edge_report.EdgeReport``, as soon as the edge listens."""
        await self._listening.wait()
        assert self._edge is not None
        return msgspec.msgpack.encode(self._edge.report())

    async def stop(self) -> None:
        """Drain and stop listening."""
        if self._edge is not None:
            await self._edge.stop()
        self._stopped.set()

    def _port(self, host: str) -> HostPort:
        limits = self._settings.limits
        caller = Caller(self._name, limits.host_call_s_max, self._take_pushes)
        did = dedicated_did(host)
        if did is None:
            return RayHostPort(caller, host)
        placement = placement_of(self._settings)
        shard = placement.host_of(placement.nonce_partition_of(did))
        return RayDedicatedPort(
            caller,
            did,
            self._template,
            self._port(shard),
            prepare=self._prepare,
        )

    def _take_pushes(self, pushes: bytes) -> None:
        if self._edge is not None:
            self._edge.take_pushes(pushes)


def start_edge(name: str, settings: str, template: HostOptions, prepare: Prepare) -> Any:
    """The named edge; Ray restarts it whenever it dies."""
    remote = ray.remote(RayEdge)
    return remote.options(
        name=name,
        namespace=NAMESPACE,
        max_restarts=-1,
        max_task_retries=0,
        max_concurrency=10_000,
        num_cpus=0,
    ).remote(name, settings, template, prepare)
