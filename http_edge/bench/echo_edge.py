"""The edge alone: ``python -m http_edge.bench.echo_edge --set NAME=VALUE…``.

The same HTTP surface, parsing and signature check as the mediator's, before a host that accepts
at once what the edge did not refuse, and stores nothing. The difference between the two is what
actors, log and disk cost. It is for loopback, and keeps nothing.
"""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import click
import msgspec
import uvloop

from actors.commands import FindKeyOwner, QueueEnvelope, QueueMessage, Submission
from actors.inspection import NotOwned
from actors.replies import (
    BatchResult,
    Done,
    EnvelopeQueued,
    KeyOwner,
    MessageAccepted,
    Refused,
    Reply,
)
from http_edge.cli.settings import with_settings
from http_edge.config import Settings
from http_edge.config_sources import Loaded
from http_edge.edge import Edge, listen
from http_edge.mediator_keys import load_or_create

_DECODER = msgspec.msgpack.Decoder(list[Submission])
_ENCODER = msgspec.msgpack.Encoder()
_NO_MESSAGE = "00000000-0000-4000-8000-000000000000"


class EchoHost:
    """A ``HostPort`` that passes on the edge's verdict, accepts all else and forgets it."""

    async def submit(self, batch: bytes) -> bytes:
        """Accept: messages get an id that says that there is none."""
        replies = [_reply(submission) for submission in _DECODER.decode(batch)]
        return _ENCODER.encode(BatchResult("echo", replies, []))

    async def read(self, batch: bytes) -> list[bytes]:
        """Nothing can be read."""
        return [b""] * len(msgspec.msgpack.decode(batch))

    async def ping(self) -> str:
        """Always well."""
        return "echo"

    async def heartbeat(self, sockets: int, incarnation: str) -> str:  # noqa: ARG002
        """Never starts anew."""
        return "echo"

    async def queues(
        self,
        limit: int,  # noqa: ARG002 - the port's signature
        *,
        outbound_only: bool = False,  # noqa: ARG002
        did: str | None = None,  # noqa: ARG002
    ) -> bytes:
        """Nothing waits."""
        return msgspec.msgpack.encode([])

    async def inspect(self, question: bytes) -> bytes:  # noqa: ARG002 - the port's signature
        """Nothing is in memory."""
        return msgspec.msgpack.encode(NotOwned())

    async def stats(self) -> bytes:
        """No figures."""
        return _ENCODER.encode({"name": "echo"})

    async def knows(self, did: str) -> bool:  # noqa: ARG002 - the port's signature
        """Everybody is known."""
        return True


def _reply(submission: Submission) -> Reply:
    if submission.refusal is not None:  # the edge's own verdict, which a host passes on
        return Refused(submission.refusal)
    match submission.command:
        case QueueMessage():
            return MessageAccepted(_NO_MESSAGE)
        case QueueEnvelope():
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
    listener = listen(settings)
    settings = settings.bound_to(listener.getsockname()[1])
    edge = Edge("echo", settings, load_or_create(settings.keys_path), lambda _: host)
    await edge.start(listener)
    click.echo(f"ready {settings.url} {settings.mediator_did}")
    await stopped.wait()
    await edge.stop()


@click.command()
@with_settings()
def main(loaded: Loaded) -> None:
    """Run the edge without a mediator behind it."""
    Path(loaded.settings.data_dir).mkdir(parents=True, exist_ok=True)
    uvloop.run(serve(loaded.settings))


if __name__ == "__main__":
    main()
