"""The process of one attack: ``python -m tests.attacks.attacker JOB``; see ``run_apart``.

It says ``ready`` when it has prepared, attacks when it is sent a line, and ends by itself.
"""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import IO, Final

import msgspec
import uvloop

from tests.attacks.attack import Attack
from tests.attacks.target import AttackResult, Options, Target

_READY: Final = b"ready\n"
_PREPARED_S_MAX: Final = 540.0
_EVENTS_PER_S_MIN: Final = 2_000
"""Saved events that a slow machine takes: a long history has more time than other attacks."""
_LATE_S_MAX: Final = 30.0
_NICEST: Final = 19


class AttackFailed(Exception):
    """The program of an attack ended with a fault of its own; the message is its last words."""


class Job(msgspec.Struct, frozen=True):
    """Which attack, on whom, from where."""

    name: str
    url: str
    sources: list[str]
    options: Options


class Attacker:
    """The process of an attack that has prepared itself."""

    def __init__(
        self, process: asyncio.subprocess.Process, errors: IO[bytes], late_s: float
    ) -> None:
        self._process = process
        self._errors = errors
        self._late_s = late_s

    def begin(self) -> None:
        """Let it attack."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")

    async def result(self) -> AttackResult:
        """What it did, once it has ended. Raises: AttackFailed."""
        try:
            async with asyncio.timeout(self._late_s):
                assert self._process.stdout is not None
                said = await self._process.stdout.read()
                await self._process.wait()
        except TimeoutError:
            raise AttackFailed(f"did not end within {self._late_s:.0f} s") from None
        if self._process.returncode:
            raise AttackFailed(last_words(self._errors))
        return msgspec.json.decode(said, type=AttackResult)

    async def end(self) -> None:
        """End the process if it lives."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()


def last_words(errors: IO[bytes]) -> str:
    """The last line that a program wrote to its errors."""
    errors.seek(0)
    lines = errors.read().decode(errors="replace").splitlines()
    return lines[-1] if lines else "it said nothing"


@asynccontextmanager
async def prepared(job: Job) -> AsyncIterator[Attacker]:
    """An attack in a process of its own that has prepared itself. Raises: AttackFailed."""
    with tempfile.TemporaryFile() as errors:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "tests.attacks.attacker", msgspec.json.encode(job).decode()),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
        )
        attacker = Attacker(process, errors, job.options.seconds + _LATE_S_MAX)
        try:
            async with asyncio.timeout(_PREPARED_S_MAX + job.options.events / _EVENTS_PER_S_MIN):
                assert process.stdout is not None
                if await process.stdout.readline() != _READY:
                    await process.wait()
                    raise AttackFailed(last_words(errors))
            yield attacker
        finally:
            await attacker.end()


async def carry_out(attack: Attack, job: Job) -> AttackResult:
    """Prepare, wait for the line, attack until the end."""
    async with Target(job.url, job.sources, job.options) as target:
        program = aiter(attack.program(target))
        await anext(program)
        gc.freeze()
        sys.stdout.buffer.write(_READY)
        sys.stdout.buffer.flush()
        await asyncio.to_thread(sys.stdin.buffer.readline)
        target.begin()
        try:
            async with asyncio.timeout(job.options.seconds + 1):
                async for _ in program:
                    raise AssertionError("an attack prepares once")
        except TimeoutError:
            pass  # what is under way at the end is given up
        return target.result()


def _give_way() -> None:
    """Take of the cores only what is left.

    The attack shares them with what it attacks, which in truth it would not: what it takes for
    itself must not be felt as if the mediator had taken it.
    """
    if hasattr(os, "SCHED_IDLE"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    else:
        os.nice(_NICEST)


def main(text: str) -> None:
    """Carry out the job."""
    from tests.attacks.registry import ATTACKS  # noqa: PLC0415 - the families import this package

    job = msgspec.json.decode(text, type=Job)
    if job.options.gives_way:
        _give_way()
    _, descriptors_max = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors_max, descriptors_max))
    result = uvloop.run(carry_out(ATTACKS[job.name], job))
    sys.stdout.buffer.write(msgspec.json.encode(result))


if __name__ == "__main__":
    main(sys.argv[1])
