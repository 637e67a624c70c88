"""Endpoints as agents name them: which texts are places to deliver to (RFC 0025).

A stranger writes them. What passes here is a URL with one plain reading, so that the host that is
checked is the host that is connected to.
"""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import Final

from yarl import URL

CHARS_MAX: Final = 2_048
SOCKET_SCHEMES: Final = frozenset({"ws", "wss"})
# One scheme, one host, maybe a port; no user, and no character that some reader drops or changes.
_SHAPE: Final = re.compile(
    r"(?:https?|wss?)://(?:[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?(?:[/?#][!#-;=?-\[\]_a-z~]*)?\Z",
    re.IGNORECASE | re.ASCII,
)
# A last label of digits alone makes an address in an old spelling ("127.1") of a name.
_NAME: Final = re.compile(
    r"(?=.{1,253}\Z)(?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\.)*"
    r"(?![0-9]+\Z)[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\Z",
    re.IGNORECASE | re.ASCII,
)


def read_endpoint(text: str) -> URL | None:
    """An http, https, ws or wss URL with a host and without user information, or None."""
    if len(text) > CHARS_MAX or not _SHAPE.match(text):
        return None
    try:
        url = URL(text)
    except ValueError:
        return None
    host = host_of(url)
    if not url.port or not (is_address(host) or _NAME.match(host)):
        return None
    return url.with_fragment(None)


def host_of(url: URL) -> str:
    """The host of an endpoint, without brackets: all that may be logged of it."""
    return url.raw_host or ""


def is_address(host: str) -> bool:
    """Is this a numeric address, in its one usual spelling?"""
    try:
        ip_address(host)
    except ValueError:
        return False
    return "%" not in host  # an address with a zone means another host to everybody
