"""Whose request it is, for the rate limits: one address, or one /64 of IPv6."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from functools import lru_cache

from aiohttp import hdrs, web
from pydantic import IPvAnyNetwork

_CACHE_ENTRIES = 10_000
_IPV6_PREFIX_BITS = 64


class ClientAddress:
    """Finds the address of a client behind our own proxies."""

    def __init__(self, trusted_proxies: Sequence[IPvAnyNetwork]) -> None:
        """``X-Forwarded-For`` is believed from ``trusted_proxies`` alone."""
        self._proxies = trusted_proxies
        self._key = lru_cache(_CACHE_ENTRIES)(_key)
        self._is_trusted = lru_cache(_CACHE_ENTRIES)(self._trusted)

    def of(self, request: web.Request) -> str:
        """The client's address as a key of rates; empty where the connection has none."""
        address = _plain(request.remote or "")
        if self._proxies and self._is_trusted(address):
            # From the right: the last hop that is not our own wrote the truth about the next.
            forwarded = ",".join(request.headers.getall(hdrs.X_FORWARDED_FOR, []))
            for hop in reversed([part.strip() for part in forwarded.split(",") if part.strip()]):
                address = _plain(hop)
                if not self._is_trusted(address):
                    break
        return self._key(address)

    def of_connection(self, host: str) -> str | None:
        """The same of a connection by its other end's host; None of a proxy: it is of many."""
        address = _plain(host)
        return None if self._proxies and self._is_trusted(address) else self._key(address)

    def _trusted(self, address: str) -> bool:
        try:
            parsed = ipaddress.ip_address(address)
        except ValueError:
            return False
        return any(parsed in network for network in self._proxies)


def _plain(address: str) -> str:
    """An IPv4 address that a dual-stack socket maps into IPv6, as what it is."""
    return address.removeprefix("::ffff:") if "." in address else address


def _key(address: str) -> str:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, _IPV6_PREFIX_BITS), strict=False))
