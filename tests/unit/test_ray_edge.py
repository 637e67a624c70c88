"""What an edge's process does apart from what clients ask of it."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import msgspec
import pytest

from actors.core.partitioning import dedicated_host_name
from actors.core.placement_table import PartitionOwner, PlacementTable
from actors.host import vital_thread
from http_edge.crypto.mediator_keys import MediatorKeys, create
from http_edge.crypto.private_files import KeyFileRefused
from http_edge.server import ray_edge
from http_edge.server.ray_edge import RayEdge, _on_loop_fault
from http_edge.settings.settings import Settings


async def test_an_edge_ends_when_its_connections_run_out_of_memory_and_for_no_other_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_on_loop_fault)
    for error in (ConnectionResetError(), None):
        loop.call_exception_handler({"message": "a fault", "exception": error})
    assert not codes
    loop.call_exception_handler({"message": "a fault", "exception": MemoryError()})
    assert codes == [70]


def test_an_edge_that_cannot_be_made_again_ends_its_process_and_so_is_started_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ended(BaseException):
        pass

    def end(code: int) -> None:
        raise Ended(code)

    def prepare(_name: str) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(os, "_exit", end)
    monkeypatch.setattr(vital_thread, "_RESTART_S", 0)
    for is_restart, error in ((True, Ended), (False, OSError)):
        monkeypatch.setattr(ray_edge, "is_restart", lambda is_so=is_restart: is_so)
        with pytest.raises(error):
            RayEdge("edge-0", Settings(data_dir=tmp_path), prepare, (b"", b""))


@pytest.mark.parametrize(
    "changed",
    [MediatorKeys(bytes(range(32)), bytes(32)), MediatorKeys(bytes(32), bytes(range(32)))],
    ids=["signing key", "pre-key"],
)
async def test_an_edge_that_starts_again_does_not_listen_with_keys_that_have_changed_meanwhile(
    tmp_path: Path, changed: MediatorKeys
) -> None:
    settings = Settings(data_dir=tmp_path, listen="127.0.0.1:0")
    create(settings.keys_path, changed)
    at_the_start = MediatorKeys(bytes(32), bytes(32)).public_halves
    edge = RayEdge("edge-0", settings, lambda _name: None, at_the_start)
    with pytest.raises(KeyFileRefused, match="have changed since the start"):
        await edge._started()


async def test_the_placer_of_a_database_says_nothing_about_identities_of_others_nor_before_it_knows(
    tmp_path: Path,
) -> None:
    log = "postgresql://poste@db.invalid/first postgresql://poste@db.invalid/second"
    settings = Settings(data_dir=tmp_path, log=log).on_node("a", "127.0.0.1")
    edge = RayEdge("edge-0", settings, lambda _name: None, (bytes(32), bytes(32)))
    routes, dids, tables = edge._routes, list[str](), list[PlacementTable]()
    database_of = routes.placement.database_of
    for database in range(2):
        did = next(d for n in range(99) if database_of(d := f"did:x:{n}") == database)
        shard = PartitionOwner(f"host-a-{database}-0", "of the shard")
        own = PartitionOwner(dedicated_host_name(did, "a"), "of its own")
        dids.append(did)
        tables.append(
            PlacementTable(
                1,
                {routes.placement.partition_of(did): shard},
                {shard.host: "a"},
                {did: own},
                {own.host: "a"},
            )
        )
        assert routes.update(edge._with_others(database, tables[database])) == set()
    unread = msgspec.structs.replace(tables[1], dedicated=None)
    assert routes.update(edge._with_others(1, unread)) == set()
    assert [routes.partition_of(did) for did in dids] == dids
    assert len(routes.hosts()) == len(routes.dedicated_hosts()) == 2
    no_longer = msgspec.structs.replace(tables[1], dedicated={}, dedicated_hosts={})
    assert routes.update(edge._with_others(1, no_longer)) == {dids[1]}
    assert routes.partition_of(dids[0]) == dids[0]
