"""Which edges hold sockets of which identity: where pushes go. In memory only.

A push is a hint: what it tells is durable in the queue. Losing this table loses no message; the
edges open their sessions again when they see that the host has a new incarnation.
"""

from __future__ import annotations

from collections.abc import Collection


class Sessions:
    """Edges by identity."""

    def __init__(self) -> None:
        """No sessions."""
        self._edges: dict[str, set[str]] = {}

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

    def drop_edge(self, edge: str) -> None:
        """The edge is gone with all its sockets."""
        for did in [did for did, edges in self._edges.items() if edge in edges]:
            self.close(did, edge)

    def edges_of(self, did: str) -> Collection[str]:
        """The edges that hold sockets of this identity."""
        return self._edges.get(did, ())
