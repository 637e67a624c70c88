"""An operator's orders to a cluster: where shards are, moving them, emptying nodes."""

from __future__ import annotations

import json
from collections import Counter
from http.client import HTTPConnection, HTTPException
from typing import Any, Final
from urllib.parse import urlencode

import aiohttp
import msgspec

from actors.placer_port import Placed, Places
from http_edge.bench.target import Target
from http_edge.mediator_keys import MediatorKeys
from http_edge.operators import operator_token

_ANSWER_S_MAX: Final = 20.0
_OK: Final = 200


class ShardOrders:
    """What an operator with the mediator's keys may ask of any edge."""

    def __init__(self, keys: MediatorKeys) -> None:
        """An operator with these keys."""
        self.headers = {"Authorization": f"Bearer {operator_token(keys)}"}

    def places(self, target: Target) -> Places | None:
        """Where everything is; None where the placer does not answer."""
        try:
            return msgspec.convert(self._ask("GET", target, "/shards"), Places)
        except (OSError, HTTPException, ValueError):
            return None

    def spread(self, target: Target) -> dict[str, int]:
        """How many shards each node has; none while one is moving or has no host."""
        places = self.places(target)
        if places is None or any(not shard.node or shard.to for shard in places.shards):
            return {}
        return dict(Counter(shard.node for shard in places.shards if shard.node))

    def drain(self, target: Target, node: str, *, draining: bool) -> None:
        """Have a node emptied, or filled again; the moves follow.

        Raises:
            RuntimeError: the order was not taken.
        """
        path = f"/shards/{'drain' if draining else 'undrain'}?{urlencode({'node': node})}"
        try:
            answer = self._ask("POST", target, path)
        except (OSError, HTTPException, ValueError) as error:
            raise RuntimeError(f"{node} was not drained: {error}") from error
        if answer.get("placed") != Placed.DONE:
            raise RuntimeError(f"{node} was not drained: {answer}")

    async def move(
        self, session: aiohttp.ClientSession, target: Target, shard: str, node: str
    ) -> bool:
        """Move a shard, and wait for it: did it?"""
        url = f"{target.url}/shards/move?{urlencode({'shard': shard, 'to': node})}"
        async with session.post(url, headers=self.headers) as response:
            if response.status != _OK:
                return False
            answer = await response.json()
        return bool(answer.get("placed") == Placed.DONE)

    def _ask(self, method: str, target: Target, path: str) -> Any:
        connection = HTTPConnection(target.host, target.port, timeout=_ANSWER_S_MAX)
        try:
            connection.request(method, path, headers=self.headers)
            response = connection.getresponse()
            body = response.read()
        finally:
            connection.close()
        if response.status != _OK:
            raise HTTPException(f"status {response.status}")
        return json.loads(body)
