"""Start Ray without what Poste does not use: log monitor, autoscaler, API server, and two agents.

These are five Python processes, each with its memory, a share of a core while it runs, and a tenth
of the work of a start; the API server counts usage even where it has no dashboard. Ray's signal
handlers are left out too: they end the process wherever it is, even within Ray, which then ends
with another signal. Ray's processes get process groups of their own. Ray has no public switch for
this, so this is the only module that knows how Ray starts its processes, in one release; any other
release starts with all of its parts.
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
"""The raylet's options for its two agents, for metrics and for the runtime environments of actors.
The raylet ends if an agent's command is empty or ends; ``cat`` runs as long as the raylet holds its
input. The raylet waits for agents to report their ports unless it has them: metrics have no port,
and nothing here uses the other ports."""
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@contextlib.contextmanager
def unused_left_out() -> Iterator[None]:
    """Have Ray start without these parts, if it is of the known release.

    Call this in the main thread, while all others block signals to stop. Those that come meanwhile
    go to the previous handlers afterwards.
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
        (node, "start_api_server", _nothing_of),
        (utils, "set_sigterm_handler", _nothing_of),
        # To know how to start an agent, it would import what serves Ray's dashboard.
        (utils, "get_dashboard_dependency_error", _nothing_of),
        (services, "start_ray_process", without_agents),
        # A signal to the group of this process would end Ray beneath hosts and edges that stop.
        (services, "ConsolePopen", partial(services.ConsolePopen, process_group=0)),
    ]
    kept = [(owner, name, getattr(owner, name)) for owner, name, _ in replaced]
    for owner, name, other in replaced:
        setattr(owner, name, other)
    try:
        with handlers_kept():
            yield
    finally:
        for owner, name, own in kept:
            setattr(owner, name, own)


@contextlib.contextmanager
def handlers_kept() -> Iterator[None]:
    """Block signals while Ray sets its own handlers, in Python and in C, then restore the previous.

    Threads that start meanwhile block these signals for ever, so the main thread gets them.
    """
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _nothing_of(*_: object, **_options: object) -> None:
    """Replace one of Ray's functions: start no process, set no handler, import nothing."""


def _started_without_agents(
    start_process: Callable[..., object], command: list[str], process_type: str, **options: Any
) -> object:
    if process_type == _RAYLET:
        command = [*command, *_WITHOUT_AGENTS]  # the last option of a name counts
    # A process inherits the blocked signals of its parent thread, but SIGTERM has to end it.
    held = signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    try:
        return start_process(command, process_type, **options)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
