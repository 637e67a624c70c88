"""Which endpoints are remembered: no network makes another one's forgotten."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from http_edge.didcomm.outbound.responsiveness import RememberedEndpoints, Responsiveness


def remembered(endpoints: RememberedEndpoints, *names: str) -> list[bool]:
    return [endpoints.get(name) is not Responsiveness.NEW for name in names]


def test_of_the_largest_network_the_endpoint_that_was_set_least_recently_is_forgotten() -> None:
    endpoints = RememberedEndpoints(4)
    for name in ("a1", "b1", "b2", "b3", "b1"):
        endpoints.set(name, name[0], Responsiveness.QUICK)
    endpoints.set("c1", "c", Responsiveness.SLOW)
    assert remembered(endpoints, "a1", "b1", "b2", "b3", "c1") == [True, True, False, True, True]
    assert endpoints.get("c1") is Responsiveness.SLOW


def test_of_networks_of_one_size_the_one_that_was_used_least_recently_forgets() -> None:
    endpoints = RememberedEndpoints(2)
    for name in ("a", "b", "a", "c"):
        endpoints.set(name, name, Responsiveness.QUICK)
    assert remembered(endpoints, "a", "b", "c") == [True, False, True]


def test_an_endpoint_that_moves_to_another_network_counts_there_alone() -> None:
    endpoints = RememberedEndpoints(2)
    for name, network in (("a", "first"), ("a", "second"), ("b", "second"), ("c", "first")):
        endpoints.set(name, network, Responsiveness.QUICK)
    assert remembered(endpoints, "a", "b", "c") == [False, True, True]


@pytest.mark.parametrize("seed", range(5))
def test_whatever_is_set_only_a_largest_network_forgets_and_of_an_empty_one_nothing_is_left(
    seed: int,
) -> None:
    random, endpoints = Random(seed), RememberedEndpoints(30)  # noqa: S311
    kept: dict[str, str] = {}
    for _ in range(2_000):
        name, network = str(random.randrange(60)), str(int(random.expovariate(0.3)))
        endpoints.set(name, network, Responsiveness.QUICK)
        kept.pop(name, None)
        kept[name] = network
        gone = [each for each in kept if not all(remembered(endpoints, each))]
        assert len(gone) == (len(kept) > 30)
        for each in gone:
            sizes = Counter(kept.values())
            assert sizes[kept[each]] == max(sizes.values())
            assert each == next(name for name, where in kept.items() if where == kept[each])
            del kept[each]
        networks = set(kept.values())
        assert endpoints._in.keys() == networks
        assert sorted(each for names in endpoints._by_size.values() for each in names) == sorted(
            networks
        )
