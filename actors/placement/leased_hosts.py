"""The hosts that a placer places: found by their rows, reached by their connections."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Collection
from typing import Final

from actors.core.partitioning import dedicated_host_name
from actors.host.connected_host import Caller, ConnectedHostPort
from actors.host.host_finder import HostFinder
from actors.host.port import EndHost, HostUnavailable, OwnerPort, StartDedicated

_LOOK_S: Final = 0.2
_START_S_MAX: Final = 20.0
"""For a process to start, on a machine that has much to do."""


class LeasedHosts:
    """Hosts whose names have the same beginning."""

    def __init__(self, prefix: str, finder: HostFinder, caller: Caller) -> None:
        """Those whose names begin with ``prefix``, in the log of ``finder``."""
        self._prefix = prefix
        self._finder = finder
        self._caller = caller
        self._orders = itertools.count()

    async def names(self) -> Collection[str]:
        """The hosts that live. Raises: HostUnavailable."""
        return {name for name in await self._finder.living() if name.startswith(self._prefix)}

    def port(self, name: str) -> OwnerPort:
        """The way to the host of this name."""
        return ConnectedHostPort(self._caller, name, self._finder)

    async def start(self, did: str, beside: str) -> None:
        """See ``DedicatedHosts.start``; returns when it lives."""
        lease = await self._finder.find(beside)
        if lease is None:
            raise HostUnavailable(beside)
        try:
            async with asyncio.timeout(_START_S_MAX):
                await self._order(beside, StartDedicated(did))
                name = dedicated_host_name(did, lease.node)
                while await self._finder.find(name) is None:  # noqa: ASYNC110 - another process's
                    await asyncio.sleep(_LOOK_S)
        except TimeoutError as error:
            raise HostUnavailable(beside) from error

    async def end(self, name: str) -> None:
        """See ``DedicatedHosts.end``."""
        with contextlib.suppress(HostUnavailable):
            await self._order(name, EndHost())

    async def _order(self, name: str, order: StartDedicated | EndHost) -> None:
        """Give an order over a connection of its own. Raises: HostUnavailable.

        A host has one connection of each name: a second one of the placer's would end the first,
        and what it had been asked with it.
        """
        caller = self._caller._replace(name=f"{self._caller.name} order {next(self._orders)}")
        port = ConnectedHostPort(caller, name, self._finder)
        try:
            await port.ask(order)
        finally:
            port.close()
