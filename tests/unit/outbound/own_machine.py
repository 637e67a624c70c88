"""What is reached of a machine with public addresses of its own: a program for a network namespace.

It takes addresses of others, so it must not run on a machine that is connected to anything:
``unshare --map-root-user --net python -m tests.unit.outbound.own_machine``.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from aiohttp import web

from http_edge.didcomm.outbound.destinations import Destinations, read_endpoint
from http_edge.dids.addresses import may_reach
from http_edge.dids.fetched import FetchedDids, WebLimits
from http_edge.dids.web import METHODS
from http_edge.settings.settings import Outbound

FIRST: Final = "8.20.0.1"
SECOND: Final = "8.20.0.2"
"""Of the same network: what this machine sends to it comes from the first one."""
NEWER: Final = "2600:1::1"
ROUTED: Final = "8.21.0.7"
NEWER_ROUTED: Final = "2600:3::7"
"""Of networks of which a route says that they are here; no link has these addresses."""
OTHERS: Final = ("8.20.0.3", "9.9.9.9", "8.22.0.1", "2600:1::2", "2600:2::1", "2600:4::1")
"""Addresses of other machines: neighbours, and some to which there is no way, or none by order."""
PROXY_PORT: Final = 80
SERVICE_PORT: Final = 8_080
_SET_UP: Final = f"""
ip link set lo up
ip link add here type veth peer name there
ip link set there up
ip link set here up
ip address add {FIRST}/24 dev here
ip address add {SECOND}/24 dev here
ip address add {NEWER}/64 dev here nodad
ip route add local 8.21.0.0/24 dev lo
ip route add local 2600:3::/64 dev lo
ip route add blackhole 8.22.0.0/24
ip route add prohibit 2600:4::/64
"""


async def _name(_host: str, _port: int) -> Sequence[str]:
    return [FIRST]


async def _delivered(url: str, **settings: object) -> str:
    """What became of a message to an endpoint, with all checks as they are."""
    endpoint = read_endpoint(url)
    assert endpoint is not None
    destinations = Destinations(Outbound.model_validate(settings), lookup=_name)
    async with destinations.to(endpoint) as destination:
        return "refused" if destination is None else (await destination.send(b"{}")).value


async def _fetches(port: int, limits: WebLimits | None = None) -> int:
    """How many connections are made for a document of this machine, at another port than 443."""
    connections = 0

    async def count(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        writer.close()

    async with await asyncio.start_server(count, port=port):
        fetched = FetchedDids(METHODS, limits, lookup=_name)
        assert await fetched.resolve(f"did:web:agent.example%3A{port}") is None
        await fetched.close()
    return connections


def _if_any_may_be_bound() -> Sequence[str]:
    """What may be reached of all where programs may bind addresses that are not here."""
    for version in (4, 6):
        Path(f"/proc/sys/net/ipv{version}/ip_nonlocal_bind").write_text("1")
    known = (*OTHERS, FIRST, SECOND, NEWER, ROUTED, NEWER_ROUTED)
    return [address for address in known if may_reach(address, SERVICE_PORT)]


async def _report() -> dict[str, object]:
    async def accept(_: web.Request) -> web.Response:
        return web.Response(status=202)

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", accept)
    runner = web.AppRunner(application)
    await runner.setup()
    for port in (PROXY_PORT, SERVICE_PORT):
        await web.TCPSite(runner, port=port).start()
    try:
        return {
            "by its address": await _delivered(f"http://{FIRST}:{SERVICE_PORT}/"),
            "by a second address": await _delivered(f"http://{SECOND}:{SERVICE_PORT}/"),
            "by IPv6": await _delivered(f"http://[{NEWER}]:{SERVICE_PORT}/"),
            "by a route": await _delivered(f"http://{ROUTED}:{SERVICE_PORT}/"),
            "by a route of IPv6": await _delivered(f"http://[{NEWER_ROUTED}]:{SERVICE_PORT}/"),
            "by a name": await _delivered(f"http://agent.example:{SERVICE_PORT}/"),
            "behind its proxy": await _delivered(f"http://agent.example:{PROXY_PORT}/"),
            "where it is allowed": await _delivered(
                f"http://{FIRST}:{SERVICE_PORT}/", allowed_networks=[f"{FIRST}/32"]
            ),
            "connections for a document": await _fetches(SERVICE_PORT + 1),
            "connections to an allowed host": await _fetches(
                SERVICE_PORT + 1,
                WebLimits(allowed_hosts=frozenset({f"agent.example:{SERVICE_PORT + 1}"})),
            ),
            "if any may be bound": _if_any_may_be_bound(),
        }
    finally:
        await runner.cleanup()


if __name__ == "__main__":
    for line in _SET_UP.strip().splitlines():
        subprocess.run(line.split(), check=True)
    sys.stdout.write(json.dumps(asyncio.run(_report())))
