"""The load generator: ``python -m http_edge.bench.load JOB``.

Reads a job file (msgpack), fires its commands and writes the ``Shots`` to stdout as msgpack;
the number of answered commands goes to stderr now and then, one per line.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import cycle, islice
from pathlib import Path

import msgspec
import uvloop

from http_edge.bench.shots import Shots, fire
from http_edge.bench.target import Target


class Job(msgspec.Struct, frozen=True):
    """One run: where, how many connections, for how long, and which bodies.

    ``count`` bodies are posted; the commands take turns until then. ``numbered``: they are JSON
    objects, and each gets one more member of its own, so that no two bodies are the same.
    """

    url: str
    path: str
    media_type: str
    connections: int
    seconds_max: float
    count: int
    commands: list[bytes]
    numbered: bool


def run_apart(  # noqa: PLR0913 - what a job says
    target: Target,
    commands: Sequence[bytes],
    *,
    connections: int,
    seconds_max: float,
    count: int | None = None,
    numbered: bool = False,
    progress: Callable[[int], None] = lambda _: None,
) -> Shots:
    """Fire each command once, or ``count`` in turns, from a process of its own; see ``Job``.

    Raises:
        RuntimeError: the generator failed; its last words are the message.
    """
    job = Job(
        target.url,
        target.path,
        target.media_type,
        connections,
        seconds_max,
        len(commands) if count is None else count,
        list(commands),
        numbered,
    )
    with tempfile.NamedTemporaryFile(suffix=".job") as file, tempfile.TemporaryFile() as output:
        file.write(msgspec.msgpack.encode(job))
        file.flush()
        with subprocess.Popen(  # noqa: S603 - our own interpreter and module
            [sys.executable, "-m", "http_edge.bench.load", file.name],
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            last = ""
            for line in process.stderr or ():
                last = line.strip()
                if last.isdecimal():
                    progress(int(last))
        output.seek(0)
        if process.returncode:
            raise RuntimeError(f"the load generator failed: {last}")
        return msgspec.msgpack.decode(output.read(), type=Shots)


def main(path: str) -> None:
    """Run a job file."""
    job = msgspec.msgpack.decode(Path(path).read_bytes(), type=Job)
    # The commands are many and live as long as the process: no collection while the clock runs.
    gc.freeze()
    gc.disable()
    bodies = islice(cycle(job.commands), job.count)
    shots = uvloop.run(
        fire(
            Target.at(job.url).posting(job.path, job.media_type),
            _numbered(bodies) if job.numbered else bodies,
            connections=job.connections,
            seconds_max=job.seconds_max,
            progress=lambda answered: print(answered, file=sys.stderr),  # noqa: T201 - the channel
        )
    )
    sys.stdout.buffer.write(msgspec.msgpack.encode(shots))


def _numbered(bodies: Iterable[bytes]) -> Iterator[bytes]:
    """Each body with a member that no other body has, of this process or of another."""
    mark = b',"n":"%d.' % os.getpid()
    for number, body in enumerate(bodies):
        yield b'%b%b%d"}' % (body[:-1], mark, number)


if __name__ == "__main__":
    main(sys.argv[1])
