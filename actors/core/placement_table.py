"""The placement table: which host owns which shard now, as it is sent to edges.

It is not stored: it is put together from what the hosts say that they own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from actors.core.partitioning import is_shard

_OF_SHARD: Final = "/"


def first_id(partition: str, epoch: int) -> str:
    """The id of sessions that begin with a claim of this epoch.

    Those of an identity that is dedicated are never taken for those of its shard.
    """
    return str(epoch) if is_shard(partition) else f"own-{epoch}"


def handed_out_id(of_shard: str, fresh: str) -> str:
    """The id of sessions that an identity takes out of its shard, ``fresh`` for each time."""
    return f"{of_shard}{_OF_SHARD}{fresh}"


def goes_on(own: str, of_shard: str) -> bool:
    """Are the sessions of a dedicated identity those that it had in its shard?"""
    return own.partition(_OF_SHARD)[0] == of_shard


class PartitionOwner(msgspec.Struct, frozen=True, array_like=True):
    """The host of a shard.

    ``sessions`` is an id that the host makes and that changes exactly when the sessions and leases
    of the shard were lost. It stays the same when they are handed over to the next owner.
    """

    host: str
    sessions: str


class PlacementTable(msgspec.Struct, frozen=True, array_like=True):
    """Who owns what at one time.

    ``owners`` names only shards that have an owner. ``hosts`` are the hosts of shards that live,
    with their nodes, whether or not they own anything yet: an edge reaches out to them before
    they do. ``version`` differs between two tables that differ.

    ``dedicated`` names the identities that are partitions of their own, each with its owner or
    None without one; it is None itself until the list was read. ``dedicated_hosts`` are the hosts
    of single identities that live, with their nodes. ``returned`` has the ids of the sessions that
    identities had when they were given back to their shards, empty where they were lost.
    """

    version: int
    owners: dict[str, PartitionOwner]
    hosts: dict[str, str]
    dedicated: dict[str, PartitionOwner | None] | None = None
    dedicated_hosts: dict[str, str] = {}
    returned: dict[str, str] = {}


class HostHoldings(msgspec.Struct, frozen=True, array_like=True):
    """What a host says of itself.

    ``shards`` are those that it owns, or the one identity, with the id of their sessions (see
    ``PartitionOwner``). One that it could not claim yet is among them, one that it lost to another
    owner is not. ``node`` is as in ``HostOptions``; ``incarnation`` changes when the host starts
    anew. ``rates`` are commands per second of the identities that are asked most.
    ``short_of_disk``: it takes only what adds next to nothing.
    """

    name: str
    node: str
    incarnation: str
    draining: bool
    shards: dict[str, str]
    rates: Mapping[str, float] = {}
    short_of_disk: bool = False
