"""The parts of Ray that nothing here asks: its reader of log files, its autoscaler, its two agents.

They are four Pythons, each with its memory, its share of a core as long as it runs, and a tenth of
the work of a start. Its handlers of signals are not wanted either: they end the process wherever it
is, also within Ray, which then ends with another signal. Ray has no public switch for all this, so
this is the one module that knows how Ray starts its processes, of one release: any other one starts
with all of its parts.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
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
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@contextlib.contextmanager
def unused_left_out() -> Iterator[None]:
    """Have Ray start without these parts, where it is of the release that is known.

    In the main thread, as the only one. Signals to stop that come meanwhile have the handlers of
    before, afterwards.
    """
    if not ray.__version__.startswith(_RELEASE) or shutil.which(_NO_AGENT) is None:
        yield
        return
    node: Any = import_module("ray._private.node").Node
    services: Any = import_module("ray._private.services")
    utils: Any = import_module("ray._private.utils")
    without_agents = partial(_started_without_agents, services.start_ray_process)
    replaced: list[tuple[Any, str, Callable[..., object]]] = [
        (node, "start_log_monitor", _nothing_of),
        (node, "start_monitor", _nothing_of),
        (utils, "set_sigterm_handler", _nothing_of),
        (services, "start_ray_process", without_agents),
    ]
    kept = [(owner, name, getattr(owner, name)) for owner, name, _ in replaced]
    for owner, name, other in replaced:
        setattr(owner, name, other)
    try:
        with _handlers_kept():
            yield
    finally:
        for owner, name, own in kept:
            setattr(owner, name, own)


@contextlib.contextmanager
def _handlers_kept() -> Iterator[None]:
    """Hold signals back while Ray sets handlers of its own, in Python and in C, and end these.

    What threads begin meanwhile hold them back for ever: they come to the main thread.
    """
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _nothing_of(_: object) -> None:
    """Start nothing of this node, set no handler."""


def _started_without_agents(
    start_process: Callable[..., object], command: list[str], process_type: str, **options: Any
) -> object:
    if process_type == _RAYLET:
        command = [*command, *_WITHOUT_AGENTS]  # the last of two that have one name counts
    # A process holds back what the thread did that has started it, and is ended by SIGTERM.
    held = signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    try:
        return start_process(command, process_type, **options)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
