"""What is measured: one mediator on this machine, and no other."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, replace
from typing import Self
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class Target:
    """A mediator on loopback, and how a load is posted to it: by path and media type."""

    host: str
    port: int
    path: str = "/"
    media_type: str = "application/json"

    @classmethod
    def at(cls, url: str) -> Self:
        """The target at ``http://<loopback address>:<port>``.

        Raises:
            ValueError: it is another kind of URL, or another machine's.
        """
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname or parts.port is None or parts.path > "/":
            raise ValueError(f"{url!r} is not http://<address>:<port>")
        if not _is_loopback(parts.hostname):
            raise ValueError(f"{parts.hostname} is not this machine; only loopback is measured")
        return cls(parts.hostname, parts.port)

    def posting(self, path: str, media_type: str) -> Self:
        """The same mediator, with another way to post to it."""
        return replace(self, path=path, media_type=media_type)

    @property
    def authority(self) -> str:
        """Host and port as a URL writes them."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """The address as a URL, without the path."""
        return f"http://{self.authority}"


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
