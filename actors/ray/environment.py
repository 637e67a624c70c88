"""The environment that Ray reads when it is imported; call ``prepare`` before that."""

from __future__ import annotations

import os
import secrets
from typing import Final

_PERIODS_MS: Final = {
    "raylet_report_resources_period_milliseconds": 5_000,
    "object_manager_timer_freq_ms": 1_000,
    "kill_idle_workers_interval_ms": 5_000,
    "gcs_pull_resource_loads_period_milliseconds": 10_000,
    "raylet_check_gc_period_milliseconds": 5_000,
    "local_fs_monitor_interval_ms": 10_000,
}
"""How often Ray looks at resources, objects and idle processes for other nodes, of which one
machine has none, and checks the disk for its own objects. By default it looks up to ten times a
second, at half a percent of a core."""

_MEMORY: Final = {"memory_monitor_refresh_ms": 0, "worker_oom_score_adjustment": 0}
"""Ray's watch over the memory of the machine is off: while that is nearly used up, by any process,
it ends hosts and edges, however small, and again after each restart. The kernel ends the process
that takes the most, and by default Ray has it end hosts and edges before all others."""

_GCS_S_MAX: Final = 5
"""Seconds for which Ray's processes try to reach a control service (GCS) that is gone before they
end. One machine has one, and nothing starts it again: only the end of ``poste serve`` lets a
supervisor start the mediator anew. A service that is merely slow or paused keeps its connections.
By default it is a minute."""

_LOG_BYTES_MAX: Final = 16 * 1024 * 1024
"""Size of a log file of Ray, and of the rotated one before it. Ray logs its state once a minute,
5 MB a day, by default up to some GiB, on the disk of the keys and of log.db."""

_MALLOC: Final = {
    "MALLOC_MMAP_THRESHOLD_": 8 * 1024 * 1024,
    "MALLOC_TRIM_THRESHOLD_": 16 * 1024 * 1024,
}
"""For the C library (mallopt(3)), in bytes: smaller buffers come from memory that it keeps, and so
much freed memory it keeps for the next ones. By default it gives the buffers of a large page of
messages back after each page, and the kernel clears them for the next page, which takes as long as
encrypting them."""

_OF_LOGS: Final = frozenset(
    {"RAY_BACKEND_LOG_LEVEL", "RAY_ROTATION_MAX_BYTES", "RAY_ROTATION_BACKUP_COUNT"}
)


def prepare() -> None:
    """Set the environment of this process and all its children.

    Variables in capitals describe a Ray of the user's own: its Redis, its TLS, its hooks, the
    environment of its jobs. With these the mediator's Ray does not start, so only those about logs
    stay, and the flags in small letters (``RAY_worker_niceness``).

    Ray gets a token for its lifetime: a client of Ray's ports can run code as this user, so the
    ports stay on loopback and require the token.
    """
    for name in [*os.environ]:
        if name.startswith("RAY_") and name.isupper() and name not in _OF_LOGS:
            del os.environ[name]
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # nothing here reaches the internet
    # Ray's default of 15 is for batch work: hosts and edges would wait for all other processes.
    os.environ.setdefault("RAY_worker_niceness", "0")
    # Ray's switch for machines without a cluster: its ports then listen on loopback alone.
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    # Ray's record of every call is for its dashboard, which is off, and grows with the calls.
    os.environ.setdefault("RAY_task_events_report_interval_ms", "0")
    for name, value in (_PERIODS_MS | _MEMORY).items():
        os.environ.setdefault(f"RAY_{name}", str(value))
    os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", str(_GCS_S_MAX))
    for name, size_bytes in _MALLOC.items():
        os.environ.setdefault(name, str(size_bytes))
    os.environ.setdefault("RAY_event_stats", "0")
    os.environ.setdefault("RAY_ROTATION_MAX_BYTES", str(_LOG_BYTES_MAX))
    os.environ.setdefault("RAY_ROTATION_BACKUP_COUNT", "1")
    os.environ["RAY_AUTH_MODE"] = "token"
    os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
