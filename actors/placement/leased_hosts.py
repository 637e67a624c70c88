"""The hosts that a placer works with: found by their rows, reached by connections."""

from __future__ import annotations

from collections.abc import Collection

from actors.host.connected_host import Caller, ConnectedHostPort
from actors.host.host_finder import HostFinder
from actors.host.port import OwnerPort


class LeasedHosts:
    """The hosts whose names have the same prefix."""

    def __init__(self, prefix: str, finder: HostFinder, caller: Caller) -> None:
        """The hosts with this prefix in the log of ``finder``."""
        self._prefix = prefix
        self._finder = finder
        self._caller = caller

    async def names(self) -> Collection[str]:
        """The living hosts. Raises: HostUnavailable."""
        return {name for name in await self._finder.living() if name.startswith(self._prefix)}

    def port(self, name: str) -> OwnerPort:
        """The port of the host with this name."""
        return ConnectedHostPort(self._caller, name, self._finder)
