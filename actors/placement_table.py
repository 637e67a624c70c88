"""The placement table: which host owns which shard now, as it is told to edges.

Nobody stores it: it is put together from what the hosts say that they own.
"""

from __future__ import annotations

import msgspec


class Owner(msgspec.Struct, frozen=True, array_like=True):
    """The host of a shard.

    ``sessions`` is an id that the host makes and that changes exactly when the sessions and leases
    of the shard were lost. It stays the same when they are handed over to the next owner.
    """

    host: str
    sessions: str


class Table(msgspec.Struct, frozen=True, array_like=True):
    """Who owns what at one moment.

    ``owners`` names only shards that have an owner. ``hosts`` are the hosts of shards that live,
    with their nodes, whether or not they own anything yet: an edge reaches out to them before
    they do. ``version`` differs between two tables that differ.
    """

    version: int
    owners: dict[str, Owner]
    hosts: dict[str, str]


class HostHolds(msgspec.Struct, frozen=True, array_like=True):
    """What a host says of itself.

    ``shards`` are those that it owns, with the id of their sessions (see ``Owner``). One that it
    could not claim yet is among them, one that it lost to another owner is not. ``node`` is as in
    ``HostOptions``; ``incarnation`` changes when the host starts anew.
    """

    name: str
    node: str
    incarnation: str
    draining: bool
    shards: dict[str, str]
