"""The settings of a log in PostgreSQL; see ``http_edge.config``."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from eventstore.postgres_bounds import PostgresBounds
from http_edge.config_types import Section, at_most


class Postgres(Section):
    """Connections to a log in PostgreSQL. TLS and several servers stand in the address: log."""

    connections_kept: int = Field(default=2, ge=1, le=256)
    """Connections that one host keeps open without work: that of its writer, and one for reads."""
    connections_max: int = Field(default=10, ge=1, le=256)
    """Connections of one host at most: its threads are one writer, one for snapshots, seven for
    reads and questions. All hosts together, and a few for the tools, have to stay below the
    server's max_connections."""
    connect_s_max: float = Field(default=5, ge=1, le=60)
    """Time for one server to take a connection, and to show that an idle one still lives. With
    several servers in the address each gets it in turn."""
    lock_s_max: float = Field(default=10, ge=0.1, le=300)
    """Time to wait for the lock that appends take in turn; the server enforces it."""
    answer_s_max: float = Field(default=15, ge=1, le=600)
    """Time for the answer to one statement; then the connection is closed and the outcome is
    unknown. Below limits.host_call_s_max, so that a client hears of it from the host, and above
    lock_s_max."""
    idle_s_max: float = Field(default=15, ge=1, le=600)
    """The server ends a transaction that stands still longer: a host that was paused or cut off
    inside an append holds the lock of all."""
    unsafe_ok: bool = False
    """Serve from a server with fsync, full_page_writes or synchronous_commit off, which loses
    messages that were accepted when its power fails. For experiments only."""

    @model_validator(mode="after")
    def _agree(self) -> Self:
        at_most(self, "connections_kept", "connections_max")
        at_most(self, "lock_s_max", "answer_s_max")
        return self

    @property
    def bounds(self) -> PostgresBounds:
        """What the log is opened with."""
        return PostgresBounds(
            connections_kept=self.connections_kept,
            connections_max=self.connections_max,
            connect_s_max=self.connect_s_max,
            lock_s_max=self.lock_s_max,
            answer_s_max=self.answer_s_max,
            idle_s_max=self.idle_s_max,
        )
