"""A database that is not dead: it answers slowly, or its disk is full."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from eventstore.stores.open_log import open_log
from tests.cluster.accounts import (
    befriend,
    client,
    healthy,
    message,
    newcomer,
    post,
    until,
    waiting_payloads,
)
from tests.cluster.nodes import Nodes
from tests.cluster.server import Server
from tests.log.raw_sql import run_sql
from tests.log.slow_leases import ANSWER_S, answer_slowly

pytestmark = [pytest.mark.cluster, pytest.mark.postgres]
FULL = "could not extend file: No space left on device"
LEASE_S = 8
"""A quarter of it is longer than the database takes to answer."""


async def test_with_long_leases_a_database_that_answers_slowly_is_served(
    tmp_path: Path, postgres_url: str
) -> None:
    assert ANSWER_S < LEASE_S / 4
    with closing(open_log(postgres_url)):
        answer_slowly(postgres_url)
    long_leases: Any = {"limits.host_lease_s": str(LEASE_S)}
    with Nodes(tmp_path, postgres_url, **long_leases) as cluster:
        async with client(cluster.serve(1).url) as mediator:
            writer, reader = await newcomer(mediator, "writer"), await newcomer(mediator, "reader")
            await befriend(writer, reader)
            assert await writer.send(reader.identity.did, "hello")
            assert await waiting_payloads(reader) == ["hello"]


async def test_a_full_disk_of_the_database_is_named_and_seen_and_costs_nothing_that_was_accepted(
    tmp_path: Path, postgres_url: str
) -> None:
    with Server(tmp_path / "data", log=postgres_url) as server:
        async with client(server.url) as mediator:
            writer, reader = await newcomer(mediator, "writer"), await newcomer(mediator, "reader")
            await befriend(writer, reader)
            assert await writer.send(reader.identity.did, "before")

            _fill_disk(postgres_url)
            for _ in range(3):
                status, answer = await post(mediator, message(writer, reader, "refused"))
                assert (status, answer["code"]) == (503, "TEMPORARILY_UNAVAILABLE")
            assert not await healthy(mediator)
            async with mediator.transport.session.get(mediator.transport.at("/readyz")) as ready:
                assert ready.status == 200, "no balancer can mend it, and queues can be read"
            assert await waiting_payloads(reader) == ["before"]

            async def is_said() -> bool:
                # The line of a host comes through a pipe, by itself.
                return FULL in (server.data_dir / "stderr").read_text()

            await until(is_said)
            run_sql(postgres_url, "DROP TRIGGER full_disk ON contents")
            assert (await post(mediator, message(writer, reader, "after")))[0] == 200
            assert await waiting_payloads(reader) == ["before", "after"]


def _fill_disk(postgres_url: str) -> None:
    """From now on refuse every content as PostgreSQL does when a file cannot grow."""
    run_sql(
        postgres_url,
        "CREATE FUNCTION be_full() RETURNS trigger LANGUAGE plpgsql AS"
        f" $$ BEGIN RAISE disk_full USING MESSAGE = '{FULL}'; END $$",
    )
    run_sql(
        postgres_url,
        "CREATE TRIGGER full_disk BEFORE INSERT ON contents"
        " FOR EACH ROW EXECUTE FUNCTION be_full()",
    )
