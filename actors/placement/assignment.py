"""Assigns shards to hosts: evenly, with as few moves as possible.

The functions are pure: the same arguments give the same result. The caller
finds out which host owns which shard now, which hosts live and which are draining.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec

from actors.core.placement_table import HostHoldings


class Move(msgspec.Struct, frozen=True):
    """A move of a shard; ``frm`` is None if no living host owns it."""

    shard: str
    frm: str | None
    to: str


def assign(
    shards: Sequence[str], owners: Mapping[str, str], hosts: Sequence[HostHoldings]
) -> list[Move]:
    """The moves after which the shards are spread evenly, in the order of ``shards``.

    Hosts then differ by one shard at most, and so do nodes with equally many hosts. Draining hosts
    lose their shards; if all hosts are draining, they keep them and share the unowned ones.

    Args:
        shards: all shards.
        owners: the owner of each shard that was seen to have one.
        hosts: the living hosts; an owner that is not among them is gone.
    """
    if not hosts:
        return []
    names = {host.name for host in hosts}
    held: dict[str, list[str]] = {host.name: [] for host in hosts}
    for shard in shards:
        if owners.get(shard) in names:
            held[owners[shard]].append(shard)
    takers = sorted((h for h in hosts if not h.draining), key=lambda host: host.name)
    quotas = _quotas(len(shards), takers, held) if takers else _shared(len(shards), held)
    staying = {shard for name, mine in held.items() for shard in mine[: quotas.get(name, 0)]}
    room = {name: max(0, quota - len(held[name])) for name, quota in sorted(quotas.items())}
    moves: list[Move] = []
    for shard in shards:
        if shard not in staying:
            to = max(room, key=lambda name: room[name])
            room[to] -= 1
            owner = owners.get(shard)
            moves.append(Move(shard, owner if owner in names else None, to))
    return moves


def _quotas(
    shards: int, takers: Sequence[HostHoldings], held: Mapping[str, Sequence[str]]
) -> dict[str, int]:
    """The number of shards for each host.

    If the shards do not divide evenly, the extra ones go to the nodes with the fewest shards, and
    there to hosts that already own that many.
    """
    each, more = divmod(shards, len(takers))
    by_node: dict[str, list[str]] = defaultdict(list)
    for host in takers:
        by_node[host.node].append(host.name)
    for mine in by_node.values():
        mine.sort(key=lambda name: (-len(held[name]), name))
    taken = dict.fromkeys(sorted(by_node), 0)
    quotas = {host.name: each for host in takers}

    def order(node: str) -> tuple[int, int]:
        next_host = by_node[node][taken[node]]
        return each * len(by_node[node]) + taken[node], -min(len(held[next_host]), each + 1)

    for _ in range(more):
        node = min((n for n in taken if taken[n] < len(by_node[n])), key=order)
        quotas[by_node[node][taken[node]]] += 1
        taken[node] += 1
    return quotas


def _shared(shards: int, held: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Quotas by which each host keeps its shards and those with the fewest get the unowned ones."""
    quotas = {name: len(mine) for name, mine in sorted(held.items())}
    for _ in range(shards - sum(quotas.values())):
        quotas[min(quotas, key=lambda name: quotas[name])] += 1
    return quotas
