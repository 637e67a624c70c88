"""Dedicated placement on Ray: one named actor per registered identity, alive while it is used.

The actor starts with the first command for its identity and ends when it was idle too long; in
between only its name says that it exists. A DID without any event gets no actor: its refusals
follow from the empty state, and that is decided here, so strangers cannot make processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from typing import Any, Final

import msgspec
import ray
from ray import exceptions as ray_errors
from typing_extensions import override

from actors.commands import Connect, Register, Submission
from actors.decision import Moment, Refs
from actors.decisions import decide
from actors.host_port import HostPort, HostUnavailable
from actors.identity import Identity
from actors.identity_host import HostOptions
from actors.inspection import StatesDescribed, describe
from actors.limits import IdentityLimits
from actors.line_server import Answer
from actors.partitions import dedicated_host_name
from actors.ray_cluster import (
    CONCURRENCY_GROUPS,
    HOST_OF_ONE,
    NAMESPACE,
    Caller,
    Prepare,
    RayHostPort,
    RayIdentityHost,
)
from actors.refusals import Refusal
from actors.replies import BatchResult, Done, Refused, Reply

_IDLE_CHECK_S: Final = 1.0
_SUBMISSIONS: Final = msgspec.msgpack.Decoder(list[Submission])


class RayDedicatedHost(RayIdentityHost):
    """The host of one identity; ends its process when nobody has needed it for a while."""

    def __init__(self, options: HostOptions, prepare: Prepare) -> None:
        """Start as the options say; see ``IdentityHost``."""
        super().__init__(options, prepare)
        self._name = options.name
        self._idle_s_max = options.limits.identity_idle_s
        self._used_at = time.monotonic()
        threading.Thread(target=self._end_when_idle, name="idle", daemon=True).start()

    @override
    def take(self, edge: str, batch: bytes, answer: Answer, incarnation: str) -> None:
        """A batch that came by a line."""
        self._used_at = time.monotonic()
        super().take(edge, batch, answer, incarnation)

    def _end_when_idle(self) -> None:
        pause = threading.Event()
        while self.is_held or time.monotonic() - self._used_at < self._idle_s_max:
            pause.wait(min(_IDLE_CHECK_S, self._idle_s_max))
        self.stop()
        with contextlib.suppress(ray_errors.RayError, ValueError):
            # By Ray's hand: the name is free before the process ends, so nobody finds it dying.
            ray.kill(ray.get_actor(self._name, namespace=NAMESPACE))
        os._exit(0)


class RayDedicatedPort:
    """The way from an edge to the host of one dedicated identity, waking it if need be."""

    def __init__(
        self,
        caller: Caller,
        did: str,
        template: HostOptions,
        shard: HostPort,
        *,
        prepare: Prepare,
    ) -> None:
        """A port to the identity ``did``; ``shard`` tells whether the log knows it."""
        self._did = did
        self._prepare = prepare
        self._options = msgspec.structs.replace(
            template, name=dedicated_host_name(did), partitions=[did]
        )
        self._shard = shard
        self._host = RayHostPort(caller, self._options.name)
        # The process lives for this long after its last command; half of it leaves time to get
        # there. Later the name has to tell whether it still does.
        self._sure_s = template.limits.identity_idle_s / 2
        self._sure_until = 0.0

    async def submit(self, batch: bytes) -> bytes:
        """Run a batch on the identity's host. Raises: HostUnavailable."""
        if not await self._is_awake():
            submissions = _SUBMISSIONS.decode(batch)
            wakes = any(isinstance(s.command, Register | Connect) for s in submissions)
            if not wakes and not await self._shard.knows(self._did):
                replies = [_refuse(self._did, s) for s in submissions]
                return msgspec.msgpack.encode(BatchResult("", replies, []))
            await self._wake()
        asked_at = time.monotonic()
        result = await self._host.submit(batch)
        self._sure_until = asked_at + self._sure_s
        return result

    async def read(self, batch: bytes) -> list[bytes]:
        """Answer reads; the shard's host reads the same log. Raises: HostUnavailable."""
        return await self._shard.read(batch)

    async def ping(self) -> str:
        """See ``IdentityHost.ping``. Raises: HostUnavailable."""
        await self._wake()
        return await self._host.ping()

    async def heartbeat(self, sockets: int, incarnation: str) -> str:
        """The incarnation of the host, woken if it sleeps. Raises: HostUnavailable.

        A DID without any event has no host: whoever is on a socket need not be registered.
        """
        if not await self._is_awake():
            if not await self._shard.knows(self._did):
                raise HostUnavailable(self._options.name)
            await self._wake()
        return await self._host.heartbeat(sockets, incarnation)

    async def stats(self) -> bytes:
        """See ``IdentityHost.stats``. Raises: HostUnavailable."""
        return await self._host.stats()

    async def queues(
        self, limit: int, *, outbound_only: bool = False, did: str | None = None
    ) -> bytes:
        """What waits; the shard's host reads the same log. Raises: HostUnavailable."""
        return await self._shard.queues(limit, outbound_only=outbound_only, did=did)

    async def knows(self, did: str) -> bool:
        """Does the log know an identity? Raises: HostUnavailable."""
        return await self._shard.knows(did)

    async def inspect(self, question: bytes) -> bytes:
        """Answer about an identity that is awake; looking wakes nobody. Raises: HostUnavailable."""
        if await self._is_awake():
            return await self._host.inspect(question)
        if await self._shard.knows(self._did):
            return msgspec.msgpack.encode(StatesDescribed([], asleep=[self._did]))
        nobody = describe(self._did, Identity(), 0)
        return msgspec.msgpack.encode(StatesDescribed([nobody]))

    async def _is_awake(self) -> bool:
        if self._host.is_connected and time.monotonic() < self._sure_until:
            return True
        self._host.disconnect()
        try:
            await asyncio.to_thread(ray.get_actor, self._options.name, namespace=NAMESPACE)
        except ValueError:
            return False
        except ray_errors.RayError as error:
            raise HostUnavailable(self._options.name) from error
        return True

    async def _wake(self) -> None:
        if not self._host.is_connected:
            try:
                await asyncio.to_thread(_start, self._options, self._prepare)
            except (ray_errors.RayError, ValueError) as error:
                raise HostUnavailable(self._options.name) from error


def _start(options: HostOptions, prepare: Prepare) -> Any:
    """The named host; not restarted by Ray: the next command wakes it again."""
    remote = ray.remote(concurrency_groups=CONCURRENCY_GROUPS)(RayDedicatedHost)
    return remote.options(name=options.name, **HOST_OF_ONE).remote(options, prepare)


def _refuse(did: str, submission: Submission) -> Reply:
    """The reply of an identity that has no events."""
    if submission.refusal is not None:
        return Refused(submission.refusal)
    if submission.command is None:
        return Done()
    decision = decide(did, Identity(), submission.command, Moment(0, b"", "", IdentityLimits()))
    if isinstance(decision, Refusal):
        return Refused(decision)
    return Done() if isinstance(decision.reply, Refs) else decision.reply
