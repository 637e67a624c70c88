"""What a client writes has the bound that an operator has set, to the byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.edge.bare_edge import edge_with, status
from tests.edge.identities import Identity
from tests.edge.mediator import Mediator

REQUEST = b"POST /brief%b HTTP/1.1\r\nHost: x\r\nA: %b\r\nContent-Length: 1\r\n\r\nx"
HEADER_BYTES = 6 * 1_024


@pytest.mark.parametrize(("more_bytes", "answer"), [(0, 200), (1, 400)])
async def test_a_target_and_each_header_field_have_a_bound(
    tmp_path: Path, more_bytes: int, answer: int
) -> None:
    value = b"a" * (HEADER_BYTES + more_bytes)
    query = b"?" + value[len("/brief?") :]
    async with edge_with(tmp_path, header_bytes_max=HEADER_BYTES) as edge:
        for request in (REQUEST % (query, b""), REQUEST % (b"", value)):
            assert await status(await edge.connect(request)) == answer


@pytest.mark.parametrize("settings", [{"limits": {"id_bytes_max": 64}}])
async def test_an_id_that_a_client_chose_has_a_bound(mediator: Mediator, alice: Identity) -> None:
    await mediator.register(alice)
    for size, status_of_it in ((64, 200), (65, 400)):
        event = {
            "sender_did": alice.did,
            "recipient_did": alice.did,
            "contract_id": "x" * size,
            "timestamp": 1,
            "payload": "x",
        }
        assert (await mediator.do(alice, "SAVE_EVENTS", events=[event])).status == status_of_it


@pytest.mark.parametrize("settings", [{"limits": {"public_event_bytes_max": 1_024}}])
async def test_a_public_event_has_a_bound(mediator: Mediator, alice: Identity) -> None:
    await mediator.register(alice)
    for size, status_of_it in ((1_024, 200), (1_025, 400)):
        assert (await mediator.publish(alice, "x" * size)).status == status_of_it
