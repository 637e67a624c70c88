"""Which edges hold sockets of which identity: where pushes go. In memory only.

A push is a hint: its content is durable in the queue. Losing this table loses no message; the
edges open their sessions again when they see that the host has a new incarnation.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import msgspec


class LiveMode(msgspec.Struct, frozen=True, gc=False):
    """The session that holds an identity's live mode; empty for none (RFC 0685).

    Messages queued after version ``since`` of the identity are for it, and go to it as they are
    queued while it holds no more than ``bytes_max`` of them, each for ``lease_ms``. So are those
    that were ``leased`` when it began, once they are free: it could not fetch them before.
    """

    edge: str = ""
    session: str = ""
    since: int = 0
    lease_ms: int = 0
    bytes_max: int = 0
    leased: list[str] = []


NO_LIVE_MODE: Final = LiveMode()


class ImplicitPickup(msgspec.Struct, frozen=True, gc=False):
    """The session that gets an identity's messages as they are, and its edge (RFC 0092)."""

    edge: str = ""
    session: str = ""


_NO_IMPLICIT: Final = ImplicitPickup()


class SessionsOf(msgspec.Struct, frozen=True, array_like=True):
    """All sessions of one identity: the edges of its sockets, its live mode, implicit pickup."""

    edges: list[str]
    live: LiveMode | None
    implicit: ImplicitPickup | None = None


class Sessions:
    """Edges by identity, and which sessions hold its live mode and its implicit pickup."""

    def __init__(self) -> None:
        """No sessions."""
        self._edges: dict[str, set[str]] = {}
        self._live: dict[str, LiveMode] = {}
        self._implicit: dict[str, ImplicitPickup] = {}

    def __len__(self) -> int:
        """How many identities have sockets somewhere."""
        return len(self._edges)

    @property
    def live(self) -> int:
        """How many identities have a session in live mode."""
        return len(self._live)

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
        if self.live_of(did).edge == edge:
            del self._live[did]
        if did in self._implicit and self._implicit[did].edge == edge:
            del self._implicit[did]

    def drop_edge(self, edge: str) -> None:
        """The edge is gone with all its sockets."""
        for did in [did for did, edges in self._edges.items() if edge in edges]:
            self.close(did, edge)

    def take(self, did: str) -> SessionsOf | None:
        """End all sessions of an identity and give them away; None when it has none."""
        edges, live = self._edges.pop(did, None), self._live.pop(did, None)
        implicit = self._implicit.pop(did, None)
        return SessionsOf(sorted(edges or ()), live, implicit) if edges or live else None

    def put(self, did: str, taken: SessionsOf) -> None:
        """Go on with the sessions that another host gave away."""
        for edge in taken.edges:
            self.open(did, edge)
        if taken.live is not None:
            self._live[did] = taken.live
        if taken.implicit is not None:
            self._implicit[did] = taken.implicit

    def knows(self, did: str) -> bool:
        """Does the identity have a session of any kind?"""
        return did in self._edges or did in self._live

    def edges_of(self, did: str) -> Collection[str]:
        """The edges that hold sockets of this identity."""
        return self._edges.get(did, ())

    def start_live(self, did: str, mode: LiveMode) -> None:
        """A session takes the live mode over.

        One that holds it already goes on: what came since it began must not be missing.
        """
        if self.live_of(did).session != mode.session:
            self._live[did] = mode

    def end_live(self, did: str, session: str) -> None:
        """The live mode ends if the session holds it."""
        if session and self.live_of(did).session == session:
            del self._live[did]

    def live_of(self, did: str) -> LiveMode:
        """Who holds the live mode."""
        return self._live.get(did, NO_LIVE_MODE)

    def start_implicit(self, did: str, edge: str, session: str) -> str:
        """A session takes implicit pickup over; which other one held it before, empty for none."""
        before = self.implicit_of(did)
        self._implicit[did] = ImplicitPickup(edge, session)
        return before if before != session else ""

    def end_implicit(self, did: str, session: str) -> None:
        """Implicit pickup ends if the session holds it."""
        if session and self.implicit_of(did) == session:
            del self._implicit[did]

    def end_handing_out(self, did: str) -> None:
        """No session holds the live mode or implicit pickup any more."""
        self._live.pop(did, None)
        self._implicit.pop(did, None)

    def implicit_of(self, did: str) -> str:
        """The session that holds implicit pickup, empty for none."""
        return self._implicit.get(did, _NO_IMPLICIT).session
