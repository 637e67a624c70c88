"""Shards are spread evenly over nodes and hosts, with as few moves as that takes."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st

from actors.core.partitioning import shard_name
from actors.core.placement_table import HostHoldings
from actors.placement.assignment import Move, assign

Hosts = list[HostHoldings]


def seen(name: str, node: str, draining: bool = False) -> HostHoldings:
    """A host that lives."""
    return HostHoldings(name, node, "", draining, {})


@st.composite
def clusters(draw: st.DrawFn, *, even_nodes: bool = False) -> Hosts:
    """Hosts on nodes, in any order; some of them are draining."""
    per_node = st.integers(1, 3)
    each = draw(per_node)
    hosts = [
        seen(f"host-{node}-{index}", f"node-{node}", draining)
        for node in range(draw(st.integers(1, 4)))
        for draining in [draw(st.sampled_from([False, False, True]))]
        for index in range(each if even_nodes else draw(per_node))
    ]
    return draw(st.permutations(hosts))


@st.composite
def placed(draw: st.DrawFn, hosts: Hosts) -> tuple[list[str], dict[str, str]]:
    """Shards, and who owns some of them: hosts that live, and hosts that are gone."""
    shards = [shard_name(index) for index in range(draw(st.integers(0, 24)))]
    owner = st.sampled_from([*[host.name for host in hosts], "gone", None])
    owners = {shard: draw(owner) for shard in shards}
    return shards, {shard: name for shard, name in owners.items() if name is not None}


@st.composite
def questions(
    draw: st.DrawFn, *, even_nodes: bool = False
) -> tuple[list[str], dict[str, str], Hosts]:
    hosts = draw(clusters(even_nodes=even_nodes))
    return *draw(placed(hosts)), hosts


def after(owners: Mapping[str, str], moves: Sequence[Move]) -> dict[str, str]:
    return {**owners, **{move.shard: move.to for move in moves}}


def spread(counts: Sequence[int]) -> int:
    return max(counts) - min(counts)


def takers_of(hosts: Hosts) -> Hosts:
    return [host for host in hosts if not host.draining]


@given(questions())
def test_every_shard_is_owned_by_a_living_host_afterwards(
    question: tuple[list[str], dict[str, str], Hosts],
) -> None:
    shards, owners, hosts = question
    moves = assign(shards, owners, hosts)
    placed_on = after(owners, moves)
    assert set(placed_on) == set(shards)
    assert set(placed_on.values()) <= {host.name for host in takers_of(hosts) or hosts}


@given(questions())
def test_a_move_names_the_owner_that_lives_and_never_leads_to_it(
    question: tuple[list[str], dict[str, str], Hosts],
) -> None:
    shards, owners, hosts = question
    moves = assign(shards, owners, hosts)
    alive = {host.name for host in hosts}
    assert [move.shard for move in moves] == [s for s in shards if s in {m.shard for m in moves}]
    for move in moves:
        owner = owners.get(move.shard)
        assert move.frm == (owner if owner in alive else None)
        assert move.to != owner


@given(questions())
def test_hosts_differ_by_one_shard_at_most(
    question: tuple[list[str], dict[str, str], Hosts],
) -> None:
    shards, owners, hosts = question
    takers = takers_of(hosts)
    counts = Counter(after(owners, assign(shards, owners, hosts)).values())
    if takers:
        assert spread([counts[host.name] for host in takers]) <= 1


@given(questions(even_nodes=True))
def test_nodes_with_equally_many_hosts_differ_by_one_shard_at_most(
    question: tuple[list[str], dict[str, str], Hosts],
) -> None:
    shards, owners, hosts = question
    node_of = {host.name: host.node for host in hosts}
    placed_on = after(owners, assign(shards, owners, hosts))
    counts = Counter(node_of[name] for name in placed_on.values())
    nodes = {host.node for host in takers_of(hosts)}
    if nodes:
        assert spread([counts[node] for node in nodes]) <= 1


@given(questions(even_nodes=True))
def test_no_even_placement_takes_fewer_moves(
    question: tuple[list[str], dict[str, str], Hosts],
) -> None:
    """Against every way to say how many shards each host has."""
    shards, owners, hosts = question
    takers = takers_of(hosts)
    if not takers:
        return
    held = Counter(owners.get(shard) for shard in shards)
    each, more = divmod(len(shards), len(takers))
    staying = max(
        sum(min(held[host.name], each + (host in extra)) for host in takers)
        for extra in itertools.combinations(takers, more)
        if spread(list(_by_node(takers, extra, each).values())) <= 1
    )
    assert len(assign(shards, owners, hosts)) == len(shards) - staying


def _by_node(takers: Hosts, extra: Sequence[HostHoldings], each: int) -> Counter[str]:
    counts: Counter[str] = Counter()
    for host in takers:
        counts[host.node] += each + (host in extra)
    return counts


@given(questions())
def test_the_answer_does_not_depend_on_the_order_of_hosts_and_is_final(
    question: tuple[list[str], dict[str, str], Hosts],
) -> None:
    shards, owners, hosts = question
    moves = assign(shards, owners, hosts)
    assert assign(shards, owners, hosts[::-1]) == moves
    assert assign(shards, after(owners, moves), hosts) == []


def test_when_all_are_draining_they_keep_what_they_have_and_share_what_is_unowned() -> None:
    hosts = [seen("host-a", "a", draining=True), seen("host-b", "b", draining=True)]
    owners = {"shard-0": "host-a", "shard-1": "host-a", "shard-2": "gone"}
    assert assign(sorted(owners), owners, hosts) == [Move("shard-2", None, "host-b")]


def test_with_no_host_there_is_no_move() -> None:
    assert assign(["shard-0"], {}, []) == []


def test_a_node_that_comes_takes_its_share_alone() -> None:
    shards = [shard_name(index) for index in range(16)]
    owners = {shard: f"host-{'ab'[index % 2]}" for index, shard in enumerate(shards)}
    hosts = [seen(f"host-{node}", node) for node in "abc"]
    moves = assign(shards, owners, hosts)
    assert {move.to for move in moves} == {"host-c"}
    assert len(moves) == 5
