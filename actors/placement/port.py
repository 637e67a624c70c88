"""The port to the placers, as an edge and an operator see it: where every shard is, and orders."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple, Protocol, Self, TypeAlias

import msgspec

from actors.core.placement_table import PlacementTable
from actors.host.port import HostQuestion
from eventstore.log.host_leases import HostLease, node_protocol

_PLACER: Final = "placer"


class PlacerLease(NamedTuple):
    """The name of a placer, as its lease and its log lines have it, and the protocol of its lease.

    If the log has only one database, the name does not contain its number.
    """

    name: str
    protocol: int

    @classmethod
    def of(cls, database: int, databases: int) -> Self:
        """The lease of the placer of one database."""
        name = _PLACER if databases == 1 else f"{_PLACER}-{database}"
        return cls(name, node_protocol(databases))


class Placed(StrEnum):
    """How an operator's order ended."""

    DONE = "DONE"
    NO_SUCH_SHARD = "NO_SUCH_SHARD"
    NO_SUCH_HOST = "NO_SUCH_HOST"
    NO_SUCH_NODE = "NO_SUCH_NODE"
    NO_OTHER_NODE = "NO_OTHER_NODE"
    OTHER_DATABASE = "OTHER_DATABASE"
    MOVING_NOW = "MOVING_NOW"
    DID_NOT_ANSWER = "DID_NOT_ANSWER"
    NO_CLUSTER = "NO_CLUSTER"
    NO_SUCH_IDENTITY = "NO_SUCH_IDENTITY"
    ALREADY_SO = "ALREADY_SO"
    TOO_MANY = "TOO_MANY"


class ShardPlace(msgspec.Struct, frozen=True):
    """The host and node of a shard, None without one; ``to`` is the host that it moves to."""

    shard: str
    host: str | None
    node: str | None
    to: str | None = None


class HostPlace(msgspec.Struct, frozen=True):
    """A living host, its node, and the number of shards that it owns."""

    host: str
    node: str
    shards: int
    draining: bool


class IdentityPlace(msgspec.Struct, frozen=True):
    """The host and node of a dedicated identity, None without one; ``by`` is the reason."""

    did: str
    by: str
    host: str | None
    node: str | None


class Places(msgspec.Struct, frozen=True):
    """The places of all shards and dedicated identities, and the living hosts."""

    shards: list[ShardPlace]
    hosts: list[HostPlace]
    identities: list[IdentityPlace] = []


class MoveShard(HostQuestion[Placed], frozen=True):
    """Move a shard to a host, or to a node's host with the fewest shards; wait for the end."""

    shard: str
    to: str


class DrainNode(HostQuestion[Placed], frozen=True):
    """Begin or end draining the hosts of a node; the moves follow."""

    node: str
    draining: bool


class Dedicate(HostQuestion[Placed], frozen=True):
    """Give an identity a host of its own; wait until it is there."""

    did: str


class Release(HostQuestion[Placed], frozen=True):
    """Give an identity back to its shard; wait until it is there."""

    did: str


Order: TypeAlias = MoveShard | Dedicate | Release
"""The orders that an operator may give to the placer of one database."""


class FollowTable(HostQuestion[PlacementTable], frozen=True):
    """Wait for a table with another version than this one."""

    known_version: int


class QueryPlaces(HostQuestion[Places], frozen=True):
    """Query the places of all shards and dedicated identities of the placer's database."""


class QueryServed(HostQuestion[list[int]], frozen=True):
    """Query the databases each of whose shards has an owner, as all placers say."""


class Succeeded(HostQuestion[None], frozen=True):
    """Note which process is the placer now; the former one passes questions on to it.

    With ``lowest`` it is not the placer yet, but would be: of the databases whose placer that
    process is, this is the lowest number. A placer of an earlier build takes no notice.
    """

    lease: HostLease
    lowest: int | None = None


PlacerQuestion: TypeAlias = FollowTable | QueryPlaces | QueryServed | Order | DrainNode | Succeeded
"""The questions that a placer answers."""


Silent: TypeAlias = dict[int, list[str]]
"""The shards of each database whose placer did not answer, by its number."""


class PlacesOfAll(Places, frozen=True):
    """The places in all databases whose placers answered; the shards of others have no owner."""

    silent: Silent = {}


class Drained(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of an order to drain a node: the worst answer, and which placers gave none."""

    placed: Placed
    silent: Silent = {}


class PlacerPort(Protocol):
    """The port to the placers: ``placer_link.PlacerLinks``, or a substitute without a placer.

    A placer that did not answer may or may not have carried out the order.
    """

    async def places(self) -> PlacesOfAll:
        """The places of all shards, and the living hosts. Raises: HostUnavailable: none answers."""

    async def order(self, order: Order) -> Placed:
        """Carry out an order; return how it ended. Raises: HostUnavailable."""

    async def drain(self, order: DrainNode) -> Drained:
        """Give every placer this order. Raises: HostUnavailable: none answers."""
