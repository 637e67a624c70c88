"""The port to a host, as an edge sees it, and its one error."""

from __future__ import annotations

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
        """The msgpack of ``actors.host.HostStats``.

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
