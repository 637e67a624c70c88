"""What is left out of Ray: of the release that is known, and of no other one.

That none of it runs beside a mediator: ``tests/cluster/test_start_and_stop.py``.
"""

from __future__ import annotations

from typing import Any

import pytest
from ray._private import services
from ray._private.node import Node

from actors.ray.processes import RayRefused
from actors.ray.unused_parts import unused_left_out


def replaced() -> list[Any]:
    """What Ray starts processes by."""
    return [Node.start_log_monitor, Node.start_monitor, vars(services)["start_ray_process"]]


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
