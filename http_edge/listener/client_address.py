"""The client address that a rate limit counts: one IPv4 address, or one /64 of IPv6."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from functools import lru_cache
from typing import TypeAlias

from aiohttp import hdrs, web
from pydantic import IPvAnyNetwork

_CACHE_ENTRIES = 10_000
_IPV6_HOST_BITS = 64
_Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address


class ClientAddress:
    """Finds the address of a client behind our own proxies."""

    def __init__(self, trusted_proxies: Sequence[IPvAnyNetwork]) -> None:
        self._proxies = trusted_proxies
        self._key = lru_cache(_CACHE_ENTRIES)(_key)
        self._is_trusted = lru_cache(_CACHE_ENTRIES)(self._trusted)

    def of(self, request: web.Request) -> str:
        """The client's address as a rate limit key; empty if the connection has no address."""
        remote = request.remote or ""
        address = _parsed(remote)
        if address is None or not self._is_trusted(address):
            return self._key(remote)
        # From right to left: each trusted proxy has appended the address of the hop before it. So
        # the first address that is not a trusted proxy's is the client's.
        forwarded = ",".join(request.headers.getall(hdrs.X_FORWARDED_FOR, []))
        for hop in reversed([part.strip() for part in forwarded.split(",") if part.strip()]):
            found = _parsed(hop)
            if found is None:
                break  # not an address: no trusted proxy vouches for the entries before it
            address = found
            if not self._is_trusted(address):
                break
        return _key_of(address)

    def of_connection(self, host: str) -> str | None:
        """The rate limit key of a connection's remote host; None for a proxy with many clients."""
        address = _parsed(host)
        is_proxy = address is not None and self._is_trusted(address)
        return None if is_proxy else self._key(host)

    def _trusted(self, address: _Address) -> bool:
        return any(address in network for network in self._proxies)


@lru_cache(_CACHE_ENTRIES)
def _parsed(text: str) -> _Address | None:
    """Parse an address with or without a port (RFC 7239 section 6); None if the text is none.

    A rate limit key has no port, which changes with each connection, and no zone (RFC 4007), which
    only says how to reach the address. An IPv4 address mapped into IPv6 by a dual-stack socket
    counts as the IPv4 address.
    """
    plain = text.removeprefix("[").partition("]")[0]
    if plain.count(":") == 1:
        plain = plain.partition(":")[0]
    try:
        address = ipaddress.ip_address(plain.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _key(text: str) -> str:
    address = _parsed(text)
    return text if address is None else _key_of(address)


def _key_of(address: _Address) -> str:
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    network = int(address) >> _IPV6_HOST_BITS << _IPV6_HOST_BITS
    return f"{ipaddress.IPv6Address(network)}/{128 - _IPV6_HOST_BITS}"
