"""Ports for servers that tests start later, or start again where they were."""

from __future__ import annotations

import atexit
import itertools
import socket
from collections.abc import Iterable
from typing import Final

_PORTS: Final = range(20_000, 32_000)
"""Below those that Linux gives to connections and to who asks for any port (32768 to 60999)."""
_OF_A_PROCESS: Final = 200


def claimed(kind: str, numbers: Iterable[int]) -> tuple[int, socket.socket]:
    """The first of these numbers that no process of this or another run has, and what claims it.

    The kernel has each abstract name once, and frees it when its process ends, however it does.
    """
    for number in numbers:
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0poste-test-{kind}-{number}")
        except OSError:
            claim.close()
        else:
            return number, claim
    raise AssertionError(f"other processes have all {kind} of tests")


_FIRST, _CLAIM = claimed("ports", _PORTS[::_OF_A_PROCESS])
_NEXT: Final = itertools.cycle(range(_FIRST, _FIRST + _OF_A_PROCESS))
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
