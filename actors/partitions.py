"""Partitions: which sets of identities have one owner, and who the owner is.

Rules of this file: pure arithmetic on names. A shard follows from the DID alone and from the
number of shards, which is fixed when the log is created; a dedicated identity is a partition of
its own, named by its DID. Nonces of a sender always belong to the sender's shard, registered or
not, so that moving an identity never moves its nonces.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

_DEDICATED = "identity:"
_SHARD = "shard-"
HOST_PREFIX = "host-"
"""What the name of every host of shards begins with, and of nothing else."""


def shard_name(index: int) -> str:
    """The partition name of a shard."""
    return f"{_SHARD}{index}"


def is_shard(partition: str) -> bool:
    """Is this the name of a shard, rather than a dedicated identity?"""
    return partition.startswith(_SHARD)


def shard_of(did: str, shards: int) -> str:
    """The shard of a DID: SHA-256 of its exact string, modulo the number of shards."""
    digest = hashlib.sha256(did.encode()).digest()
    return shard_name(int.from_bytes(digest[:8], "big") % shards)


def host_name(index: int, node: str = "") -> str:
    """The name of a host that owns shards; in a cluster it tells the node too."""
    return f"{HOST_PREFIX}{node}-{index}" if node else f"{HOST_PREFIX}{index}"


def dedicated_host_name(did: str) -> str:
    """The name of the host that owns one dedicated identity: its DID behind a prefix."""
    return _DEDICATED + did


def dedicated_did(host: str) -> str | None:
    """The DID whose dedicated host has this name; None for a host of shards."""
    return host.removeprefix(_DEDICATED) if host.startswith(_DEDICATED) else None


class Placement(msgspec.Struct, frozen=True):
    """Which host owns which partition.

    ``dedicate_all`` places every registered identity on a host of its own; ``dedicated`` names
    single identities for that while the rest stays in shards.
    """

    shards: int
    hosts: int
    dedicate_all: bool = False
    dedicated: frozenset[str] = frozenset()

    def partition_of(self, did: str) -> str:
        """The partition that holds the state of an identity."""
        # What is no DID has no host, and must not pass for the name of a shard.
        if did in self.dedicated or (self.dedicate_all and did.startswith("did:")):
            return did
        return shard_of(did, self.shards)

    def nonce_partition_of(self, did: str) -> str:
        """The partition that holds the nonces of a sender."""
        return shard_of(did, self.shards)

    def host_of(self, partition: str) -> str:
        """The host that owns a partition."""
        if is_shard(partition):
            return host_name(int(partition.removeprefix(_SHARD)) % self.hosts)
        return dedicated_host_name(partition)

    def partitions_of(self, index: int) -> Sequence[str]:
        """The shards that the host with this index owns."""
        return [shard_name(shard) for shard in range(index, self.shards, self.hosts)]
