"""How a node leaves its cluster: its shards go as soon as the placer answers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

import pytest

from actors.host.port import HostUnavailable
from actors.placement.placer_link import PlacerLink
from actors.placement.port import (
    DrainNode,
    HostPlace,
    IdentityPlace,
    Placed,
    Places,
)
from http_edge.server import cluster_node
from http_edge.server.cluster_node import ClusterNode
from http_edge.settings.settings import Settings
from tests.cluster.accounts import until
from tests.ports import free_port


class AbsentPlacer:
    """A placer that leaves the first request of each kind unanswered, as while its role moves.

    Then a host does not answer the first order that arrives. The shards leave, then an identity.
    """

    has_left = False
    """Has it said that the identity, too, is elsewhere?"""

    def __init__(self, shards: int) -> None:
        self._silent_once = {"places", "order"}
        self._is_host_silent = True
        self.shards = shards
        self.identities = [IdentityPlace("did:key:dedicated", "order", "host-d", "a")]
        self.orders: list[DrainNode] = []

    def _answer(self, kind: str) -> None:
        if kind in self._silent_once:
            self._silent_once.remove(kind)
            raise HostUnavailable

    async def places(self) -> Places:
        self._answer("places")
        hosts = [
            HostPlace("host-a-0", "a", self.shards, draining=bool(self.orders)),
            HostPlace("host-b-0", "b", 0, draining=False),
        ]
        places = Places([], hosts, self.identities)
        if self.orders and not self.shards:
            self.has_left = not self.identities
            self.identities = []
        elif self.orders:
            self.shards = 0
        return places

    async def order(self, order: DrainNode) -> Placed:
        self._answer("order")
        if self._is_host_silent:
            self._is_host_silent = False
            return Placed.DID_NOT_ANSWER
        self.orders.append(order)
        return Placed.DONE


async def test_a_node_that_leaves_asks_again_a_placer_or_a_host_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seconds in ("_POLL_S", "_LATE_S"):
        monkeypatch.setattr(cluster_node, seconds, 0.01)
    settings = Settings(data_dir=tmp_path, node="a", node_address="127.0.0.1")
    node = ClusterNode(settings, vital=asyncio.create_task)
    placer = AbsentPlacer(shards=2)
    node._placers.each[:] = [cast("PlacerLink", placer)]
    async with asyncio.timeout(10):
        await node.leave()
    assert placer.orders == [DrainNode("a", draining=True)]
    assert placer.shards == 0
    assert placer.has_left
    await node.stop()


async def test_a_node_that_leaves_waits_for_no_database_that_does_not_answer(
    tmp_path: Path,
) -> None:
    """Its placer may answer for the time of its lease, and its shards cannot move."""
    log = f"postgresql://127.0.0.1:{free_port()}/none"
    settings = Settings(data_dir=tmp_path, log=log, node="a", node_address="127.0.0.1")
    node = ClusterNode(settings, vital=asyncio.create_task)
    placer = AbsentPlacer(shards=2)
    node._placers.each[:] = [cast("PlacerLink", placer)]
    async with asyncio.timeout(10):
        await node.leave()
    assert placer.orders == []
    await node.stop()


async def test_a_node_that_leaves_applies_for_no_role_that_it_would_give_up_at_once(
    tmp_path: Path,
) -> None:
    settings = Settings(data_dir=tmp_path, node="a", node_address="127.0.0.1")
    node = ClusterNode(settings, vital=asyncio.create_task)

    async def is_placer() -> bool:
        return node._lowest_placed() == 0

    await node.join()
    await until(is_placer)
    node._placers.each.clear()
    await node.leave()
    assert node._lowest_placed() is None
    await node.stop()
