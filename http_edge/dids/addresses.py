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
import struct
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
_V4_BYTES: Final = 4
_NETLINK_ROUTE, _RTM_GETROUTE, _NLM_F_REQUEST, _NLMSG_ERROR, _RTA_DST = 0, 26, 1, 2, 1
_ROUTE_QUESTION: Final = struct.Struct("=IHHII BBBBBBBBI HH")
"""nlmsghdr, rtmsg and the head of its one attribute, the address."""
_RTN_UNICAST: Final = 1
_AWAY: Final = frozenset(
    {
        _RTN_UNICAST,
        *(-errno.ENETUNREACH, -errno.EHOSTUNREACH),
        *(-errno.EINVAL, -errno.EACCES),  # a route that drops or refuses all
    }
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
    return is_public(address) and (port in _PROXY_PORTS or not is_own(address))


def is_own(address: str) -> bool:
    """Whether what is sent to this numeric address may stay on this machine; nothing is sent.

    False only if the kernel says that it would leave for one other machine, or that there is no
    way: so what keeps this from being found out lets no one past.
    """
    try:
        route = _route_type(ip_address(address).packed)
    except OSError:
        return True
    has_no_ipv6 = ":" in address and route == -errno.EOPNOTSUPP
    return route not in _AWAY and not has_no_ipv6


def _route_type(address: bytes) -> int:
    """The type of the route to an address, by Linux (rtnetlink(7)), or minus an error number.

    Raises:
        OSError: the kernel was not reached, or does not answer.
    """
    # To bind or connect a socket would not show it: programs may be let bind any address, and an
    # IPv6 address that is here only by a route cannot be bound.
    family = socket.AF_INET if len(address) == _V4_BYTES else socket.AF_INET6
    question = _ROUTE_QUESTION.pack(
        _ROUTE_QUESTION.size + len(address),
        *(_RTM_GETROUTE, _NLM_F_REQUEST, 0, 0),
        *(family, 8 * len(address), 0, 0, 0, 0, 0, 0, 0),
        *(4 + len(address), _RTA_DST),
    )
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_ROUTE) as kernel:
        kernel.send(question + address)
        answer = kernel.recv(4_096, socket.MSG_DONTWAIT)  # the kernel has answered by now
    (kind,) = struct.unpack_from("=H", answer, 4)
    if kind == _NLMSG_ERROR:
        (error,) = struct.unpack_from("=i", answer, 16)
        return int(error)
    return answer[23]


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
