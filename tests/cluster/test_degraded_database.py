"""A database that is not dead: it answers slowly."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from eventstore.stores.open_log import open_log
from tests.cluster.accounts import (
    befriend,
    client,
    newcomer,
    waiting_payloads,
)
from tests.cluster.nodes import Nodes
from tests.log.slow_leases import ANSWER_S, answer_slowly

pytestmark = [pytest.mark.cluster, pytest.mark.postgres]
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
