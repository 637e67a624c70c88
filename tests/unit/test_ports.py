"""The ports that tests are given."""

from __future__ import annotations

import subprocess
import sys

from tests.ports import free_port

_GIVEN = "from tests.ports import free_port; print(*(free_port() for _ in range(5))); input()"


def test_processes_at_the_same_time_are_given_different_ports() -> None:
    """Also those of another run, which has workers of the same names."""
    own = {free_port() for _ in range(5)}
    command = [sys.executable, "-c", _GIVEN]
    with (
        subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as one,
        subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as two,
    ):
        for process in (one, two):
            assert process.stdout is not None
            own |= {int(port) for port in process.stdout.readline().split()}
        for process in (one, two):
            process.communicate("\n")
    assert len(own) == 15
