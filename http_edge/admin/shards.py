"""Endpoints for operators: where shards and dedicated identities are, and orders to move them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec
from aiohttp import web

from actors.core.partitioning import shard_name
from actors.placement.port import (
    Dedicate,
    Drained,
    DrainNode,
    HostPlace,
    MoveShard,
    Order,
    Placed,
    PlacerPort,
    PlacesOfAll,
    Release,
    ShardPlace,
)
from http_edge.admin.operators import json_answer
from http_edge.dispatch.routes import Routes
from http_edge.listener.routes import PlainRoute


class FixedPlaces:
    """Stands in for the placer in a mediator without one, where shards never move."""

    def __init__(self, routes: Routes) -> None:
        self._routes = routes

    async def places(self) -> PlacesOfAll:
        """The places of all shards, and all hosts."""
        shards = [shard_name(index) for index in range(self._routes.placement.shards)]
        owners = [self._routes.host_of(shard) for shard in shards]
        return PlacesOfAll(
            [ShardPlace(shard, owner, "") for shard, owner in zip(shards, owners, strict=True)],
            [
                HostPlace(host, "", owners.count(host), draining=False)
                for host in self._routes.hosts()
            ],
        )

    async def order(self, order: Order) -> Placed:
        """Refuse the order: nothing moves here."""
        del order
        return Placed.NO_CLUSTER

    async def drain(self, order: DrainNode) -> Drained:
        """Refuse the order, too."""
        del order
        return Drained(Placed.NO_CLUSTER)


class PlacementEndpoint:
    """Serves the places of shards and dedicated identities, and orders to move them."""

    def __init__(self, placer: PlacerPort) -> None:
        self._placer = placer

    def routes(self) -> Sequence[PlainRoute]:
        """``/shards`` and ``/identities``."""
        return [
            PlainRoute("GET", "/shards", self._show),
            PlainRoute("POST", "/shards/move", self._move),
            PlainRoute("POST", "/shards/drain", partial(self._drain, draining=True)),
            PlainRoute("POST", "/shards/undrain", partial(self._drain, draining=False)),
            PlainRoute("POST", "/identities/dedicate", partial(self._own, Dedicate)),
            PlainRoute("POST", "/identities/release", partial(self._own, Release)),
        ]

    async def _show(self, _: web.Request) -> web.Response:
        """``GET /shards``: every shard, every host, and every dedicated identity."""
        return json_answer(msgspec.to_builtins(await self._placer.places(), str_keys=True))

    async def _move(self, request: web.Request) -> web.Response:
        """``POST /shards/move?shard=&to=``."""
        query = request.query
        return await self._placed(MoveShard(query.get("shard", ""), query.get("to", "")))

    async def _drain(self, request: web.Request, *, draining: bool) -> web.Response:
        """``POST /shards/drain?node=``, ``/shards/undrain?node=``."""
        order = DrainNode(request.query.get("node", ""), draining=draining)
        return json_answer(msgspec.to_builtins(await self._placer.drain(order), str_keys=True))

    async def _own(self, order: type[Dedicate | Release], request: web.Request) -> web.Response:
        """``POST /identities/dedicate?did=``, ``/identities/release?did=``."""
        did = request.query.get("did", "")
        if not did.startswith("did:"):
            return json_answer({"placed": Placed.NO_SUCH_IDENTITY.value})
        return await self._placed(order(did))

    async def _placed(self, order: Order) -> web.Response:
        placed = await self._placer.order(order)
        return json_answer({"placed": placed.value})
