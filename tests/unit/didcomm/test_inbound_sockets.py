"""What a socket does for its agents when it ends."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final, cast

from actors.core.commands import ReleaseLeases
from http_edge.didcomm.envelopes.v1.version import agent_account
from http_edge.didcomm.inbound_sockets import InboundSocket, SocketDependencies
from http_edge.dispatch.hub import Hub
from http_edge.settings.settings import Settings
from tests.unit.didcomm.requests import agents_of, message, raw_key

SESSION: Final = "the session of a socket"
_UNUSED: Final = cast("Any", None)


async def test_a_socket_that_ends_takes_few_places_in_an_outbox_however_many_agents_it_has(
    tmp_path: Path,
) -> None:
    async with agents_of(tmp_path) as agents, asyncio.timeout(10):
        dependencies = SocketDependencies(
            settings=Settings(data_dir=tmp_path),
            envelopes=_UNUSED,
            inbound=_UNUSED,
            identities=agents,
            hub=Hub("edge-0", agents.gateway),
            waiting=_UNUSED,
            new_id=lambda: SESSION,
        )
        socket = InboundSocket(dependencies, _UNUSED, _UNUSED)
        ping = message("trust_ping/1.0/ping", **{"~transport": {"return_route": "all"}})
        admitted = [await socket.admit(agent_account(raw_key(n)), ping) for n in range(1, 100)]
        on_it = sum(peer.persistent for peer in admitted)
        assert on_it > 1
        first = agents.hosts.hold(SESSION.encode())
        ending = asyncio.create_task(socket.end())
        await first.arrived.wait()
        sent_at_once = len(agents.seen)
        first.released.set()
        await ending
        assert sent_at_once == 1
        assert agents.seen == [ReleaseLeases(SESSION)] * on_it
        assert len(dependencies.hub) == 0
