"""Several databases as one log: what belongs where, and that none is mistaken for another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.core.partitioning import (
    Placement,
    shard_name,
)
from eventstore.log.databases import agree
from eventstore.log.errors import WrongDatabase
from eventstore.log.event_log import EventLog
from eventstore.stores.open_log import open_log
from tests.unit.actors.given import host

SHARDS = 8


@st.composite
def placements(draw: st.DrawFn) -> Placement:
    databases, hosts = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    shards = draw(st.integers(databases * hosts, 64))
    return Placement(shards=shards, hosts=hosts, databases=databases)


@given(placements())
def test_every_shard_has_one_host_and_it_works_on_the_database_of_the_shard(
    placement: Placement,
) -> None:
    owned = [placement.partitions_of(index) for index in range(len(placement.host_names))]
    assert sorted(s for shards in owned for s in shards) == sorted(
        shard_name(number) for number in range(placement.shards)
    )
    assert len(set(placement.host_names)) == placement.hosts * placement.databases
    for name, shards in zip(placement.host_names, owned, strict=True):
        for shard in shards:
            assert placement.host_of(shard) == name
            assert placement.database_of_shard(shard) == placement.database_of_host(name)
    sizes = [len(shards) for shards in owned]
    assert min(sizes) >= 1
    for database in range(placement.databases):
        here = sizes[database * placement.hosts :][: placement.hosts]
        assert max(here) - min(here) <= 1


@given(placements(), st.text())
def test_an_identity_is_in_the_database_of_its_nonces(placement: Placement, did: str) -> None:
    nonces = placement.partition_of(did)
    database = placement.database_of(did)
    assert placement.database_of_shard(nonces) == database
    assert placement.database_of_host(placement.host_of(nonces)) == database
    assert nonces in placement.shards_of(database)


@given(placements(), st.from_regex(r"[a-z0-9]([a-z0-9.-]{0,8}[a-z0-9])?", fullmatch=True))
def test_the_name_of_a_host_tells_its_database_on_every_node(
    placement: Placement, node: str
) -> None:
    names = placement.host_names_on(node)
    assert len(set(names)) == placement.hosts * placement.databases
    for name, alone in zip(names, placement.host_names, strict=True):
        assert node in name
        assert placement.database_of_host(name) == placement.database_of_host(alone)


def test_with_one_database_names_are_what_they_were() -> None:
    placement = Placement(shards=4, hosts=3)
    assert placement.host_names == ["host-0", "host-1", "host-2"]
    assert [placement.host_of(shard_name(n)) for n in range(4)] == [*placement.host_names, "host-0"]


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[list[EventLog]]:
    with ExitStack() as opened:
        yield [
            opened.enter_context(closing(open_log(f"sqlite:{tmp_path}/{number}.db")))
            for number in range(3)
        ]


def own(databases: int) -> list[list[str]]:
    placement = Placement(SHARDS, hosts=1, databases=databases)
    return [list(placement.shards_of(place)) for place in range(databases)]


def placed(*logs: EventLog) -> dict[int, EventLog]:
    """Databases by their places, all of which there are."""
    return dict(enumerate(logs))


def test_databases_keep_their_number_and_order(logs: list[EventLog]) -> None:
    agree(placed(*logs[:2]), own(2), new_id="log")
    agree(placed(*logs[:2]), own(2), new_id="another")
    with pytest.raises(WrongDatabase, match="database 0 is database 1, not 0"):
        agree(placed(logs[1], logs[0]), own(2), new_id="log")
    with pytest.raises(WrongDatabase, match="one of 2 databases, not of 3"):
        agree(placed(*logs), own(3), new_id="log")
    with pytest.raises(WrongDatabase, match="not the only one"):
        agree(placed(logs[0]), own(1), new_id="log")


def test_databases_of_two_logs_are_not_taken_for_one(logs: list[EventLog]) -> None:
    agree(placed(*logs[:2]), own(2), new_id="log")
    # What one alone has filled has shards of every place.
    host(logs[2])
    with pytest.raises(WrongDatabase, match="holds shard-1, which belongs to another database"):
        agree(placed(logs[2], logs[1]), own(2), new_id="other")


def test_parts_of_two_logs_of_equal_numbers_are_not_taken_for_one(tmp_path: Path) -> None:
    with ExitStack() as opened:
        four = [opened.enter_context(closing(open_log(f"sqlite:{tmp_path}/{n}"))) for n in range(4)]
        agree(placed(*four[:2]), own(2), new_id="log")
        agree(placed(*four[2:]), own(2), new_id="other")
        with pytest.raises(WrongDatabase, match="a part of another log"):
            agree(placed(four[0], four[3]), own(2), new_id="log")


def test_a_database_that_was_alone_takes_no_other_beside_it(logs: list[EventLog]) -> None:
    agree(placed(logs[0]), own(1), new_id="log")
    assert logs[0].settings() == {}
    host(logs[0])
    with pytest.raises(WrongDatabase, match="holds shard-1"):
        agree(placed(*logs[:2]), own(2), new_id="log")


def test_an_empty_database_does_not_stand_in_for_a_lost_one(logs: list[EventLog]) -> None:
    agree(placed(*logs[:2]), own(2), new_id="log")
    agree(placed(*logs[:2]), own(2), new_id="log")
    host(logs[0])
    with pytest.raises(WrongDatabase, match="database 1 is empty, but the others are not"):
        agree(placed(logs[0], logs[2]), own(2), new_id="log")
    # Made, and killed before its first host came: it is a part all the same.
    agree(placed(*logs[:2]), own(2), new_id="log")


def test_a_database_is_checked_without_the_others_once_it_has_its_place(
    logs: list[EventLog],
) -> None:
    with pytest.raises(WrongDatabase, match="database 0 is new to this log"):
        agree({0: logs[0], 2: logs[1]}, own(3), new_id="log")
    assert logs[0].settings() == logs[1].settings() == {}
    agree(placed(*logs), own(3), new_id="log")
    agree({0: logs[0], 2: logs[2]}, own(3), new_id="log")
    with pytest.raises(WrongDatabase, match="database 2 is database 1, not 2"):
        agree({0: logs[0], 2: logs[1]}, own(3), new_id="log")


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_database_that_was_restored_from_its_export_takes_its_place_again(
    logs: list[EventLog], tmp_path: Path, lost: int
) -> None:
    agree(placed(*logs), own(3), new_id="log")
    for log, shards in zip(logs, own(3), strict=True):
        host(log, shards=shards)
    with closing(open_log(f"sqlite:{tmp_path}/restored.db")) as restored:
        host(restored, shards=own(3)[lost])  # an export has rows and no constants of several
        found = placed(*logs[:lost], restored, *logs[lost + 1 :])
        for new_id in ("a start", "the next"):
            agree(found, own(3), new_id=new_id)
        assert [log.settings()["database_set"] for log in found.values()] == ["log"] * 3
