"""Check the network addresses that a fetch for a stranger may reach: only public unicast ones.

A public address may be one of this machine: what connects to it goes over loopback, past any
firewall before the machine, to whatever listens on all addresses. So of its own addresses a fetch
reaches only the ports of a reverse proxy, behind which there may be agents, too.

``ipaddress`` says whether an address is globally reachable, which is not enough: a tunnel or
translation prefix is reachable and leads to internal addresses. So this module refuses all blocks
that carry another address, IPv4 in IPv6 included, and of IPv6 permits only the allocated unicast
space.

A name is looked up once, and the connection uses the checked addresses: a second look-up could
return an internal address (DNS rebinding).
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final, TypeAlias

from aiohttp.abc import AbstractResolver, ResolveResult

Lookup: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]
"""The numeric addresses of a host name; raises ``OSError`` if it has none."""
Permitted: TypeAlias = Callable[[str, int], bool]
"""Whether a connection to a numeric address and a port is permitted."""
_PROXY_PORTS: Final = frozenset({80, 443})
_EXHAUSTED: Final = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRINUSE}
)
_ADDRESSES_MAX: Final = 16
"""Addresses of a name that are checked and used: a stranger's name may have thousands."""
_UNICAST_V6: Final = ip_network("2000::/3")
_REFUSED: Final = tuple(
    ip_network(block)
    for block in (
        "100.64.0.0/10",  # carrier-grade NAT (RFC 6598)
        "192.0.0.0/24",  # protocol assignments (RFC 6890)
        "192.88.99.0/24",  # 6to4 relays (RFC 7526)
        "2001::/23",  # protocol assignments, Teredo among them (RFC 2928, RFC 4380)
        "2002::/16",  # 6to4: carries an IPv4 address (RFC 3056)
        "3fff::/20",  # documentation (RFC 9637)
    )
)


def is_public(text: str) -> bool:
    """Whether ``text`` is the numeric address of a public unicast host."""
    try:
        address: IPv4Address | IPv6Address = ip_address(text)
    except ValueError:
        return False
    if address.version == 6 and address not in _UNICAST_V6:  # noqa: PLR2004 - IP version 6
        return False
    return (
        address.is_global
        and not address.is_multicast
        and not any(address in block for block in _REFUSED)
    )


def may_reach(address: str, port: int) -> bool:
    """Whether a fetch for a stranger may connect to this port: a public one, no service here."""
    return is_public(address) and (port in _PROXY_PORTS or not is_own(address, port))


def is_own(address: str, port: int) -> bool:
    """Whether what is sent to this numeric address stays on this machine; nothing is sent.

    True as well if the system has run out of what it takes to know.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            if family == socket.AF_INET:
                # By itself the system takes the first address of a network to reach its second. To
                # bind proves nothing where ip_nonlocal_bind is set: then connecting is refused.
                probe.bind((address, 0))
            probe.connect((address, port))
            return ip_address(probe.getsockname()[0]) == ip_address(address)
    except OSError as error:
        return error.errno in _EXHAUSTED


class CheckedNames(AbstractResolver):
    """Resolves a name once; connections use exactly the addresses that passed the check."""

    def __init__(self, lookup: Lookup, permitted: Permitted) -> None:
        """Look names up with ``lookup``; every address must be ``permitted``."""
        self._lookup = lookup
        self._permitted = permitted

    async def resolve(
        self,
        host: str,
        port: int = 0,
        family: socket.AddressFamily = socket.AF_UNSPEC,  # noqa: ARG002 - both are wanted
    ) -> list[ResolveResult]:
        """The first addresses of a name.

        Raises:
            OSError: the name has no address, or one that is not permitted.
        """
        addresses = (await self._lookup(host, port))[:_ADDRESSES_MAX]
        # One forbidden address refuses the name: an honest name has none.
        if not addresses or not all(self._permitted(address, port) for address in addresses):
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
        """Do nothing: the resolver holds no resources."""


def lookup_in_threads(name: str, threads_max: int) -> Lookup:
    """A look-up by the system's name service, in threads of its own.

    A look-up blocks its thread, for many seconds if a stranger's server never answers.
    """
    threads = ThreadPoolExecutor(threads_max, thread_name_prefix=name)

    async def lookup(host: str, port: int) -> Sequence[str]:
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(
            threads, partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        )
        return [str(sockaddr[0]) for *_, sockaddr in found]

    return lookup
