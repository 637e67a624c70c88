"""The placement table: which host owns which shard now, as it is sent to edges.

The placer does not store it, but assembles it from what the hosts report that they own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from actors.core.partitioning import is_shard

_OF_SHARD: Final = "/"
_OF_DEDICATED: Final = "own-"


def first_id(partition: str, epoch: int) -> str:
    """The id of the sessions that begin with a claim of this epoch.

    The ids of a dedicated identity never equal those of its shard.
    """
    return str(epoch) if is_shard(partition) else f"{_OF_DEDICATED}{epoch}"


def begun_by(sessions: str) -> int:
    """The epoch of the claim that sessions with this id began with; 0 if the id does not say it."""
    epoch = sessions.removeprefix(_OF_DEDICATED)
    return int(epoch) if epoch.isdecimal() else 0


def handed_out_id(of_shard: str, fresh: str) -> str:
    """The id of sessions that an identity takes out of its shard; ``fresh`` differs each time."""
    return f"{of_shard}{_OF_SHARD}{fresh}"


def goes_on(own: str, of_shard: str) -> bool:
    """Do a dedicated identity's sessions continue those that it had in its shard?"""
    return own.partition(_OF_SHARD)[0] == of_shard


class PartitionOwner(msgspec.Struct, frozen=True, array_like=True):
    """The host of a shard.

    ``sessions`` is an id that the host makes; it changes exactly when the sessions and leases of
    the shard are lost, and stays the same when they are handed over to the next owner.
    """

    host: str
    sessions: str


class PlacementTable(msgspec.Struct, frozen=True, array_like=True):
    """Who owns what at one time.

    ``owners`` contains only shards that have an owner. ``hosts`` are the live hosts of shards with
    their nodes, whether or not they own anything yet, so that an edge connects to them early.
    ``version`` differs between two different tables.

    ``dedicated`` are the dedicated identities, each with its owner or None; it is None itself until
    the placer has read the list. ``dedicated_hosts`` are the live dedicated hosts with their nodes.
    ``returned`` has the session ids of identities that went back to their shards, empty where the
    sessions were lost.
    """

    version: int
    owners: dict[str, PartitionOwner]
    hosts: dict[str, str]
    dedicated: dict[str, PartitionOwner | None] | None = None
    dedicated_hosts: dict[str, str] = {}
    returned: dict[str, str] = {}


def merged(tables: Iterable[PlacementTable]) -> PlacementTable:
    """The tables of several databases as one; their version is 0."""
    owners, hosts = dict[str, PartitionOwner](), dict[str, str]()
    dedicated: dict[str, PartitionOwner | None] | None = None
    dedicated_hosts, returned = dict[str, str](), dict[str, str]()
    for table in tables:
        owners |= table.owners
        hosts |= table.hosts
        dedicated_hosts |= table.dedicated_hosts
        returned |= table.returned
        if table.dedicated is not None:
            dedicated = (dedicated or {}) | table.dedicated
    return PlacementTable(0, owners, hosts, dedicated, dedicated_hosts, returned)


class HostHoldings(msgspec.Struct, frozen=True, array_like=True):
    """What a host reports about itself.

    ``shards`` are the shards that it owns, or its one identity, with the ids of their sessions (see
    ``PartitionOwner``). They include one that it could not claim yet, but none that it lost to
    another owner. ``node`` is as in ``HostOptions``; ``incarnation`` changes when the host
    restarts. ``rates`` are the commands per second of the busiest identities.
    ``short_of_disk``: the host accepts only commands that store next to nothing. ``log_fails``: its
    log has failed, and not worked since.
    """

    name: str
    node: str
    incarnation: str
    draining: bool
    shards: dict[str, str]
    rates: Mapping[str, float] = {}
    short_of_disk: bool = False
    log_fails: bool = False
