"""How a node joins its cluster: it stands by as the placer of each database that may be served."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path

import pytest

from actors.host.port import HostUnavailable
from eventstore.log.host_leases import LEASE_S_MAX, HostLease
from eventstore.stores.open_log import open_host_leases
from http_edge.server.cluster_node import ClusterNode
from http_edge.server.log_check import check_log
from http_edge.server.ray_edge import RayEdge
from http_edge.server.status_files import publish_away
from http_edge.settings.settings import Settings
from tests.cluster.accounts import until

KEYS = (bytes(32), bytes(32))


@pytest.fixture
def settings(tmp_path: Path, two_postgres_urls: str) -> Settings:
    """A node of a log in two databases, which have passed the checks once."""
    made = Settings(did="did:web:mediator.example", data_dir=tmp_path, log=two_postgres_urls)
    settings = made.on_node("a", "127.0.0.1")
    check_log(settings)
    return settings


@pytest.mark.postgres
async def test_a_node_is_no_placer_of_a_database_that_has_not_passed_the_checks(
    settings: Settings,
) -> None:
    away = {1}
    node = ClusterNode(settings, away, vital=asyncio.create_task)
    leases = [open_host_leases(dsn) for dsn in settings.log_dsns]

    def placers(database: int) -> list[str]:
        return [lease.name for lease in leases[database].living()]

    async def has_placer_0() -> bool:
        return placers(0) == ["placer-0"]

    async def has_placer_1() -> bool:
        return placers(1) == ["placer-1"]

    with closing(leases[0]), closing(leases[1]):
        await node.join()
        await until(has_placer_0)
        assert [role._name for role in node._roles.values()] == ["placer-0"]
        assert placers(1) == []
        away.clear()
        node.stand_by(1)
        await until(has_placer_1)
        await node.stop()
        assert placers(0) == placers(1) == []


@pytest.mark.postgres
async def test_rows_of_a_database_that_has_not_passed_the_checks_name_no_host_and_no_placer(
    settings: Settings, tmp_path: Path
) -> None:
    for number, dsn in enumerate(settings.log_dsns):
        with closing(open_host_leases(dsn)) as leases:
            for name in ("placer-0", f"host-a-{number}-0"):
                ours = HostLease(name, "a", f"of {number}", "127.0.0.1", 1, b"")
                leases.take(ours, LEASE_S_MAX)
    away = {1: "a part of another log"}
    publish_away(tmp_path, away)
    node, edge = (
        ClusterNode(settings, away, vital=asyncio.create_task),
        RayEdge("edge-0", settings, lambda _: None, KEYS),
    )
    with closing(node._finder), closing(edge._finder):
        for finder in (node._finder, edge._finder):
            found = {name: lease.incarnation for name, lease in (await finder.living()).items()}
            assert found == {"placer-0": "of 0", "host-a-0-0": "of 0"}
        away.clear()
        publish_away(tmp_path, away)
        for finder in (node._finder, edge._finder):
            assert "host-a-1-0" in await finder.living()


@pytest.mark.postgres
async def test_an_edge_that_cannot_read_which_databases_are_served_finds_no_further_hosts(
    settings: Settings, tmp_path: Path
) -> None:
    with closing(open_host_leases(settings.log_dsns[0])) as leases:
        leases.take(HostLease("host-a-0-0", "a", "ours", "127.0.0.1", 1, b""), LEASE_S_MAX)
    publish_away(tmp_path, {})
    before, after = [RayEdge(f"edge-{n}", settings, lambda _: None, KEYS) for n in range(2)]
    with closing(before._finder), closing(after._finder):
        assert "host-a-0-0" in await before._finder.living()
        (tmp_path / "databases-away.json").write_bytes(b"")
        assert "host-a-0-0" in await before._finder.living()
        with pytest.raises(HostUnavailable):
            await after._finder.living()
        publish_away(tmp_path, {})
        assert "host-a-0-0" in await after._finder.living()
