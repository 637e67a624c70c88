"""The placers of several databases answer an operator and a node as one."""

from __future__ import annotations

from typing import Final

import pytest

from actors.core.partitioning import Placement, shard_name
from actors.core.placement_table import PartitionOwner, PlacementTable, merged
from actors.host.host_finder import HostFinder
from actors.host.port import A, HostQuestion, HostUnavailable
from actors.placement.placer_link import PlacerLinks
from actors.placement.port import (
    Dedicate,
    Drained,
    DrainNode,
    HostPlace,
    IdentityPlace,
    MoveShard,
    Placed,
    Places,
    QueryPlaces,
    Release,
    ShardPlace,
)

PLACEMENT: Final = Placement(shards=4, hosts=1, databases=2)
A_DID: Final = next(d for n in range(9) if PLACEMENT.database_of(d := f"did:example:{n}") == 0)
B_DID: Final = next(d for n in range(9) if PLACEMENT.database_of(d := f"did:example:{n}") == 1)


class AnsweringPlacer:
    """In place of a connection: what the placer of one database says, or that none answers."""

    def __init__(self, database: int, did: str) -> None:
        self.host = f"host-a-{database}-0"
        self.places = Places(
            [ShardPlace(shard, self.host, "a") for shard in PLACEMENT.shards_of(database)],
            [HostPlace(self.host, "a", 2, draining=False)],
            [IdentityPlace(did, "operator", None, None)],
        )
        self.placed: Placed | None = Placed.DONE
        self.received: list[object] = []

    async def ask(self, question: HostQuestion[A]) -> A:
        if self.placed is None:
            raise HostUnavailable
        self.received.append(question)
        return self.places if isinstance(question, QueryPlaces) else self.placed  # type: ignore[return-value]

    def close(self) -> None:
        """It has no connection."""


@pytest.fixture
def placers() -> list[AnsweringPlacer]:
    return [AnsweringPlacer(0, A_DID), AnsweringPlacer(1, B_DID)]


@pytest.fixture
def links(placers: list[AnsweringPlacer]) -> PlacerLinks:
    links = PlacerLinks("edge-0", HostFinder([]), PLACEMENT)
    for link, placer in zip(links.each, placers, strict=True):
        link._port = placer  # type: ignore[assignment]
    return links


async def test_places_are_shown_of_every_database_in_the_order_of_their_names(
    links: PlacerLinks,
) -> None:
    places = await links.places()
    assert [place.shard for place in places.shards] == [shard_name(n) for n in range(4)]
    assert [place.host for place in places.hosts] == ["host-a-0-0", "host-a-1-0"]
    assert [place.did for place in places.identities] == sorted([A_DID, B_DID])
    assert (places.silent, await links.served()) == ({}, [0, 1])


async def test_a_database_without_a_placer_has_shards_without_owners(
    links: PlacerLinks, placers: list[AnsweringPlacer]
) -> None:
    placers[0].placed = None
    places = await links.places()
    assert places.silent == {0: ["shard-0", "shard-2"]}
    owners = {place.shard: place.host for place in places.shards}
    assert owners == {
        "shard-0": None,
        "shard-1": "host-a-1-0",
        "shard-2": None,
        "shard-3": "host-a-1-0",
    }
    assert await links.served() == [1]
    placers[1].placed = None
    assert await links.served() == []
    with pytest.raises(HostUnavailable):
        await links.places()


async def test_an_order_goes_to_the_placer_of_its_database(
    links: PlacerLinks, placers: list[AnsweringPlacer]
) -> None:
    for order in (MoveShard("shard-3", "b"), Dedicate(B_DID), Release(B_DID)):
        assert await links.order(order) is Placed.DONE
    assert [type(one) for one in placers[1].received] == [MoveShard, Dedicate, Release]
    assert placers[0].received == []
    for name in ("shard-4", "shard-", "", "host-a-0-0"):
        assert await links.order(MoveShard(name, "b")) is Placed.NO_SUCH_SHARD


async def test_a_host_of_another_database_is_known_from_one_that_does_not_live(
    links: PlacerLinks, placers: list[AnsweringPlacer]
) -> None:
    placers[1].placed = Placed.NO_SUCH_HOST
    for to in ("host-a-0-0", "a"):
        assert await links.order(MoveShard("shard-1", to)) is Placed.OTHER_DATABASE
    assert await links.order(MoveShard("shard-1", "host-c-0-0")) is Placed.NO_SUCH_HOST


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (Placed.DONE, Placed.DONE, Placed.DONE),
        (Placed.DONE, Placed.NO_SUCH_NODE, Placed.DONE),
        (Placed.NO_SUCH_NODE, Placed.NO_SUCH_NODE, Placed.NO_SUCH_NODE),
        (Placed.DONE, Placed.NO_OTHER_NODE, Placed.NO_OTHER_NODE),
        (Placed.DONE, Placed.DID_NOT_ANSWER, Placed.DID_NOT_ANSWER),
        (None, Placed.DONE, Placed.DONE),
        (None, Placed.NO_SUCH_NODE, Placed.NO_SUCH_NODE),
    ],
)
async def test_a_node_is_drained_when_every_placer_has_drained_it_and_the_silent_ones_are_named(
    links: PlacerLinks,
    placers: list[AnsweringPlacer],
    first: Placed | None,
    second: Placed,
    said: Placed,
) -> None:
    placers[0].placed, placers[1].placed = first, second
    drained = await links.drain(DrainNode("a", draining=True))
    assert drained == Drained(said, {} if first else {0: ["shard-0", "shard-2"]})


async def test_an_order_to_the_only_placer_says_that_it_is_not_there() -> None:
    links = PlacerLinks("edge-0", HostFinder([]), Placement(shards=1, hosts=1))
    silent = AnsweringPlacer(0, A_DID)
    silent.placed = None
    links.each[0]._port = silent  # type: ignore[assignment]
    with pytest.raises(HostUnavailable):
        await links.drain(DrainNode("a", draining=True))


def test_tables_of_databases_become_one_and_an_unread_list_takes_nothing_from_a_read_one() -> None:
    here, there = PartitionOwner("host-a-0-0", "1"), PartitionOwner("host-a-1-0", "2")
    first = PlacementTable(7, {"shard-0": here}, {here.host: "a"})
    second = PlacementTable(9, {"shard-1": there}, {there.host: "a"}, {B_DID: None}, {}, {"x": "1"})
    assert merged([first]).dedicated is None
    assert merged([first, second]) == PlacementTable(
        0,
        {"shard-0": here, "shard-1": there},
        {here.host: "a", there.host: "a"},
        {B_DID: None},
        {},
        {"x": "1"},
    )
