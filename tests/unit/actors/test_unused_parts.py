"""What is left out of Ray: of the release that is known, and of no other one.

That none of it runs beside a mediator: ``tests/cluster/test_start_and_stop.py``.
"""

from __future__ import annotations

import os
import signal
from tempfile import TemporaryFile
from typing import Any

import pytest
from ray._private import services, utils
from ray._private.node import Node

from actors.ray.processes import RayRefused
from actors.ray.unused_parts import unused_left_out


def replaced() -> list[Any]:
    """What Ray starts processes by, sets a handler of signals, and looks for what it can serve."""
    of_services = [vars(services)[name] for name in ("start_ray_process", "ConsolePopen")]
    of_node = [Node.start_log_monitor, Node.start_monitor, Node.start_api_server]
    of_utils = [
        vars(utils)[name] for name in ("set_sigterm_handler", "get_dashboard_dependency_error")
    ]
    return [*of_node, *of_services, *of_utils]


def refused(before: list[Any]) -> None:
    """A start without these parts, which fails."""
    with unused_left_out():
        assert not {id(each) for each in before} & {id(each) for each in replaced()}
        raise RayRefused


def test_ray_is_left_as_it_was_found_whatever_happens() -> None:
    before = replaced()
    with pytest.raises(RayRefused):
        refused(before)
    assert replaced() == before


@pytest.mark.parametrize("lacking", ["release", "program"])
def test_where_something_is_unknown_ray_starts_with_all_of_its_parts(
    lacking: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if lacking == "release":
        monkeypatch.setattr("ray.__version__", "3.0.0")
    else:
        monkeypatch.setenv("PATH", "/nowhere")
    before = replaced()
    with unused_left_out():
        assert replaced() == before


def test_a_signal_that_comes_meanwhile_has_its_handler_afterwards() -> None:
    came: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: came.append(number))
    try:
        with unused_left_out():
            signal.signal(signal.SIGTERM, signal.SIG_DFL)  # as what Ray is linked with
            signal.raise_signal(signal.SIGTERM)  # of this thread: pytest has others
            assert came == []
        assert came == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_a_process_that_ray_starts_is_ended_by_sigterm() -> None:
    with TemporaryFile("w+") as said, unused_left_out():
        command = ["grep", "SigBlk", "/proc/self/status"]
        started = services.start_ray_process(
            command, "gcs_server", fate_share=False, stdout_file=said
        )
        assert started.process.wait() == 0
        said.seek(0)
        held = int(said.read().split()[1], base=16)
    assert not held & 1 << signal.SIGTERM - 1


def test_a_signal_to_all_of_a_mediators_group_does_not_end_ray_beneath_it() -> None:
    with TemporaryFile("w+") as said, unused_left_out():
        command = ["cat", "/proc/self/stat"]
        started = services.start_ray_process(
            command, "gcs_server", fate_share=False, stdout_file=said
        )
        assert started.process.wait() == 0
        said.seek(0)
        pid, _, _, _, group, *_ = said.read().split()
    assert pid == group != str(os.getpgrp())
