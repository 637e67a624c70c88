"""The edge alone: ``python -m tests.bench.echo_edge --set NAME=VALUE…``.

The same HTTP surface, parsing and signature check as the mediator's, before a host that accepts
at once what the edge did not refuse, and stores nothing. The difference between the two is what
actors, log and disk cost. It is for loopback, and keeps nothing.
"""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import click
import msgspec
import uvloop

from actors.core.commands import FindKeyOwner, QueueEnvelopes, QueueMessage
from actors.core.placement_table import HostHoldings
from actors.core.replies import (
    BatchResult,
    Done,
    EnvelopeQueued,
    KeyOwner,
    MessageAccepted,
    Refused,
    Reply,
)
from actors.core.submissions import Submission
from actors.host.inspection import NotOwned
from actors.host.measures import HostStats
from actors.host.port import (
    A,
    HostQuestion,
    Inspect,
    IsKnown,
    ListQueues,
    Ping,
    QueryHoldings,
    QueryStats,
    ReadPages,
)
from http_edge.cli.settings import with_settings
from http_edge.crypto.mediator_keys import load_or_create
from http_edge.dispatch.routes import Routes
from http_edge.server.address import listen
from http_edge.server.edge import Edge
from http_edge.server.hosts import placement_of
from http_edge.settings.settings import Settings, split_listen
from http_edge.settings.sources import Loaded

_DECODER = msgspec.msgpack.Decoder(list[Submission])
_ENCODER = msgspec.msgpack.Encoder()
_NO_MESSAGE = "00000000-0000-4000-8000-000000000000"


class EchoHost:
    """A ``HostPort`` that passes on the refusals of the edge, accepts all else and forgets it."""

    async def submit(self, batch: bytes) -> bytes:
        """Accept: messages get an id that says that there is none."""
        replies = [_reply(submission) for submission in _DECODER.decode(batch)]
        return _ENCODER.encode(BatchResult("echo", replies, []))

    async def ask(self, question: HostQuestion[A]) -> A:
        """Always well, with nothing to read, and nothing in memory that waits."""
        answers: dict[type, Any] = {
            Ping: "echo",
            QueryStats: HostStats("echo"),
            ListQueues: [],
            Inspect: NotOwned(),
            IsKnown: True,
            QueryHoldings: HostHoldings("echo", "", "echo", draining=False, shards={}),
        }
        reads = question.reads if isinstance(question, ReadPages) else []
        answer: A = answers.get(type(question), [b""] * len(reads))
        return answer

    async def heartbeat(self, sockets: int) -> str:
        """Never starts anew."""
        return "echo"

    def close(self) -> None:
        """Nothing is ever under way."""


def _reply(submission: Submission) -> Reply:
    if submission.refusal is not None:  # the edge's own, which a host passes on
        return Refused(submission.refusal)
    match submission.command:
        case QueueMessage():
            return MessageAccepted(_NO_MESSAGE)
        case QueueEnvelopes():
            return EnvelopeQueued(_NO_MESSAGE, outbound=False)
        case FindKeyOwner():
            return KeyOwner(submission.target_did)
        case _:
            return Done()


async def serve(settings: Settings) -> None:
    """Serve until SIGTERM."""
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    host = EchoHost()
    listener = listen(settings.listen)
    _, operators_port = split_listen(settings.operators.listen)
    settings = settings.bound_to(listener.getsockname()[1], operators_port)
    routes = Routes.fixed(placement_of(settings))
    keys = load_or_create(settings.keys_path)
    edge = Edge("echo", settings, keys, lambda _: host, routes=routes)
    await edge.start(listener)
    click.echo(f"ready {settings.url} {settings.mediator_did}")
    await stopped.wait()
    await edge.stop()


@click.command()
@with_settings("data_dir")
def main(loaded: Loaded) -> None:
    """Run the edge without a mediator behind it."""
    Path(loaded.settings.data_dir).mkdir(parents=True, exist_ok=True)
    uvloop.run(serve(loaded.settings))


if __name__ == "__main__":
    main()
