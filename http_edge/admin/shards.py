"""Endpoints for operators: where shards and dedicated identities are, and orders to move them."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus

import msgspec
from aiohttp import web

from actors.core.partitioning import shard_name
from actors.placement.port import (
    Dedicate,
    DrainNode,
    HostPlace,
    MoveShard,
    Order,
    Placed,
    PlacerPort,
    PlacerUnavailable,
    Places,
    Release,
    ShardPlace,
)
from http_edge.admin.operators import OperatorAccess, json_answer
from http_edge.dispatch.routes import Routes
from http_edge.listener.routes import PlainRoute, Route


class FixedPlaces:
    """Stands in for the placer in a mediator without one, where shards never move."""

    def __init__(self, routes: Routes) -> None:
        """The places according to these routes."""
        self._routes = routes

    async def places(self) -> Places:
        """The places of all shards, and all hosts."""
        shards = [shard_name(index) for index in range(self._routes.placement.shards)]
        owners = [self._routes.host_of(shard) for shard in shards]
        return Places(
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


class PlacementEndpoint:
    """Serves the places of shards and dedicated identities, and orders to move them."""

    def __init__(self, access: OperatorAccess, placer: PlacerPort) -> None:
        self._access = access
        self._placer = placer

    def routes(self) -> Sequence[Route]:
        """``/shards`` and ``/identities``."""
        authorized = self._access.authorized
        return [
            PlainRoute("GET", "/shards", authorized(self._show)),
            PlainRoute("POST", "/shards/{order:move|drain|undrain}", authorized(self._order)),
            PlainRoute(
                "POST", "/identities/{order:dedicate|release}", authorized(self._order_identity)
            ),
        ]

    async def _show(self, _: web.Request) -> web.Response:
        """``GET /shards``: every shard, every host, and every dedicated identity."""
        try:
            places = await self._placer.places()
        except PlacerUnavailable:
            return web.Response(status=HTTPStatus.SERVICE_UNAVAILABLE)
        return json_answer(msgspec.to_builtins(places))

    async def _order(self, request: web.Request) -> web.Response:
        """``POST /shards/move?shard=&to=``, ``/shards/drain?node=``, ``/shards/undrain?node=``."""
        query = request.query
        order = request.match_info["order"]
        if order == "move":
            return await self._placed(MoveShard(query.get("shard", ""), query.get("to", "")))
        return await self._placed(DrainNode(query.get("node", ""), draining=order == "drain"))

    async def _order_identity(self, request: web.Request) -> web.Response:
        """``POST /identities/dedicate?did=``, ``/identities/release?did=``."""
        did = request.query.get("did", "")
        if not did.startswith("did:"):
            return json_answer({"placed": Placed.NO_SUCH_IDENTITY.value})
        is_new = request.match_info["order"] == "dedicate"
        return await self._placed(Dedicate(did) if is_new else Release(did))

    async def _placed(self, order: Order) -> web.Response:
        try:
            placed = await self._placer.order(order)
        except PlacerUnavailable:
            return web.Response(status=HTTPStatus.SERVICE_UNAVAILABLE)
        return json_answer({"placed": placed.value})
