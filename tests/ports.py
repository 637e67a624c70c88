"""Ports for servers that tests start later, or start again where they were."""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Iterator
from typing import Final

_PORTS: Final = range(20_000, 32_000)
"""Below those that Linux gives to connections and to who asks for any port (32768 to 60999)."""
_PROCESSES_MAX: Final = 8
_WORKER: Final = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_OWN: Final = _PORTS[_WORKER % _PROCESSES_MAX :: _PROCESSES_MAX]
_FIRST: Final = os.getpid() % len(_OWN)
_NEXT: Final[Iterator[int]] = itertools.cycle([*_OWN[_FIRST:], *_OWN[:_FIRST]])


def free_port(ip: str = "127.0.0.1") -> int:
    """A port of this address that nothing has, and that no other process of the run is given."""
    while True:
        port = next(_NEXT)
        with socket.socket() as probe:
            try:
                probe.bind((ip, port))
            except OSError:
                continue
        return port
