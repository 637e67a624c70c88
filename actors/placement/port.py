"""The port to the placer, as an edge and an operator see it: where every shard is, and orders."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol, TypeAlias

import msgspec

from actors.host.port import HostQuestion


class PlacerUnavailable(Exception):
    """The placer did not answer; what was asked of it may or may not have been done."""


class Placed(StrEnum):
    """How an operator's order ended."""

    DONE = "DONE"
    NO_SUCH_SHARD = "NO_SUCH_SHARD"
    NO_SUCH_HOST = "NO_SUCH_HOST"
    NO_SUCH_NODE = "NO_SUCH_NODE"
    OTHER_DATABASE = "OTHER_DATABASE"
    MOVING_NOW = "MOVING_NOW"
    DID_NOT_ANSWER = "DID_NOT_ANSWER"
    NO_CLUSTER = "NO_CLUSTER"
    NO_SUCH_IDENTITY = "NO_SUCH_IDENTITY"
    ALREADY_SO = "ALREADY_SO"
    TOO_MANY = "TOO_MANY"


class ShardPlace(msgspec.Struct, frozen=True):
    """Where a shard is: its host and node, None without one; ``to`` is where it is moving."""

    shard: str
    host: str | None
    node: str | None
    to: str | None = None


class HostPlace(msgspec.Struct, frozen=True):
    """A host that lives, its node, and how many shards it owns."""

    host: str
    node: str
    shards: int
    draining: bool


class IdentityPlace(msgspec.Struct, frozen=True):
    """Where a dedicated identity is, None without a host; ``by`` says who ordered it."""

    did: str
    by: str
    host: str | None
    node: str | None


class Places(msgspec.Struct, frozen=True):
    """Where everything is."""

    shards: list[ShardPlace]
    hosts: list[HostPlace]
    identities: list[IdentityPlace] = []


class MoveShard(HostQuestion[Placed], frozen=True):
    """Move a shard to a host, or to the host of a node that has the fewest; wait for it."""

    shard: str
    to: str


class DrainNode(HostQuestion[Placed], frozen=True):
    """Have the hosts of a node emptied, or filled again; the moves follow."""

    node: str
    draining: bool


class Dedicate(HostQuestion[Placed], frozen=True):
    """Give an identity a host of its own; wait for it."""

    did: str


class Release(HostQuestion[Placed], frozen=True):
    """Give an identity back to its shard; wait for it."""

    did: str


Order: TypeAlias = MoveShard | DrainNode | Dedicate | Release
"""What an operator may order."""


class PlacerPort(Protocol):
    """A way to the placer: ``placer_role.PlacerLink``, or what stands for one alone."""

    async def places(self) -> Places:
        """Where every shard is, and every host that lives. Raises: PlacerUnavailable."""

    async def order(self, order: Order) -> Placed:
        """How an order ended. Raises: PlacerUnavailable."""
