"""What is measured: one mediator on this machine, and no other."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class Target:
    """A mediator on loopback."""

    host: str
    port: int

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

    @property
    def authority(self) -> str:
        """Host and port as a URL writes them."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """The address as a URL."""
        return f"http://{self.authority}"


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
