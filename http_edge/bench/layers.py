"""What each layer of a cluster spends: edges, hosts, serve processes, Ray's own, the database."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from http_edge.bench.processes import CPU_TICKS_PER_S, ProcessTree, processes

EDGES: Final = "edges"
HOSTS: Final = "hosts"
SERVE: Final = "serve"
RAY: Final = "ray"
DATABASE: Final = "database"
LAYERS: Final = (EDGES, HOSTS, SERVE, RAY, DATABASE)
EDGE_TITLE: Final = "ray::RayEdge"
HOST_TITLE: Final = "ray::RayIdentityHost"
_SESSION, _TIMES = 3, slice(11, 13)
"""Fields of /proc/<pid>/stat after the command's name: session; utime, stime."""


class Seen(NamedTuple):
    """A living process: its id, its title and its CPU seconds so far."""

    pid: int
    title: str
    cpu_s: float


def layer_of(title: str) -> str:
    """The layer of a process of a Ray node, by the title that Ray gives its workers."""
    if title.startswith(EDGE_TITLE):
        return EDGES
    return HOSTS if title.startswith(HOST_TITLE) else RAY


def in_sessions(sessions: Iterable[int]) -> Iterator[Seen]:
    """The living processes of these sessions."""
    wanted = set(sessions)
    for pid, fields in processes():
        if int(fields[_SESSION]) in wanted and fields[0] != "Z":
            ticks = sum(map(int, fields[_TIMES]))
            yield Seen(pid, _title(pid), ticks / CPU_TICKS_PER_S)


def spent_s(
    ray_sessions: Sequence[int], serve_sessions: Sequence[int], database: ProcessTree | None
) -> dict[str, float]:
    """CPU seconds so far of each layer, of those processes that live.

    The database is left out where its processes are not known.
    """
    spent = dict.fromkeys(LAYERS, 0.0)
    for seen in in_sessions(ray_sessions):
        spent[layer_of(seen.title)] += seen.cpu_s
    spent[SERVE] = sum(seen.cpu_s for seen in in_sessions(serve_sessions))
    if database is None:
        del spent[DATABASE]
    else:
        spent[DATABASE] = database.cpu_s()
    return spent


def per_1000(
    before: Mapping[str, float], after: Mapping[str, float], count: int
) -> dict[str, float]:
    """CPU seconds that each layer spent on 1,000 of ``count`` messages; nothing without any."""
    if not count:
        return {}
    return {
        f"{layer}_cpu_s_per_1000": (after[layer] - before[layer]) / count * 1000 for layer in after
    }


def _title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")[0].strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""
