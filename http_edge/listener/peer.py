"""The client of a connection as handlers see it."""

from __future__ import annotations

from typing import Protocol

from http_edge.listener.transfers import Cut, Transfers


class Peer(Protocol):
    """The client at the other end of a connection."""

    address: str
    """Its address as a rate limit key; behind a trusted proxy, the one that the request names."""

    @property
    def leaving(self) -> Transfers:
        """What this edge holds for clients that read slowly."""

    def handled(self, size_bytes: int) -> None:
        """Release the bytes of a socket message."""

    def cut(self, cause: Cut) -> None:
        """End its connection at once, without a log line of its own."""
