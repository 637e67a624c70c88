"""How quickly endpoints answered the last time, for a bounded number of endpoints.

A stranger has any number of agents whose endpoint answers, but these are in few networks: if too
many endpoints are remembered, one of the network with most of them is forgotten.
"""

from __future__ import annotations

from enum import Enum, auto


class Responsiveness(Enum):
    """How quickly an endpoint has answered so far."""

    NEW = auto()
    QUICK = auto()
    SLOW = auto()


class RememberedEndpoints:
    """The responsiveness of at most ``endpoints_max`` endpoints, each by a name."""

    def __init__(self, endpoints_max: int) -> None:
        self._endpoints_max = endpoints_max
        self._network_of: dict[str, str] = {}
        self._in: dict[str, dict[str, Responsiveness]] = {}
        """By network and name; of a network, the one that was set least recently first."""
        self._by_size: dict[int, dict[str, None]] = {}
        """The networks by the number of their endpoints, so that none has to be counted."""
        self._largest = 0

    def get(self, name: str) -> Responsiveness:
        """Return the responsiveness of an endpoint; new if it is not remembered."""
        network = self._network_of.get(name)
        return Responsiveness.NEW if network is None else self._in[network][name]

    def set(self, name: str, network: str, responsiveness: Responsiveness) -> None:
        """Remember an endpoint in a network; forget one of the largest network if too many.

        It is the one that was set least recently; of networks of one size, the one that changed
        least recently forgets.
        """
        self._forget(name)
        self._network_of[name] = network
        names = self._in.setdefault(network, {})
        names[name] = responsiveness
        self._resize(network, len(names) - 1, len(names))
        if len(self._network_of) > self._endpoints_max:
            largest = next(iter(self._by_size[self._largest]))
            self._forget(next(iter(self._in[largest])))

    def _forget(self, name: str) -> None:
        network = self._network_of.pop(name, None)
        if network is None:
            return
        names = self._in[network]
        del names[name]
        self._resize(network, len(names) + 1, len(names))
        if not names:
            del self._in[network]

    def _resize(self, network: str, before: int, after: int) -> None:
        if before:
            del self._by_size[before][network]
            if not self._by_size[before]:
                del self._by_size[before]
        if after:
            self._by_size.setdefault(after, {})[network] = None
        self._largest = max(self._largest, after)
        if self._largest not in self._by_size:
            self._largest -= 1  # sizes change by one
