"""Names to addresses for connections that a stranger asks for: looked up once, and checked.

Between a check and a second look-up a name can change to an address inside (DNS rebinding). So
the addresses that were checked are those that are connected to.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from aiohttp.abc import AbstractResolver, ResolveResult

Lookup: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]
"""The numeric addresses of a host name; raises ``OSError`` if it has none."""


class CheckedNames(AbstractResolver):
    """Names to addresses, once: the addresses that pass are those that are connected to."""

    def __init__(self, lookup: Lookup, permitted: Callable[[str], bool]) -> None:
        """Look names up with ``lookup``; every address must be ``permitted``."""
        self._lookup = lookup
        self._permitted = permitted

    async def resolve(
        self,
        host: str,
        port: int = 0,
        family: socket.AddressFamily = socket.AF_UNSPEC,  # noqa: ARG002 - both are wanted
    ) -> list[ResolveResult]:
        """The addresses of a name.

        Raises:
            OSError: the name has no address, or one that is not permitted.
        """
        addresses = await self._lookup(host, port)
        # One bad address condemns the name: an honest name has none.
        if not addresses or not all(self._permitted(address) for address in addresses):
            raise OSError(f"{host} is not on the public network")
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=socket.IPPROTO_TCP,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for address in addresses
        ]

    async def close(self) -> None:
        """Nothing is held."""


async def system_lookup(host: str, port: int) -> Sequence[str]:
    """What the system's name service says of a host name.

    Raises:
        OSError: there is no such name.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(sockaddr[0]) for *_, sockaddr in found]
