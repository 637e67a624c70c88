"""The ports to a host, as an edge and as the placer see it, and their one error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class HostUnavailable(Exception):
    """A host did not answer; what was asked of it may or may not have been done."""


class HostPort(Protocol):
    """A way to one host: ``actors.ray_cluster.RayHostPort``, or a host in this process."""

    async def submit(self, batch: bytes) -> bytes:
        """Run msgpack of ``list[Submission]``; msgpack of ``BatchResult``.

        Raises:
            HostUnavailable: outcome unknown.
        """

    async def read(self, batch: bytes) -> list[bytes]:
        """Answer msgpack of ``list[Read]``; the msgpack of each page, empty if unreadable.

        Raises:
            HostUnavailable: the host did not answer.
        """

    async def ping(self) -> str:
        """The incarnation of the host, whose log takes writes.

        Raises:
            HostUnavailable: it does not answer, or its log takes no writes.
        """

    async def heartbeat(self, sockets: int, incarnation: str) -> str:
        """Tell the host how many sockets this incarnation of the edge has; the host's incarnation.

        Another one than before, or none, means that it may have forgotten the edge's sessions.

        Raises:
            HostUnavailable: the host did not answer.
        """

    async def stats(self) -> bytes:
        """The msgpack of ``actors.host_stats.HostStats``.

        Raises:
            HostUnavailable: the host did not answer.
        """

    async def knows(self, did: str) -> bool:
        """Does the log hold any event of this identity?

        Raises:
            HostUnavailable: the host did not answer.
        """

    async def queues(
        self, limit: int, *, outbound_only: bool = False, did: str | None = None
    ) -> bytes:
        """The msgpack of ``list[eventstore.log.WaitingQueue]``, longest waiting first.

        Of one identity alone if it is named.

        Raises:
            HostUnavailable: the host did not answer.
        """

    async def inspect(self, question: bytes) -> bytes:
        """Answer msgpack of ``actors.inspection.Question``; msgpack of its ``Answer``.

        Raises:
            HostUnavailable: the host did not answer.
        """


class OwnerPort(Protocol):
    """A way to one host for whoever decides what it owns: ``RayHostPort``, or one in this process.

    A call that raised may have been carried out: ``owned`` tells, and for identities the log.
    """

    async def submit(self, batch: bytes) -> bytes:
        """As ``HostPort.submit``."""

    async def owned(self) -> bytes:
        """What the host owns: the msgpack of ``actors.placement_table.HostHolds``.

        Answered without waiting for a transaction or the log.

        Raises:
            HostUnavailable: the host did not answer.
        """

    async def release(self, shards: Sequence[str]) -> bytes:
        """Own these shards no longer; the handover for ``adopt`` of their next owner.

        The running transaction is finished first. Whatever is asked for these shards from then on
        is refused with ``Refusal.NOT_OWNER`` before anything is done. Shards that the host does
        not own are passed over.

        Raises:
            HostUnavailable: it may or may not own them still.
        """

    async def adopt(self, shards: Sequence[str], handover: bytes | None) -> dict[str, str]:
        """Own these shards: claim them in the log, whoever owned them; their session ids.

        Sessions, live modes and leases come from the handover, with their ids. A handover is good
        for one attempt, at one host: after a failure, and when there is none, the shards start
        without sessions and under new ids.

        Raises:
            HostUnavailable: it may or may not own them now.
        """

    async def drain(self, *, draining: bool) -> None:
        """Set or clear the flag that says that the host is to be emptied.

        Raises:
            HostUnavailable: the host did not answer.
        """

    async def knows(self, did: str) -> bool:
        """As ``HostPort.knows``."""

    async def dedicated(self) -> bytes:
        """Who is dedicated, in the host's database: msgpack of ``list[DedicatedIdentity]``.

        Raises:
            HostUnavailable: the host did not answer, or its log.
        """

    async def hand_out(self, did: str, shard: str) -> bytes:
        """What an identity had in its shard: a handover, empty if it is not dedicated.

        Raises:
            HostUnavailable: it may or may not be given away.
        """

    async def expect(self, did: str) -> None:
        """Do not serve an identity that comes back to its shard before ``take_in``, for a while.

        Raises:
            HostUnavailable: it may or may not be expected.
        """

    async def take_in(self, did: str, shard: str, handover: bytes) -> bool:
        """Hand over what an identity had elsewhere that is of this shard again; is that owned?

        Raises:
            HostUnavailable: it may or may not be taken in.
        """
