"""Which edges hold sockets of which identity: where pushes go. In memory only.

A push is a hint: what it tells is durable in the queue. Losing this table loses no message; the
edges open their sessions again when they see that the host has a new incarnation.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

_NOBODY: Final = ("", "")


class Sessions:
    """Edges by identity, and which session on which edge holds the live mode."""

    def __init__(self) -> None:
        """No sessions."""
        self._edges: dict[str, set[str]] = {}
        self._live: dict[str, tuple[str, str]] = {}

    def __len__(self) -> int:
        """How many identities have sockets somewhere."""
        return len(self._edges)

    def open(self, did: str, edge: str) -> None:
        """Push the identity's notices to this edge."""
        self._edges.setdefault(did, set()).add(edge)

    def close(self, did: str, edge: str) -> None:
        """Stop pushing the identity's notices to this edge."""
        edges = self._edges.get(did)
        if edges is not None:
            edges.discard(edge)
            if not edges:
                del self._edges[did]
        if self._live.get(did, _NOBODY)[0] == edge:
            del self._live[did]

    def drop_edge(self, edge: str) -> None:
        """The edge is gone with all its sockets."""
        for did in [did for did, edges in self._edges.items() if edge in edges]:
            self.close(did, edge)

    def edges_of(self, did: str) -> Collection[str]:
        """The edges that hold sockets of this identity."""
        return self._edges.get(did, ())

    def start_live(self, did: str, edge: str, session: str) -> str:
        """The session takes the live mode over; who held it before, empty for nobody."""
        before = self.live_of(did)
        self._live[did] = (edge, session)
        return "" if before == session else before

    def end_live(self, did: str, session: str) -> None:
        """The live mode ends if the session holds it."""
        if session and self.live_of(did) == session:
            del self._live[did]

    def live_of(self, did: str) -> str:
        """The session that holds the live mode, empty for none."""
        return self._live.get(did, _NOBODY)[1]
