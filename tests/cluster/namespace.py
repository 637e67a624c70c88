"""A network namespace in which a node runs, joined to the rest by four links that can be cut.

One is for clients, one for the database, and of the cluster's there is one for each direction in
which connections are made. So a node can lose its cluster and still write and be asked, or lose its
database alone, or not reach a host that all others reach: whatever is believed then, the log has to
decide.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import Final, Self

from tests.ports import claimed

_PREFIX_BITS: Final = 24
_NUMBERS: Final = range(256)


class Link:
    """One network between the machine and a namespace; the machine has two addresses in it."""

    def __init__(self, namespace: str, device: str, network: str) -> None:
        """A link by a device of this name; ``network`` is the three first bytes of addresses."""
        self._namespace = namespace
        self._device = device
        self._network = network

    def address(self, number: int) -> str:
        """1 and 2 are here, 3 is in the namespace."""
        return f"{self._network}.{number}"

    def make(self) -> None:
        """Make both ends. Raises: CalledProcessError."""
        here, there = self._device, f"{self._device}n"
        _ip("link", "add", here, "type", "veth", "peer", "name", there, "netns", self._namespace)
        for number in (1, 2):
            _ip("addr", "add", f"{self.address(number)}/{_PREFIX_BITS}", "dev", here)
        _ip("link", "set", here, "up")
        # On its loopback, so that the node can still talk to itself when the link is cut.
        _ip("-n", self._namespace, "addr", "add", f"{self.address(3)}/32", "dev", "lo")
        self.heal()

    def remove(self) -> None:
        """Remove both ends, if they are there."""
        subprocess.run(["ip", "link", "del", self._device], check=False, capture_output=True)

    def cut(self) -> None:
        """Nothing comes through any more, and no connection is closed."""
        _ip("-n", self._namespace, "link", "set", f"{self._device}n", "down")

    def heal(self) -> None:
        """Everything comes through again."""
        there = f"{self._device}n"
        _ip("-n", self._namespace, "link", "set", there, "up")
        whole = f"{self.address(0)}/{_PREFIX_BITS}"
        _ip("-n", self._namespace, "route", "add", whole, "dev", there, "src", self.address(3))


class Namespace:
    """A namespace with its links; a context manager. Raises: CalledProcessError."""

    def __init__(self) -> None:
        """Not made yet. No other process has one of its number, whichever run it is of."""
        number, self._claim = claimed("namespace", _NUMBERS)
        self._name = f"poste{number}"
        self.inward = self._link("pi", 76, number)
        """By which the other nodes reach this one."""
        self.outward = self._link("po", 77, number)
        """By which this node reaches the others."""
        self.clients = self._link("pc", 78, number)
        self.database = self._link("pd", 79, number)
        self._links = self.inward, self.outward, self.clients, self.database

    def _link(self, name: str, kind: int, number: int) -> Link:
        return Link(self._name, f"{name}{number}", f"10.{kind}.{number}")

    @property
    def prefix(self) -> Sequence[str]:
        """Before a command that is to run in it."""
        return ["nsenter", f"--net=/run/netns/{self._name}"]

    def __enter__(self) -> Self:
        try:
            self._remove()  # what a process that was killed has left
            _ip("netns", "add", self._name)
            _ip("-n", self._name, "link", "set", "lo", "up")
            for link in self._links:
                link.make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()
        self._claim.close()

    def _remove(self) -> None:
        # Their other ends go with the namespace too, but only some time later.
        for link in self._links:
            link.remove()
        subprocess.run(["ip", "netns", "del", self._name], check=False, capture_output=True)


def is_permitted() -> bool:
    """May this process make network namespaces?"""
    try:
        with Namespace():
            return True
    except (OSError, subprocess.CalledProcessError):
        return False


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
