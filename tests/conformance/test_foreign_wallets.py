"""Wallets of other projects at a running mediator, from the invitation to the picked up message."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from http_edge.clients.didcomm import fetch_invitation_2
from http_edge.didcomm.envelopes.messages import NEW_PREFIX
from tests.cluster.server import Server
from tests.conformance.foreign import IDENTUS

UPDATED = NEW_PREFIX + "coordinate-mediation/2.0/keylist-update-response"
WRITTEN = NEW_PREFIX + "basicmessage/2.0/message"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if not IDENTUS.home.exists():
        pytest.skip(f"{IDENTUS.requirement} is not installed: make conformance")
    data_dir: Path = tmp_path_factory.mktemp("conformance")
    with Server(data_dir) as running:
        yield running


async def test_the_identus_sdk_is_mediated_and_picks_up(server: Server) -> None:
    async with aiohttp.ClientSession() as session:
        mediator = (await fetch_invitation_2(session, f"{server.url}/invitation")).did
    found = IDENTUS.ask(mediator=mediator, content="hello")
    assert found["granted"] == mediator
    updates = [each["body"]["updated"] for each in found["received"] if each["type"] == UPDATED]
    assert [update["result"] for (update,) in updates] == ["success", "success"]
    written = [each["body"] for each in found["received"] if each["type"] == WRITTEN]
    assert written == [{"content": "hello"}]
