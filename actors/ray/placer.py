"""The placer as a Ray actor, and the way to it: one for the cluster, found by its name.

It is detached, so that it outlives the ``poste serve`` that happened to start it, and Ray starts it
anew when its process or its node dies. It prefers the head: without that there is no Ray anyway.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection
from typing import Any, Final

import msgspec
import ray
from ray import exceptions as ray_errors
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors.core.partitioning import DEDICATED_HOST_PREFIX, HOST_PREFIX
from actors.core.placement_table import PlacementTable
from actors.host.clock import new_id, system_clock
from actors.host.port import HostUnavailable, OwnerPort
from actors.placement.dedication import DedicationRules
from actors.placement.placer import Placer
from actors.placement.port import Placed, PlacerUnavailable, Places
from actors.ray.cluster import NAMESPACE, Caller, Prepare, RayHostPort

_LOG = logging.getLogger(__name__)
_NAME: Final = "placer"
_TICK_S: Final = 0.5
_TABLE_S: Final = 20.0
"""How long a question for a newer table waits, and an order for a process that has to start."""
_ALONE_S_MAX: Final = 60.0
"""A placer without any host ends after this: the next one may be for another log."""
_END_S_MAX: Final = 1.5
_ASKING_MAX: Final = 1_000
_HEAD: Final = "node:__internal_head__"
"""What Ray calls the resource that its head node alone has."""
_TABLES: Final = msgspec.msgpack.Decoder(PlacementTable)
_PLACES: Final = msgspec.msgpack.Decoder(Places)


class PlacerOptions(msgspec.Struct, frozen=True):
    """What a placer starts with; a node that joins its cluster must agree.

    Attributes:
        log_id: distinguishes the logs of different mediators.
        shards: how many shards the log has.
        databases: how many databases the log has.
        silent_s_max: a host that is silent for longer is given up.
        identities_max: see ``actors.placement.dedication.DedicationRules``, as for the next three.
    """

    log_id: str
    shards: int
    databases: int
    silent_s_max: float
    identities_max: int = 0
    above_per_s: float = 0
    quiet_s: float = 0
    named: frozenset[str] = frozenset()

    @property
    def rules(self) -> DedicationRules:
        """The same for the placer."""
        return DedicationRules(
            shards=self.shards,
            databases=self.databases,
            silent_s_max=self.silent_s_max,
            identities_max=self.identities_max,
            above_per_s=self.above_per_s,
            quiet_s=self.quiet_s,
            named=self.named,
        )


class RayHosts:
    """Hosts among Ray's named actors.

    The names are Ray's own table, one cheap question (0.7 ms): a name goes as soon as Ray knows
    that the actor is dead for good, and comes before the actor has started.
    """

    def __init__(self, prefix: str, *, call_s_max: float) -> None:
        """Hosts whose names begin so, and who answer a step within ``call_s_max`` or never."""
        self._prefix = prefix
        self._caller = Caller(_NAME, call_s_max, lambda _: None, lambda _: None)

    async def names(self) -> Collection[str]:
        """The hosts that live or are being restarted. Raises: HostUnavailable."""
        try:
            names = await asyncio.to_thread(ray.util.list_named_actors)
        except ray_errors.RayError as error:
            raise HostUnavailable(_NAME) from error
        return {name for name in names if name.startswith(self._prefix)}

    def port(self, name: str) -> OwnerPort:
        """The way to the host of this name."""
        return RayHostPort(self._caller, name)

    async def start(self, did: str, beside: str) -> None:
        """See ``DedicatedHosts.start``: the host ``beside`` knows all that is needed for it."""
        await RayHostPort(self._caller, beside).start_dedicated(did)

    async def end(self, name: str) -> None:
        """See ``DedicatedHosts.end``."""
        with contextlib.suppress(ray_errors.RayError, ValueError, TimeoutError):
            host = await asyncio.to_thread(ray.get_actor, name, namespace=NAMESPACE)
            try:
                async with asyncio.timeout(_END_S_MAX):
                    await host.stop.remote()
            finally:
                ray.kill(host)


class RayPlacer:
    """The placer of a cluster; runs from the first call on, and edges never stop calling."""

    def __init__(self, options: PlacerOptions, prepare: Prepare) -> None:
        """A placer with these options, which knows of no host yet."""
        prepare(_NAME)
        self._options = options
        self._placer = Placer(
            RayHosts(HOST_PREFIX, call_s_max=options.silent_s_max),
            RayHosts(DEDICATED_HOST_PREFIX, call_s_max=options.silent_s_max),
            options.rules,
            version=system_clock(),
            new_id=new_id,
        )
        self._running: asyncio.Task[None] | None = None

    async def options(self) -> PlacerOptions:
        """What this placer was started with."""
        self._run()
        return self._options

    async def table(self, known_version: int) -> bytes:
        """The msgpack of the newest ``PlacementTable``, once it is not the known one."""
        self._run()
        table = await self._placer.table(known_version, seconds_max=_TABLE_S)
        return msgspec.msgpack.encode(table)

    async def places(self) -> bytes:
        """The msgpack of ``actors.placement.placer.Places``."""
        self._run()
        return msgspec.msgpack.encode(self._placer.places())

    async def move(self, shard: str, to: str) -> str:
        """See ``Placer.move``."""
        self._run()
        return await self._placer.move(shard, to)

    async def drain(self, node: str, draining: bool) -> str:  # noqa: FBT001 - Ray's calls
        """See ``Placer.drain``."""
        self._run()
        return await self._placer.drain(node, draining=draining)

    async def dedicate(self, did: str) -> str:
        """See ``Placer.dedicate``."""
        self._run()
        return await self._placer.dedicate(did)

    async def release(self, did: str) -> str:
        """See ``Placer.release``."""
        self._run()
        return await self._placer.release(did)

    def _run(self) -> None:
        if self._running is None:
            self._running = asyncio.create_task(self._keep_ticking())

    async def _keep_ticking(self) -> None:
        needed_s = time.monotonic()
        while time.monotonic() - needed_s < _ALONE_S_MAX:
            try:
                await self._placer.tick(time.monotonic())
            except Exception:  # noqa: BLE001 - the next look may find what this one could not
                _LOG.exception("placement not looked at")
            if not self._placer.is_alone:
                needed_s = time.monotonic()
            await asyncio.sleep(_TICK_S)
        # By Ray's hand: it would start anew what ends by itself.
        ray.kill(ray.get_actor(_NAME, namespace=NAMESPACE))


class PlacerLink:
    """The way to the placer of the cluster that this process has joined."""

    def __init__(self, *, call_s_max: float) -> None:
        """A link that finds the placer at the first call."""
        self._call_s_max = call_s_max
        self._handle: Any = None

    async def options(self) -> PlacerOptions:
        """What the placer was started with. Raises: PlacerUnavailable."""
        options: PlacerOptions = await self._call(lambda placer: placer.options.remote())
        return options

    async def table(self, known_version: int) -> PlacementTable:
        """See ``Placer.table``. Raises: PlacerUnavailable."""
        said = await self._call(lambda p: p.table.remote(known_version), _TABLE_S)
        return _TABLES.decode(said)

    async def places(self) -> Places:
        """See ``Placer.places``. Raises: PlacerUnavailable."""
        return _PLACES.decode(await self._call(lambda placer: placer.places.remote()))

    async def move(self, shard: str, to: str) -> Placed:
        """See ``Placer.move``. Raises: PlacerUnavailable."""
        return Placed(await self._call(lambda placer: placer.move.remote(shard, to)))

    async def drain(self, node: str, *, draining: bool) -> Placed:
        """See ``Placer.drain``. Raises: PlacerUnavailable."""
        return Placed(await self._call(lambda placer: placer.drain.remote(node, draining)))

    async def dedicate(self, did: str) -> Placed:
        """See ``Placer.dedicate``. Raises: PlacerUnavailable."""
        return Placed(await self._call(lambda placer: placer.dedicate.remote(did), _TABLE_S))

    async def release(self, did: str) -> Placed:
        """See ``Placer.release``. Raises: PlacerUnavailable."""
        return Placed(await self._call(lambda placer: placer.release.remote(did), _TABLE_S))

    async def _call(self, ask: Callable[[Any], Any], longer_s: float = 0) -> Any:
        try:
            async with asyncio.timeout(self._call_s_max + longer_s):
                if self._handle is None:
                    self._handle = await asyncio.to_thread(
                        ray.get_actor, _NAME, namespace=NAMESPACE
                    )
                return await ask(self._handle)
        except (ray_errors.RayError, ValueError, TimeoutError) as error:
            self._handle = None
            raise PlacerUnavailable from error


def start_placer(options: PlacerOptions, prepare: Prepare) -> None:
    """Start the placer of the cluster, if there is none."""
    remote = ray.remote(RayPlacer)
    remote.options(
        name=_NAME,
        namespace=NAMESPACE,
        get_if_exists=True,
        lifetime="detached",
        max_restarts=-1,
        max_task_retries=0,
        num_cpus=0,
        max_concurrency=_ASKING_MAX,
        scheduling_strategy=_near_the_head(),
    ).remote(options, prepare)


def _near_the_head() -> NodeAffinitySchedulingStrategy | None:
    for node in ray.nodes():
        if node["Alive"] and _HEAD in node["Resources"]:
            return NodeAffinitySchedulingStrategy(node["NodeID"], soft=True)
    return None
