"""Every call to Ray that concerns hosts: starting Ray, naming hosts, reaching them.

Ray guarantees little under faults: a call that fails may have run, a cut-off host may live beside
its replacement. So this module never retries a call (``max_task_retries=0``), and whoever calls
takes any error as "outcome unknown"; the log is the fence.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
import ray
from ray import exceptions as ray_errors
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from typing_extensions import override

from actors.host_port import HostUnavailable
from actors.identity_host import HostOptions, IdentityHost
from actors.line import Line, LineLost, TakePushes, open_line
from actors.line_frames import LineAddress
from actors.line_server import Answer, LineServer
from actors.partitions import own_host_name
from eventstore.errors import LogUnavailable
from eventstore.log import EventLog

_LOG = logging.getLogger(__name__)
_REOPEN_S: Final = 1.0
_FORGOTTEN_S: Final = 60.0

NAMESPACE: Final = "poste"
OBJECT_STORE_BYTES: Final = 100 * 1024 * 1024
"""Ray's shared memory. Batches travel inside the calls, so the store stays almost empty; Ray
refuses less than 75 MB."""
INLINE_BYTES: Final = 4 * 1024 * 1024
"""Arguments and results up to this size travel inside the call. Ray's default of 100 KB would send
a page of 100 messages of 1 KiB through shared memory, at a millisecond each."""


class ClusterRefused(Exception):
    """Ray cannot be started or joined; the message says why."""


class NameTaken(Exception):
    """An actor of this name lives already; the message is the name."""


def start(address: str | None, *, node_ip: str | None = None) -> None:
    """Join the Ray cluster at ``address``, or start a Ray of our own on this machine.

    ``node_ip`` says which node of the cluster to be on, where this machine runs several.

    Raises:
        ClusterRefused: the cluster cannot be reached, or has no node on this machine.
    """
    logging.getLogger("ray").setLevel(logging.WARNING)
    if address is not None:
        try:
            ray.init(
                address=address,
                namespace=NAMESPACE,
                log_to_driver=False,
                configure_logging=False,
                _node_ip_address=node_ip,
            )
        except (ConnectionError, RuntimeError, ValueError, ray_errors.RayError) as error:
            raise ClusterRefused(str(error).partition("\n")[0]) from error
        return
    ray.init(
        address="local",  # never one that happens to run on this machine
        namespace=NAMESPACE,
        include_dashboard=False,
        object_store_memory=OBJECT_STORE_BYTES,
        log_to_driver=False,
        configure_logging=False,
        _node_ip_address="127.0.0.1",
        _system_config={
            "max_direct_call_object_size": INLINE_BYTES,
            # Ray's own record of every call, for a dashboard that is not there: it grows with them.
            "task_events_report_interval_ms": 0,
        },
    )


def stop() -> None:
    """Leave Ray; a Ray of our own ends with all its actors."""
    ray.shutdown()


def is_lost() -> bool:
    """Has the head been replaced by one that does not know this process?

    Ray lets such a process call dead actors for ever. As long as no head answers, this waits;
    after 60 s Ray itself ends the process.
    """
    try:
        ray.util.list_named_actors()
    except ray_errors.AuthenticationError:
        return True  # what Ray makes of "WrongClusterID"
    except ray_errors.RayError:
        return False
    return False


Prepare: TypeAlias = Callable[[str], None]
"""Called with the name of an actor in its new process, before it starts: sets up logging."""


CALLS_MAX: Final = 2
"""Threads for what has no group of its own: the start and the end."""
HOST_OF_ONE: Final[Mapping[str, Any]] = {
    "namespace": NAMESPACE,
    "get_if_exists": True,
    "lifetime": "detached",
    "max_restarts": 0,
    "max_task_retries": 0,
    "num_cpus": 0,
    "max_concurrency": CALLS_MAX,
}
"""How Ray starts the host of a single identity: once, and not again by itself."""
CONCURRENCY_GROUPS: Final = {"read": 2, "control": 4, "inspect": 1, "placement": 4}
"""Threads for calls through Ray; commands come by lines, so none of these holds them up. Moves wait
for the log, and whoever asks meanwhile if the host lives does not wait for them."""


class RayIdentityHost(IdentityHost):
    """An ``IdentityHost`` that edges reach by lines, once they asked it for one through Ray."""

    def __init__(self, options: HostOptions, prepare: Prepare) -> None:
        """Prepare the process, then start as the options say; see ``IdentityHost``."""
        prepare(options.name)
        self._options, self._prepare = options, prepare
        self._lines = LineServer(self.take, self.forget_edge)
        super().__init__(options, self._lines.push, log=_opened(options))
        self._line_address = self._lines.listen(ray.util.get_node_ip_address())

    def line(self) -> LineAddress:
        """Where this host listens for lines, and what opens one."""
        return self._line_address

    def take(self, edge: str, batch: bytes, answer: Answer, incarnation: str) -> None:
        """A batch that came by a line. Raises: msgspec.DecodeError."""
        self._writer.submit(edge, batch, answer, incarnation)

    def start_own(self, did: str) -> None:
        """Start a host of this identity alone on this node, if there is none."""
        name = own_host_name(did, self._options.node)
        options = msgspec.structs.replace(self._options, name=name, partitions=[])
        ray.remote(concurrency_groups=CONCURRENCY_GROUPS)(RayOwnHost).options(
            name=name, scheduling_strategy=this_node(), **HOST_OF_ONE
        ).remote(options, self._prepare)

    @override
    def stop(self) -> None:
        """See ``IdentityHost.stop``."""
        super().stop()
        self._lines.close()


class RayOwnHost(RayIdentityHost):
    """The host of one identity in a cluster, which the placer starts and ends.

    It outlives whoever started it: should that end, the identity can leave in peace. Without a
    placer for long it ends by itself.
    """

    def __init__(self, options: HostOptions, prepare: Prepare) -> None:
        """As ``RayIdentityHost``."""
        self._asked_s = time.monotonic()
        super().__init__(options, prepare)
        threading.Thread(target=self._end_when_forgotten, name="forgotten", daemon=True).start()

    @override
    def owned(self) -> bytes:
        """See ``IdentityHost.owned``."""
        self._asked_s = time.monotonic()
        return super().owned()

    def _end_when_forgotten(self) -> None:
        while (left_s := self._asked_s + _FORGOTTEN_S - time.monotonic()) > 0:
            time.sleep(left_s)
        _LOG.error("no placer has asked for this host: it ends")
        self.stop()
        with contextlib.suppress(ray_errors.RayError, ValueError):
            # By Ray's hand: the name is free before the process ends, so nobody finds it dying.
            ray.kill(ray.get_actor(self._options.name, namespace=NAMESPACE))
        os._exit(0)


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
    """A new named host on the node of this process; Ray restarts it whenever it dies.

    It ends with this process, and with its node.

    Raises:
        NameTaken: a host of this name lives already.
    """
    remote = ray.remote(concurrency_groups=CONCURRENCY_GROUPS)(RayIdentityHost)
    try:
        return remote.options(
            name=options.name,
            namespace=NAMESPACE,
            max_restarts=-1,
            max_task_retries=0,
            num_cpus=0,
            max_concurrency=CALLS_MAX,
            scheduling_strategy=this_node(),
        ).remote(options, prepare)
    except ray_errors.ActorAlreadyExistsError as error:
        raise NameTaken(options.name) from error


def this_node() -> NodeAffinitySchedulingStrategy:
    """Run on the node of this process and on no other."""
    return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)


class Caller(NamedTuple):
    """An edge, as its ports need to know it."""

    edge: str
    call_s_max: float
    on_pushes: TakePushes
    on_missed: Callable[[str], None]
    """Hears the name of a host that had pushes for the edge before there was a line."""


class RayHostPort:
    """The way from an edge to one named host."""

    def __init__(self, caller: Caller, name: str) -> None:
        """A port that finds its host at the first call."""
        self._caller = caller
        self._name = name
        self._handle: Any = None
        self._line: Line | None = None
        self._opening = asyncio.Lock()

    async def submit(self, batch: bytes) -> bytes:
        """Run a batch of submissions; see ``IdentityHost.submit``. Raises: HostUnavailable."""
        try:
            async with asyncio.timeout(self._caller.call_s_max):
                line = self._line
                if line is None or not line.is_open:
                    line = await self._open_line()
                return await line.ask(batch)
        except (LineLost, OSError) as error:  # a time-out is an OSError
            raise HostUnavailable(self._name) from error

    async def read(self, batch: bytes) -> list[bytes]:
        """Answer reads; see ``IdentityHost.read``. Raises: HostUnavailable."""
        result: list[bytes] = await self._call(
            lambda host: host.read.options(concurrency_group="read").remote(batch)
        )
        return result

    async def ping(self) -> str:
        """The incarnation of a host whose log takes writes. Raises: HostUnavailable."""
        result: str = await self._call(
            lambda host: host.ping.options(concurrency_group="control").remote()
        )
        return result

    async def heartbeat(self, sockets: int, incarnation: str) -> str:
        """See ``IdentityHost.heartbeat``. Raises: HostUnavailable.

        The incarnation is that of the line: what was pushed is lost with it. It is opened here if
        need be, so that a host can push before it was ever asked.
        """
        await self._call(
            lambda host: host.heartbeat.options(concurrency_group="control").remote(
                self._caller.edge, sockets, incarnation
            )
        )
        try:
            async with asyncio.timeout(self._caller.call_s_max):
                return (await self._open_line()).incarnation
        except (LineLost, OSError):
            return ""

    @property
    def is_connected(self) -> bool:
        """Has the host been found, and not been seen dead since?"""
        return self._handle is not None

    def disconnect(self) -> None:
        """Find the host anew at the next call."""
        self._handle = None

    async def knows(self, did: str) -> bool:
        """See ``IdentityHost.knows``. Raises: HostUnavailable."""
        result: bool = await self._call(
            lambda host: host.knows.options(concurrency_group="control").remote(did)
        )
        return result

    async def queues(
        self, limit: int, *, outbound_only: bool = False, did: str | None = None
    ) -> bytes:
        """See ``IdentityHost.queues``. Raises: HostUnavailable."""
        result: bytes = await self._call(
            lambda host: host.queues.options(concurrency_group="read").remote(
                limit, outbound_only=outbound_only, did=did
            )
        )
        return result

    async def inspect(self, question: bytes) -> bytes:
        """See ``IdentityHost.inspect``. Raises: HostUnavailable."""
        result: bytes = await self._call(
            lambda host: host.inspect.options(concurrency_group="inspect").remote(question)
        )
        return result

    async def owned(self) -> bytes:
        """See ``IdentityHost.owned``. Raises: HostUnavailable."""
        result: bytes = await self._call(
            lambda host: host.owned.options(concurrency_group="control").remote()
        )
        return result

    async def release(self, shards: Sequence[str]) -> bytes:
        """See ``IdentityHost.release``. Raises: HostUnavailable."""
        result: bytes = await self._call(
            lambda host: host.release.options(concurrency_group="placement").remote(shards)
        )
        return result

    async def adopt(self, shards: Sequence[str], handover: bytes | None) -> dict[str, str]:
        """See ``IdentityHost.adopt``. Raises: HostUnavailable."""
        result: dict[str, str] = await self._call(
            lambda host: host.adopt.options(concurrency_group="placement").remote(shards, handover)
        )
        return result

    async def dedicated(self) -> bytes:
        """See ``IdentityHost.dedicated``. Raises: HostUnavailable."""
        result: bytes = await self._call(
            lambda host: host.dedicated.options(concurrency_group="read").remote()
        )
        return result

    async def hand_out(self, did: str, shard: str) -> bytes:
        """See ``IdentityHost.hand_out``. Raises: HostUnavailable."""
        result: bytes = await self._call(
            lambda host: host.hand_out.options(concurrency_group="placement").remote(did, shard)
        )
        return result

    async def expect(self, did: str) -> None:
        """See ``IdentityHost.expect``. Raises: HostUnavailable."""
        await self._call(
            lambda host: host.expect.options(concurrency_group="placement").remote(did)
        )

    async def take_in(self, did: str, shard: str, handover: bytes) -> bool:
        """See ``IdentityHost.take_in``. Raises: HostUnavailable."""
        result: bool = await self._call(
            lambda host: host.take_in.options(concurrency_group="placement").remote(
                did, shard, handover
            )
        )
        return result

    async def start_own(self, did: str) -> None:
        """Have a host of this identity alone started beside this one. Raises: HostUnavailable."""
        await self._call(
            lambda host: host.start_own.options(concurrency_group="placement").remote(did)
        )

    async def drain(self, *, draining: bool) -> None:
        """See ``IdentityHost.drain``. Raises: HostUnavailable."""
        await self._call(
            lambda host: host.drain.options(concurrency_group="control").remote(draining=draining)
        )

    async def stats(self) -> bytes:
        """The host's counters; see ``IdentityHost.stats``. Raises: HostUnavailable."""
        result: bytes = await self._call(
            lambda host: host.stats.options(concurrency_group="control").remote()
        )
        return result

    async def _open_line(self) -> Line:
        async with self._opening:
            if self._line is None or not self._line.is_open:
                address = await self._line_address()
                self._line = await open_line(address, self._caller.edge, self._caller.on_pushes)
                if self._line.has_missed:
                    self._caller.on_missed(self._name)
            return self._line

    async def _line_address(self) -> LineAddress:
        def ask(host: Any) -> Any:
            return host.line.options(concurrency_group="control").remote()

        was_known = self.is_connected
        try:
            address: LineAddress = await self._call(ask)
        except HostUnavailable:
            if not was_known or self.is_connected:
                raise
            # It was the one that had the name before, and nothing has been asked of it.
            address = await self._call(ask)
        return address

    async def _call(self, ask: Callable[[Any], Any]) -> Any:
        try:
            async with asyncio.timeout(self._caller.call_s_max):
                if self._handle is None:
                    self._handle = await asyncio.to_thread(
                        ray.get_actor, self._name, namespace=NAMESPACE
                    )
                return await ask(self._handle)
        except (ray_errors.RayError, ValueError, TimeoutError) as error:
            if isinstance(error, ray_errors.ActorDiedError):
                self._handle = None
            raise HostUnavailable(self._name) from error
