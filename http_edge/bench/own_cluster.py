"""A cluster of a benchmark's own on this machine: Ray nodes, and a ``poste serve`` on each."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Self

import http_edge
from http_edge.bench.layers import spent_s
from http_edge.bench.own_database import Database
from http_edge.bench.ray_node import Node, free_port, ray_start
from http_edge.bench.server import UNLIMITED, own_environment
from http_edge.bench.shard_orders import ShardOrders
from http_edge.client import Sources
from http_edge.mediator_keys import load_or_create

SHARDS: Final = 16
_DID: Final = "did:web:bench.test"
_RAY: Final = {
    # Ray starts workers at niceness 15: whatever else runs on the machine would go first.
    "RAY_worker_niceness": "0",
    # Ray's own defaults take 15 s to notice that a node has died.
    "RAY_health_check_initial_delay_ms": "5000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "3000",
    "RAY_health_check_failure_threshold": "3",
}
_SPREAD_S_MAX: Final = 90.0
_POLL_S: Final = 0.1


class OwnCluster:
    """Nodes by their numbers; the first is Ray's head. A context manager that ends them all."""

    def __init__(self, folder: Path, database: Database) -> None:
        """A cluster without nodes; what its processes write goes to ``folder``."""
        self.nodes: dict[int, Node] = {}
        self.database = database
        self._folder = folder
        keys = folder / "mediator-keys.json"
        self.orders = ShardOrders(load_or_create(keys))
        source = Sources()
        token = (source.new_nonce() + source.new_nonce()).replace("-", "")
        self._environment = {
            **own_environment(),
            **_RAY,
            # Ray's workers are started by Ray, and find the program as this one was found.
            "PYTHONPATH": str(Path(http_edge.__file__).parents[1]),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": token,
        }
        self._address = f"{_ip(1)}:{free_port(_ip(1))}"
        self._settings = {
            **UNLIMITED,
            "did": _DID,
            "keys_file": str(keys),
            "ray_address": self._address,
            "shards": str(SHARDS),
            "hosts": "1",
            "edges": "1",
        }
        # The paths of Ray's sockets must be short.
        self._sockets = tempfile.TemporaryDirectory(prefix="ray-")

    def start(self, *numbers: int) -> None:
        """Start Ray nodes and ``poste serve`` on each.

        Raises:
            NotReady: one did not start.
        """
        sockets = Path(self._sockets.name)
        for number in numbers:
            # One after the other: two that start at once may choose the same names of sockets.
            ray = ray_start(_ip(number), self._address, self._environment, self._folder, sockets)
            self.nodes[number] = Node(f"node-{number}", _ip(number), ray)
        with ThreadPoolExecutor() as starting:
            list(starting.map(self.serve, [self.nodes[number] for number in numbers]))

    def serve(self, node: Node) -> None:
        """Start ``poste serve`` on a node, once more where it was there before.

        Raises:
            NotReady: it did not start.
        """
        # Not on the command line, which everybody on the machine can read.
        environment = {**self._environment, "POSTE_LOG": self.database.dsn}
        node.start_serving(self._settings, environment, self._folder)

    def forget(self, number: int) -> None:
        """A node is gone for good."""
        self._end(self.nodes.pop(number))

    def spent_s(self) -> Mapping[str, float]:
        """CPU seconds so far of each layer; see ``layers``."""
        nodes = self.nodes.values()
        return spent_s(
            [node.ray.session for node in nodes],
            [node.serve.session for node in nodes if node.serve],
            self.database.processes,
        )

    def until_spread(self, *numbers: int) -> None:
        """Return when these nodes, and no others, have all shards in equal parts.

        Raises:
            RuntimeError: they have not after 90 s.
        """
        names = sorted(self.nodes[number].name for number in numbers)
        deadline = time.monotonic() + _SPREAD_S_MAX
        while self.orders.spread(self.nodes[numbers[0]].target) != _evenly(names):
            if time.monotonic() > deadline:
                raise RuntimeError(f"the shards are not on {', '.join(names)} after 90 s")
            time.sleep(_POLL_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # The head last: the others would look for it.
        for number in sorted(self.nodes, reverse=True):
            self._end(self.nodes[number])
        self._sockets.cleanup()

    def _end(self, node: Node) -> None:
        if node.serve is not None:
            node.serve.kill()
        node.ray.kill()


def _evenly(names: list[str]) -> dict[str, int]:
    share, left = divmod(SHARDS, len(names))
    return {name: share + (number < left) for number, name in enumerate(names)}


def _ip(number: int) -> str:
    """An address of loopback that is a node's own; Ray takes 127.0.0.1 for the machine's name."""
    return f"127.0.9.{number}"
