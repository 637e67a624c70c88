"""What a waiting message costs in memory.

Taken as the growth between two levels of full queues, so that nothing counts which a server needs
once: code, caches, the buffers of a busy moment.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Final

import uvloop

from http_edge.bench.envelopes import forwards, letters, routing_key_of
from http_edge.bench.load import run_apart
from http_edge.bench.measurement import Measurement
from http_edge.bench.mediator import Mediator, mediator_of
from http_edge.bench.progress import ProgressBar
from http_edge.bench.registrations import register
from http_edge.bench.server import OwnServer

MAILBOXES: Final = 64
_FIRST_SHARE: Final = 2
"""Half as many are queued before the first look: the log fills its caches with those."""
_POOL: Final = 2_048
_CONNECTIONS: Final = 32
_SECONDS_MAX: Final = 600.0
_SETTLING_S: Final = 3.0
_KIB: Final = 1024


def queue_memory(data_dir: Path, count: int, bar: ProgressBar) -> Measurement:
    """Queue ``count`` messages for 64 wallets of a server of its own.

    Raises:
        RuntimeError: a message was refused.
    """
    with OwnServer(data_dir) as server:
        mediator = mediator_of(server)
        mailboxes, _ = uvloop.run(register(mediator, MAILBOXES))
        pool = forwards(letters(mailboxes, _POOL), routing_key_of(mailboxes[0]))
        first = count // _FIRST_SHARE
        _queue(mediator, pool, first, bar)
        before_bytes = server.processes.own_memory_bytes()
        seconds = _queue(mediator, pool, count, bar)
        grown_bytes = server.processes.own_memory_bytes() - before_bytes
    return Measurement(
        name=f"queue for {MAILBOXES} wallets",
        count=count,
        seconds=seconds,
        per_s=count / seconds,
        figures={"kib_per_queued_message": grown_bytes / count / _KIB},
    )


def _queue(mediator: Mediator, pool: Sequence[bytes], count: int, bar: ProgressBar) -> float:
    """Queue messages, and wait for snapshots to be written: the seconds that queuing took."""
    shots = run_apart(
        mediator.target,
        list(islice(cycle(pool), min(count, len(pool)))),
        connections=_CONNECTIONS,
        seconds_max=_SECONDS_MAX,
        count=count,
        numbered=True,
        progress=bar("queue messages", count),
    )
    if shots.accepted < count:
        raise RuntimeError(f"{shots.accepted} of {count} were accepted: {shots.refused}")
    time.sleep(_SETTLING_S)
    return shots.elapsed_s
