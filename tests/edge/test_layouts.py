"""One walk through each protocol over real sockets, wherever hosts and edges stand.

What a layout could break beyond that (replay, sockets, public reads, memory) is tested in all
layouts by the files about it; every other promise in one.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import uvloop

from http_edge.clients.decentrl import MediatorClient, Sources
from http_edge.clients.demonstration.decentrl import walk as walk_decentrl
from http_edge.clients.demonstration.didcomm import demonstrate
from http_edge.clients.demonstration.proofs import Proof
from tests.edge.mediator import LAYOUTS, HandClock, Mediator
from tests.ports import free_port

pytestmark = pytest.mark.parametrize("layout", LAYOUTS)


def test_every_proof_of_both_walks_holds(tmp_path: Path, layout: str) -> None:
    # On the event loop that Ray gives its processes: its transports have types of their own.
    of_decentrl, of_didcomm = uvloop.run(_walked(tmp_path, layout))
    assert [proof for proof in of_decentrl + of_didcomm if not proof.held] == []
    assert (len(of_decentrl), len(of_didcomm)) == (13, 19)


async def _walked(folder: Path, layout: str) -> tuple[list[Proof], list[Proof]]:
    # The invitation names the mediator's URL, so the port is known before it listens.
    listen = f"127.0.0.1:{free_port()}"
    url = f"http://{listen}"
    clock = HandClock(Sources().now_ms())
    mediator = Mediator(folder, clock, listen=listen, public_url=url, **LAYOUTS[layout])
    await mediator.start()
    try:
        async with MediatorClient(url) as alices, MediatorClient(url) as bobs:
            of_decentrl = [proof async for proof in walk_decentrl(alices, bobs)]
            return of_decentrl, [proof async for proof in demonstrate(mediator.http, url, url)]
    finally:
        await mediator.stop()
