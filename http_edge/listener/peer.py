"""The client of a request, as those see it who answer."""

from __future__ import annotations

from typing import Protocol

from http_edge.listener.transfers import Cut, Transfers


class Peer(Protocol):
    """The client at the other end of a connection."""

    address: str
    """Its address as a key of rates: behind our own proxies that of the request."""

    @property
    def leaving(self) -> Transfers:
        """What this edge holds for clients that read slowly."""

    def cut(self, cause: Cut) -> None:
        """End its connection at once, without a line in the log."""
