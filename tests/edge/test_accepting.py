"""How many connections an edge accepts in one turn of its event loop."""

from __future__ import annotations

import asyncio
import socket
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import uvloop

from tests.edge.bare_edge import edge_with

WAITING = 24


def test_connections_that_wait_are_accepted_several_in_a_turn_of_the_loop(tmp_path: Path) -> None:
    uvloop.run(_accept(tmp_path))


async def _accept(data_dir: Path) -> None:
    async with edge_with(data_dir) as edge:
        with ExitStack() as clients:
            for _ in range(WAITING):
                clients.enter_context(socket.create_connection(("127.0.0.1", edge.port)))
            counts = [len(edge.listener.connections)]
            while counts[-1] < WAITING:
                await asyncio.sleep(0)
                counts.append(len(edge.listener.connections))
            assert max(after - before for before, after in pairwise(counts)) >= 4
