"""What the erasure of an identity with a long history takes, and what others feel of it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import msgspec

from http_edge.cli.output import ProgressBar
from http_edge.clients.decentrl import Account
from http_edge.clients.load.decentrl_agents import DecentrlAgents
from tests.bench.agents import decentrl_agents, drained
from tests.bench.decentrl import pushed, saved
from tests.bench.load import connected
from tests.bench.report import Measurement, Report, report, timed
from tests.bench.server import MeasuredServer

_CONNECTIONS: Final = 16
_ROOM: Final = {"limits.queue_messages_max": "20000"}
_POSTE: Final = (sys.executable, "-c", "from http_edge.cli.main import main; main()")


class ErasurePlan(msgspec.Struct, frozen=True, kw_only=True):
    """An identity with so many waiting messages and saved events; others send and listen.

    ``pushes`` are the messages of the others, at 500 a second, before the erasure and from its
    beginning.
    """

    messages: int
    saved_events: int
    pushes: int


def plan(*, quick: bool) -> ErasurePlan:
    """The usual plan, or a twentieth of it."""
    share = 20 if quick else 1
    return ErasurePlan(
        messages=10_000 // share, saved_events=100_000 // share, pushes=5_000 // share
    )


async def run(wanted: ErasurePlan, bar: ProgressBar) -> Report:
    """Carry a plan out.

    Raises:
        AssertionError, RuntimeError, ClientError: it did not start, or refused something.
    """
    lines: list[Measurement] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        MeasuredServer(Path(folder) / "data", _ROOM) as server,
    ):
        async with decentrl_agents(server) as others, decentrl_agents(server, 1) as own:
            (pair,) = own.pairs
            await _fill(own, pair.recipient, wanted, bar)
            lines.append(await pushed("others before", server, others, wanted.pushes, bar))
            await drained("drain", others, server, expected=wanted.pushes)
            did = pair.recipient.identity.did
            erasing = asyncio.create_task(asyncio.to_thread(_erased, server.data_dir, did))
            lines.append(await pushed("others meanwhile", server, others, wanted.pushes, bar))
            lines.append(await erasing)
    return report(wanted, lines)


async def _fill(
    agents: DecentrlAgents, owner: Account, wanted: ErasurePlan, bar: ProgressBar
) -> None:
    """Let messages wait for the owner, and save its events."""
    bodies = list(agents.messages(wanted.messages))
    progress = bar("messages", wanted.messages)
    async with connected(agents.endpoint, agents.media_type, _CONNECTIONS) as posts:
        for first in range(0, len(bodies), _CONNECTIONS):
            some = bodies[first : first + _CONNECTIONS]
            refused = await asyncio.gather(
                *[post(body) for post, body in zip(posts, some, strict=False)]
            )
            assert not any(refused), refused
            progress(first + len(some))
    await saved(owner, wanted.saved_events, bar)


def _erased(data_dir: Path, did: str) -> Measurement:
    """As an operator does it; how long the command took, its start included."""
    began_s = time.perf_counter()
    command = [*_POSTE, "identities", "erase", did, "--yes", "--json", "--data-dir", str(data_dir)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    contents = json.loads(done.stdout)["contents"]
    return timed("contents erased", contents, time.perf_counter() - began_s)
