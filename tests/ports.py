"""Ports for servers that tests start later, or start again where they were."""

from __future__ import annotations

import atexit
import itertools
import socket
from collections.abc import Iterator
from typing import Final

_PORTS: Final = range(20_000, 32_000)
"""Below those that Linux gives to connections and to who asks for any port (32768 to 60999)."""
_OF_A_PROCESS: Final = 200


def _claimed() -> tuple[socket.socket, Iterator[int]]:
    """Ports that no other process of this or another run is given, and what claims them.

    The kernel has each abstract name once, and frees it when its process ends, however it does.
    """
    for first in _PORTS[::_OF_A_PROCESS]:
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0poste-test-ports-{first}")
        except OSError:
            claim.close()
        else:
            return claim, itertools.cycle(range(first, first + _OF_A_PROCESS))
    raise AssertionError("other processes have all ports of tests")


_CLAIM, _NEXT = _claimed()
atexit.register(_CLAIM.close)


def free_port(ip: str = "127.0.0.1") -> int:
    """A port of this address that nothing has, and that no other test is given."""
    while True:
        port = next(_NEXT)
        with socket.socket() as probe:
            try:
                probe.bind((ip, port))
            except OSError:
                continue
        return port
