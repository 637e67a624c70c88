"""Many identities and full queues: what they cost in memory, and how fast they come back.

Memory is the proportional set size of all processes of the server, Ray's included, less that of
a bare Ray with an empty driver, measured first. After a restart nobody is in memory: the first
command to an identity has to bring it back from the log.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from array import array
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Final

import uvloop

from http_edge.bench.connection import Connection
from http_edge.bench.measurement import Measurement, measured
from http_edge.bench.messages import SETUP_CONNECTIONS
from http_edge.bench.population import Pair, contract, direct, messages, registration
from http_edge.bench.processes import ProcessTree
from http_edge.bench.progress import ProgressBar
from http_edge.bench.server import OwnServer
from http_edge.bench.shots import fire
from http_edge.bench.subject import Subject, subject_of
from http_edge.client import Identity

_SENDERS: Final = 64
_CHUNK: Final = 20_000
"""Commands signed at once: few enough for memory and for the five minutes that they are valid."""
_CHUNK_S_MAX: Final = 240.0
_COLD: Final = 1_000
_OK: Final = 200
_NS_PER_S: Final = 1_000_000_000
_MIB: Final = 1024 * 1024
_BARE_RAY: Final = """
from actors import ray_cluster
ray_cluster.start(None)
print("ready", flush=True)
input()
ray_cluster.stop()
"""


def measure_scale(
    data_dir: Path, identities: int, queued: int, bar: ProgressBar
) -> list[Measurement]:
    """Register identities, queue messages for them, restart, and wake some of them.

    Raises:
        RuntimeError: the mediator refused a part of it.
        NotReady: the mediator did not start.
    """
    bare_bytes = bare_ray_bytes()
    with OwnServer(data_dir) as server:
        subject = subject_of(server)
        recipients = _register(subject, identities, bar)
        registered_bytes = server.processes.memory_bytes()
        senders = [Identity.create(f"s{n}", subject.mediator.did) for n in range(_SENDERS)]
        people = [Pair(senders[n % _SENDERS], who) for n, who in enumerate(recipients)]
        contracts = (contract(pair, subject.mediator) for pair in people)
        _send_all(subject, contracts, bar("save contracts", identities))
        filled_s = _send_all(subject, messages(people, queued), bar("queue messages", queued))
        queued_bytes = server.processes.memory_bytes()
    with OwnServer(data_dir) as again:
        cold = uvloop.run(_wake(subject_of(again), recipients))
        woken_bytes = again.processes.memory_bytes()
        ready_s = again.ready_s
    memory = {
        "bare_ray_mib": bare_bytes / _MIB,
        f"with_{identities}_registered_mib": (registered_bytes - bare_bytes) / _MIB,
        f"with_{queued}_queued_mib": (queued_bytes - bare_bytes) / _MIB,
        "after_restart_mib": (woken_bytes - bare_bytes) / _MIB,
    }
    return [
        Measurement(
            name=f"queue for {identities:_} identities",
            count=queued,
            seconds=filled_s,
            per_s=queued / filled_s,
            figures=memory,
        ),
        Measurement(name="ready after restart", count=1, seconds=ready_s, per_s=1 / ready_s),
        cold,
    ]


def bare_ray_bytes() -> int:
    """Memory of a Ray with the mediator's own settings and nothing in it.

    Raises:
        RuntimeError: Ray did not start.
    """
    with subprocess.Popen(  # noqa: S603 - our own interpreter and text
        [sys.executable, "-c", _BARE_RAY],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        if "ready" not in process.stdout.readline():
            raise RuntimeError("Ray did not start")
        memory = ProcessTree(process.pid).memory_bytes()
        process.communicate("\n")
    return memory


def _register(subject: Subject, count: int, bar: ProgressBar) -> list[Identity]:
    made: list[Identity] = []

    def registrations() -> Iterator[bytes]:
        for number in range(count):
            made.append(Identity.create(f"r{number}", subject.mediator.did))
            yield registration(made[-1], subject.mediator)

    _send_all(subject, registrations(), bar("register", count))
    return made


def _send_all(
    subject: Subject, commands: Iterable[bytes], progress: Callable[[int], None]
) -> float:
    """Sign and send chunk by chunk; the seconds that sending took.

    Raises:
        RuntimeError: one was refused, or a chunk took too long.
    """
    remaining, sent, seconds = iter(commands), 0, 0.0

    def answered(count: int) -> None:
        progress(sent + count)

    while chunk := list(islice(remaining, _CHUNK)):
        shots = uvloop.run(
            fire(
                subject.target,
                chunk,
                connections=SETUP_CONNECTIONS,
                seconds_max=_CHUNK_S_MAX,
                progress=answered,
            )
        )
        sent += shots.accepted
        seconds += shots.elapsed_s
        if shots.accepted < len(chunk):
            raise RuntimeError(f"{shots.accepted} of {len(chunk)} accepted: {shots.refused}")
    progress(sent)
    return seconds


async def _wake(subject: Subject, identities: list[Identity]) -> Measurement:
    """One query each for some identities that nobody has asked for since the restart."""
    chosen = random.Random(0).sample(identities, min(_COLD, len(identities)))  # noqa: S311 - a sample
    query = {"type": "QUERY_PENDING_EVENTS", "pagination": {"page": 0, "page_size": 10}}
    commands = [direct(who, subject.mediator, query) for who in chosen]
    connection = await Connection.open(subject.target)
    latencies, started = array("Q"), time.perf_counter_ns()
    for command in commands:
        sent = time.perf_counter_ns()
        status, body = await connection.post(command)
        if status != _OK:
            raise RuntimeError(f"query refused: {body[:80]!r}")
        latencies.append(time.perf_counter_ns() - sent)
    connection.close()
    seconds = (time.perf_counter_ns() - started) / _NS_PER_S
    return measured("first command to a cold identity", latencies, seconds)
