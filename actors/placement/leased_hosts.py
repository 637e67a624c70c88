"""The hosts that a placer places: found by their rows, reached by their connections."""

from __future__ import annotations

from collections.abc import Collection

from actors.host.connected_host import Caller, ConnectedHostPort
from actors.host.host_finder import HostFinder
from actors.host.port import OwnerPort


class LeasedHosts:
    """Hosts whose names have the same beginning."""

    def __init__(self, prefix: str, finder: HostFinder, caller: Caller) -> None:
        """Those whose names begin with ``prefix``, in the log of ``finder``."""
        self._prefix = prefix
        self._finder = finder
        self._caller = caller

    async def names(self) -> Collection[str]:
        """The hosts that live. Raises: HostUnavailable."""
        return {name for name in await self._finder.living() if name.startswith(self._prefix)}

    def port(self, name: str) -> OwnerPort:
        """The way to the host of this name."""
        return ConnectedHostPort(self._caller, name, self._finder)
