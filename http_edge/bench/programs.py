"""Programs that a benchmark runs to their end: how long they took, and how much memory."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from http_edge.bench.processes import ProcessTree
from http_edge.bench.server import own_environment

_SAMPLE_S: Final = 1.0
_POLL_S: Final = 0.05
_LAST_LINES: Final = 5


class Ran(msgspec.Struct, frozen=True):
    """One or several programs that ran at the same time.

    Attributes:
        seconds: From the start of the first to the end of the last.
        memory_peak_bytes: Most resident memory of all their processes together, sampled every
            second; pages that processes share are counted once.
        cpu_s: CPU seconds of all their processes.
        outputs: What each wrote to stdout.
    """

    seconds: float
    memory_peak_bytes: int
    cpu_s: float
    outputs: Sequence[bytes]


def run_programs(*commands: Sequence[str], scratch: Path) -> Ran:
    """Run programs at the same time, in sessions of their own, until all have ended.

    ``scratch`` is where they put their temporary files.

    Raises:
        RuntimeError: one failed; its last words are the message.
    """
    environment = own_environment() | {"TMPDIR": str(scratch), "SPARK_LOCAL_DIRS": str(scratch)}
    started = time.monotonic()
    peak_bytes = cpu_s = 0.0
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        running: list[subprocess.Popen[bytes]] = []
        try:
            for number, command in enumerate(commands):
                with (
                    (Path(folder) / f"{number}.out").open("wb") as output,
                    (Path(folder) / f"{number}.err").open("wb") as words,
                ):
                    running.append(
                        subprocess.Popen(  # noqa: S603 - what the benchmark measures
                            list(command),
                            stdout=output,
                            stderr=words,
                            env=environment,
                            start_new_session=True,
                        )
                    )
            trees = [ProcessTree(process.pid) for process in running]
            sampled = 0.0
            while any(process.poll() is None for process in running):
                if time.monotonic() - sampled > _SAMPLE_S:
                    sampled = time.monotonic()
                    peak_bytes = max(peak_bytes, sum(tree.memory_bytes() for tree in trees))
                    cpu_s = max(cpu_s, sum(tree.cpu_s() for tree in trees))
                time.sleep(_POLL_S)
            seconds = time.monotonic() - started
        finally:
            for process in running:
                _end(process)
        for number, process in enumerate(running):
            if process.returncode:
                lines = (Path(folder) / f"{number}.err").read_text(errors="replace").splitlines()
                said = " | ".join(lines[-_LAST_LINES:])
                raise RuntimeError(f"{' '.join(commands[number][1:4])}: {said}")
        outputs = [(Path(folder) / f"{n}.out").read_bytes() for n in range(len(running))]
    return Ran(seconds, int(peak_bytes), cpu_s, outputs)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a program that is not to go on, and all that it started."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()
