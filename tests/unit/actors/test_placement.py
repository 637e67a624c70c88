"""Placement: pure arithmetic that every process agrees about."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from actors.core.partitioning import (
    HOST_PREFIX,
    Placement,
    dedicated_host_name,
    host_name,
    identity_of_host,
    is_shard,
    shard_name,
    shard_of,
)
from tests.kept_memory import bytes_kept, made_up

DIDS = st.text(min_size=1, max_size=40)


def test_the_shard_of_a_did_never_changes() -> None:
    """Written down: a log that exists was laid out by this rule."""
    assert [shard_of(did, 16) for did in ("did:x:a", "did:x:b", "did:decentrl:é")] == [
        "shard-2",
        "shard-12",
        "shard-8",
    ]


@made_up
def test_the_shard_of_a_long_did_is_not_remembered(made_up: str) -> None:
    assert shard_of(made_up, 16) == shard_of(made_up, 16)
    assert bytes_kept(lambda did: shard_of(did, 16), made_up) < 32


def test_dids_spread_over_all_shards() -> None:
    counts = Counter(shard_of(f"did:x:{number}", 16) for number in range(4_000))
    assert len(counts) == 16
    assert min(counts.values()) > 150


def test_one_character_makes_another_identity() -> None:
    """DIDs are compared as exact strings, never normalised."""
    placement = Placement(shards=1_024, hosts=1)
    spellings = ["did:x:YQ", "did:x:YQ==", "did:x:yq", "did:x:YQ "]
    assert len({placement.partition_of(did) for did in spellings}) == len(spellings)


@given(DIDS, st.integers(1, 64), st.integers(1, 8))
def test_every_partition_has_exactly_one_owner(did: str, shards: int, hosts: int) -> None:
    placement = Placement(shards=shards, hosts=hosts)
    partition = placement.partition_of(did)
    owners = [index for index in range(hosts) if partition in placement.partitions_of(index)]
    assert [host_name(index) for index in owners] == [placement.host_of(partition)]


@given(st.integers(1, 64), st.integers(1, 8))
def test_the_hosts_together_own_every_shard_once(shards: int, hosts: int) -> None:
    placement = Placement(shards=shards, hosts=hosts)
    owned = [name for index in range(hosts) for name in placement.partitions_of(index)]
    assert sorted(owned) == sorted(shard_name(index) for index in range(shards))


@given(DIDS)
def test_the_host_of_a_dedicated_identity_is_named_by_its_did_and_its_node(did: str) -> None:
    assert identity_of_host(dedicated_host_name(did, "a-node")) == (did, "a-node")
    assert not dedicated_host_name(did, "").startswith(HOST_PREFIX)


@given(DIDS)
def test_no_did_makes_the_name_of_a_shard(did: str) -> None:
    """An identity cannot choose a DID that is taken for a partition of others."""
    assert not is_shard("did:" + did)
