"""How a node joins its cluster: it stands by as the placer of each database that may be served."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from eventstore.stores.open_log import open_host_leases
from http_edge.server.cluster_node import ClusterNode
from http_edge.server.log_check import check_log
from http_edge.settings.settings import Settings
from tests.cluster.accounts import until


@pytest.mark.postgres
async def test_a_node_is_no_placer_of_a_database_that_has_not_passed_the_checks(
    tmp_path: Path, two_postgres_urls: str
) -> None:
    made = Settings(did="did:web:mediator.example", data_dir=tmp_path, log=two_postgres_urls)
    settings = made.on_node("a", "127.0.0.1")
    check_log(settings)
    node, leases = ClusterNode(settings), [open_host_leases(dsn) for dsn in settings.log_dsns]

    def placers(database: int) -> list[str]:
        return [lease.name for lease in leases[database].living()]

    async def has_placer_0() -> bool:
        return placers(0) == ["placer-0"]

    async def has_placer_1() -> bool:
        return placers(1) == ["placer-1"]

    with closing(leases[0]), closing(leases[1]):
        await node.join(away={1})
        await until(has_placer_0)
        assert [role._name for role in node._roles] == ["placer-0"]
        assert placers(1) == []
        node.stand_by(1)
        await until(has_placer_1)
        await node.stop()
        assert placers(0) == placers(1) == []
