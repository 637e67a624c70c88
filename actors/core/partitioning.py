"""Partitions: which sets of identities share an owner, and which host that is.

Rules of this file: pure arithmetic on names. A shard follows from the DID and the number of shards,
which is fixed when the log is created; a dedicated identity is a partition of its own, named by its
DID. A sender's nonces always belong to the shard of its DID, registered or not, so that moving an
identity never moves its nonces.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import msgspec

DEDICATED_HOST_PREFIX = "identity@"
"""Prefix of the name of every dedicated host."""
_SHARD = "shard-"
HOST_PREFIX = "host-"
"""Prefix of the names of hosts of shards, and of no other name."""
_SHARDS_REMEMBERED_MAX: Final = 8_192
"""DIDs whose shard is cached: every command asks for the shards of two or three."""
_REMEMBERED_CHARS_MAX: Final = 512
"""Longer texts are hashed each time, in 3 us, and so are those that are not ASCII, so no DIDs: a
stranger can make up any number of them."""


def shard_name(index: int) -> str:
    """The partition name of a shard."""
    return f"{_SHARD}{index}"


def is_shard(partition: str) -> bool:
    """Is this the name of a shard, rather than a dedicated identity?"""
    return partition.startswith(_SHARD)


def shard_of(did: str, shards: int) -> str:
    """The shard of a DID: SHA-256 of its exact string, modulo the number of shards."""
    is_remembered = len(did) <= _REMEMBERED_CHARS_MAX and did.isascii()
    return (_remembered_shard_of if is_remembered else _shard_of)(did, shards)


def _shard_of(did: str, shards: int) -> str:
    digest = hashlib.sha256(did.encode()).digest()
    return shard_name(int.from_bytes(digest[:8], "big") % shards)


_remembered_shard_of: Final = lru_cache(_SHARDS_REMEMBERED_MAX)(_shard_of)


def host_name(index: int, node: str = "", database: int | None = None) -> str:
    """The name of a host that owns shards; in a cluster it contains the node.

    If the log has several databases, the name contains the number of the host's database.
    """
    on_node = f"{node}-" if node else ""
    of_database = "" if database is None else f"{database}-"
    return f"{HOST_PREFIX}{on_node}{of_database}{index}"


def dedicated_host_name(did: str, node: str) -> str:
    """The name of an identity's dedicated host on a node: two nodes may have one for a while."""
    return f"{DEDICATED_HOST_PREFIX}{node}:{did}"


def identity_of_host(host: str) -> tuple[str, str]:
    """The DID and the node in a name that ``dedicated_host_name`` has made."""
    node, _, did = host.removeprefix(DEDICATED_HOST_PREFIX).partition(":")
    return did, node


class Placement(msgspec.Struct, frozen=True):
    """Which host owns which partition, and which database of the log holds it.

    A host works on one database; ``hosts`` is the number of hosts per database. If there is only
    one database, no name contains its number. This does not know which identities are dedicated:
    the placer's table does.
    """

    shards: int
    hosts: int
    databases: int = 1

    def partition_of(self, did: str) -> str:
        """The shard of an identity: it holds its nonces, and its state unless it is dedicated."""
        return shard_of(did, self.shards)

    def database_of(self, did: str) -> int:
        """The database that holds all data of an identity, including its nonces."""
        return self.database_of_shard(self.partition_of(did))

    def database_of_shard(self, shard: str) -> int:
        """The database that holds a shard."""
        return _number(shard) % self.databases

    def shards_elsewhere(self, did: str) -> Sequence[str]:
        """A shard in each database other than that of an identity, in their order."""
        own = self.database_of(did)
        return [shard_name(number) for number in range(self.databases) if number != own]

    def database_of_host(self, host: str) -> int:
        """The database that a host of shards works on, by its name."""
        return int(host.rsplit("-", 2)[-2]) if self.databases > 1 else 0

    def shards_of(self, database: int) -> Sequence[str]:
        """The shards that one database holds: those with this number modulo ``databases``."""
        return [shard_name(number) for number in range(database, self.shards, self.databases)]

    def host_of(self, partition: str) -> str:
        """The host that owns a shard."""
        turn, database = divmod(_number(partition), self.databases)
        return self._host_name(database, turn % self.hosts)

    @property
    def host_names(self) -> Sequence[str]:
        """The hosts of shards: those of the first database, then those of the next."""
        return self.host_names_on("")

    def host_names_on(self, node: str) -> Sequence[str]:
        """The same for a node of a cluster."""
        return [
            self._host_name(database, index, node)
            for database in range(self.databases)
            for index in range(self.hosts)
        ]

    def partitions_of(self, index: int) -> Sequence[str]:
        """The shards that the host with this index in ``host_names`` owns."""
        database, turn = divmod(index, self.hosts)
        first = turn * self.databases + database
        return [shard_name(n) for n in range(first, self.shards, self.hosts * self.databases)]

    def _host_name(self, database: int, index: int, node: str = "") -> str:
        return host_name(index, node, None if self.databases == 1 else database)


def _number(shard: str) -> int:
    return int(shard.removeprefix(_SHARD))
