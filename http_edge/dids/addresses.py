"""Which network addresses a fetch on behalf of a stranger may reach: public unicast ones.

The table of ``ipaddress`` answers "is it globally reachable", which is not the question: a tunnel
or translation prefix is reachable and leads inside. So the blocks that carry another address are
refused whole, IPv4 in IPv6 included, and of IPv6 only the allocated unicast space passes.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final

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
