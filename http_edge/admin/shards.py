"""Endpoints for operators: where shards and dedicated identities are, and orders to move them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

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
            self._ordering("/shards/move", _move),
            self._ordering("/shards/drain", partial(_drain, draining=True)),
            self._ordering("/shards/undrain", partial(_drain, draining=False)),
            PlainRoute("POST", "/identities/dedicate", authorized(partial(self._own, Dedicate))),
            PlainRoute("POST", "/identities/release", authorized(partial(self._own, Release))),
        ]

    def _ordering(self, path: str, order: Callable[[Mapping[str, str]], Order]) -> Route:
        async def ordered(request: web.Request) -> web.Response:
            return await self._placed(order(request.query))

        return PlainRoute("POST", path, self._access.authorized(ordered))

    async def _show(self, _: web.Request) -> web.Response:
        """``GET /shards``: every shard, every host, and every dedicated identity."""
        return json_answer(msgspec.to_builtins(await self._placer.places()))

    async def _own(self, order: type[Dedicate | Release], request: web.Request) -> web.Response:
        """``POST /identities/dedicate?did=``, ``/identities/release?did=``."""
        did = request.query.get("did", "")
        if not did.startswith("did:"):
            return json_answer({"placed": Placed.NO_SUCH_IDENTITY.value})
        return await self._placed(order(did))

    async def _placed(self, order: Order) -> web.Response:
        placed = await self._placer.order(order)
        return json_answer({"placed": placed.value})


def _move(query: Mapping[str, str]) -> Order:
    """``POST /shards/move?shard=&to=``."""
    return MoveShard(query.get("shard", ""), query.get("to", ""))


def _drain(query: Mapping[str, str], *, draining: bool) -> Order:
    """``POST /shards/drain?node=``, ``/shards/undrain?node=``."""
    return DrainNode(query.get("node", ""), draining=draining)
