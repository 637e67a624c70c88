"""What ``poste demo didcomm`` promises, over real sockets: every proof of the walk holds."""

from __future__ import annotations

from pathlib import Path

from http_edge.clients.demonstration.didcomm import demonstrate
from tests.edge.mediator import HandClock, Mediator
from tests.ports import free_port


async def test_every_proof_of_the_walk_holds(tmp_path: Path) -> None:
    # The invitation names the mediator's URL, so the port is known before it listens.
    listen = f"127.0.0.1:{free_port()}"
    mediator = Mediator(tmp_path, HandClock(), listen=listen, public_url=f"http://{listen}")
    await mediator.start()
    try:
        proofs = [
            proof async for proof in demonstrate(mediator.http, mediator.url(), mediator.url())
        ]
    finally:
        await mediator.stop()
    assert [proof for proof in proofs if not proof.held] == []
    assert len(proofs) == 19
