"""This node's part in a cluster: its name, its agreement with the others, its leave.

A node joins by agreeing with the placer about the log, and leaves by giving its shards
away. In between its hosts and edges need nothing from here.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from typing import Final

from actors.placement.port import Placed, PlacerUnavailable
from actors.ray.cluster import Prepare
from actors.ray.placer import PlacerLink, PlacerOptions, start_placer
from http_edge.server.exits import Exit, Stop
from http_edge.server.hosts import dedicate_above_per_s
from http_edge.settings.settings import Settings

_JOIN_S_MAX: Final = 60.0
_POLL_S: Final = 0.1
_LATE_S: Final = 1.0
"""An edge may have sent commands to a host that had given their shard away: they are answered, so
that they go to the new owner, for as long as the news takes."""
_NAME_CHARS_MAX: Final = 63


def node_name() -> str:
    """The name of this machine, in the letters that a node's name has."""
    name = re.sub(r"[^a-z0-9.-]+", "-", socket.gethostname().lower())
    return name[:_NAME_CHARS_MAX].strip(".-") or "node"


class ClusterNode:
    """One node among others, or the only one of a mediator that serves alone and has a placer."""

    def __init__(self, settings: Settings, log_id: str) -> None:
        """A node that has not joined yet; ``settings.node`` names it, nothing where it is alone."""
        self.name = settings.node or ""
        self._options = PlacerOptions(
            log_id,
            settings.shards,
            len(settings.log_dsns),
            settings.limits.host_silent_s_max,
            settings.limits.dedicated_max,
            dedicate_above_per_s(settings),
            settings.limits.dedicated_quiet_s,
            frozenset(settings.dedicated_dids),
        )
        self._placer = PlacerLink(call_s_max=settings.limits.host_call_s_max)

    async def join(self, prepare: Prepare) -> None:
        """Find the placer or start it, and agree with it.

        Raises:
            Stop: the cluster serves another log, or the placer does not answer.
        """
        found = await self._agree(prepare)
        if found.log_id != self._options.log_id:
            raise Stop(
                Exit.USAGE,
                "The Ray cluster serves another log already.",
                "Name the log of the cluster with --log, or join another one with --ray-address.",
            )

    async def until_served(self) -> None:
        """Return when every shard has an owner."""
        while True:
            with contextlib.suppress(PlacerUnavailable):
                if all(place.host for place in (await self._placer.places()).shards):
                    return
            await asyncio.sleep(_POLL_S)

    async def leave(self) -> None:
        """Give all shards to other nodes; return when none is left here, or no node is left."""
        with contextlib.suppress(PlacerUnavailable):
            while True:
                places = await self._placer.places()
                here = [host for host in places.hosts if host.node == self.name]
                others = [h for h in places.hosts if h.node != self.name and not h.draining]
                left = [place for place in places.identities if place.node == self.name]
                if not left and not any(host.shards for host in here):
                    await asyncio.sleep(_LATE_S)
                    return
                if not others:
                    return
                if not all(host.draining for host in here):
                    drained = await self._placer.drain(self.name, draining=True)
                    if drained is not Placed.DONE:
                        return
                await asyncio.sleep(_POLL_S)

    async def _agree(self, prepare: Prepare) -> PlacerOptions:
        try:
            async with asyncio.timeout(_JOIN_S_MAX):
                while True:
                    await asyncio.to_thread(start_placer, self._options, prepare)
                    with contextlib.suppress(PlacerUnavailable):
                        return await self._placer.options()
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise Stop(
                Exit.UNREACHABLE,
                "The placer of the Ray cluster does not answer.",
                "Every Ray node needs this version of poste installed; see Ray's logs.",
            ) from None
