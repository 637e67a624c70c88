"""The parts of Ray that nothing here asks: its reader of log files, its autoscaler, its two agents.

They are four Pythons, each with its memory, its share of a core as long as it runs, and a tenth of
the work of a start. Ray has no public switch for them, so this is the one module that knows how Ray
starts its processes, of one release: any other one starts with all of its parts.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from typing import Any, Final

import ray

_RELEASE: Final = "2.60."
_RAYLET: Final = "raylet"
_NO_AGENT: Final = "cat"
_WITHOUT_AGENTS: Final = (
    f"--dashboard_agent_command={_NO_AGENT}",
    f"--runtime_env_agent_command={_NO_AGENT}",
    "--metrics-agent-port=-1",
    "--metrics_export_port=1",
    "--dashboard_agent_listen_port=1",
    "--runtime_env_agent_port=1",
)
"""What the raylet gets to know of its two agents, for metrics and for what single actors need. It
ends where a command is empty or ends itself; ``cat`` lives as long as the raylet holds its input.
It waits for agents to tell their ports unless it knows them: there is none for metrics, and the
others are asked by nothing here."""


@contextlib.contextmanager
def unused_left_out() -> Iterator[None]:
    """Have Ray start without these parts, where it is of the release that is known."""
    if not ray.__version__.startswith(_RELEASE) or shutil.which(_NO_AGENT) is None:
        yield
        return
    node: Any = import_module("ray._private.node").Node
    services: Any = import_module("ray._private.services")
    kept = node.start_log_monitor, node.start_monitor, services.start_ray_process
    node.start_log_monitor = node.start_monitor = _nothing_of
    services.start_ray_process = partial(_started_without_agents, kept[2])
    try:
        yield
    finally:
        node.start_log_monitor, node.start_monitor, services.start_ray_process = kept


def _nothing_of(_: object) -> None:
    """Start nothing of this node."""


def _started_without_agents(
    start_process: Callable[..., object], command: list[str], process_type: str, **options: Any
) -> object:
    if process_type == _RAYLET:
        command = [*command, *_WITHOUT_AGENTS]  # the last of two that have one name counts
    return start_process(command, process_type, **options)
