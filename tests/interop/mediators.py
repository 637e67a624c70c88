"""The mediators that the scenarios are played with: Poste, and ACA-Py itself as a control."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final, Protocol, Self
from urllib.parse import parse_qs, urlsplit

import aiohttp

from eventstore.log.codec import decode_whole
from eventstore.log.events import Event, MessageQueued
from tests.cluster.server import Server
from tests.interop.acapy import MEDIATOR, AcaPyAgent
from tests.interop.recording_proxy import digest
from tests.interop.wallets import Handshake, Wallet
from tests.interop.webhooks import Webhooks

SETTINGS: Final = {
    # The wallets of the scenarios have their endpoints on this machine.
    "outbound.allowed_networks": "127.0.0.0/8",
    # A wallet that comes back is found soon.
    "outbound.retry_s_max": "1",
}
POSTE_LOG: Final = Path("poste/stderr")
"""Where Poste's words are, from the directory of its scenario."""
_PARAMETERS: Final = ("oob", "c_i")
_PAGE: Final = 1_000
_PAGE_BYTES: Final = 1_000_000_000


class Mediator(Protocol):
    """A mediator; a context manager that starts and stops it."""

    async def invitation(self, handshake: Handshake) -> dict[str, Any]:
        """Its invitation, as a wallet finds it."""

    async def __aenter__(self) -> Self:
        """Start."""

    async def __aexit__(self, *_: object) -> None:
        """Stop."""


class Poste:
    """``poste serve`` with all its processes, on one data directory and one port."""

    def __init__(self, home: Path, **settings: str) -> None:
        self._server = Server(home / POSTE_LOG.parent, **SETTINGS, **settings)

    async def invitation(self, handshake: Handshake) -> dict[str, Any]:
        """What the URL that ``/invitation`` redirects to holds."""
        return invitation_in(await self.invitation_url(handshake))

    async def invitation_url(self, handshake: Handshake) -> str:
        """The URL that ``/invitation`` redirects to, as a wallet scans it."""
        family = "connections" if handshake is Handshake.CONNECTIONS else "out-of-band"
        path = f"{self._server.url}/invitation?protocol={family}"
        async with (
            aiohttp.ClientSession() as client,
            client.get(path, allow_redirects=False) as answer,
        ):
            return answer.headers["Location"]

    async def kill_and_restart(self) -> None:
        """``kill -9`` of every process at once, then a new start on the same directory and port."""
        await _to_its_end(self._server.kill_everything)
        await _to_its_end(self._server.start)

    def position(self) -> int:
        """Where the event log ends now."""
        with closing(self._server.log()) as log:
            return log.position()

    def waiting(self) -> int:
        """Messages that wait in all queues."""
        with closing(self._server.log()) as log:
            return log.figures().queue_messages

    def queued(self, *, after: int) -> list[str]:
        """Digests of the forwarded envelopes queued since this position, oldest first."""
        return [
            digest(event.payload.data)
            for event in self._events(after)
            if isinstance(event, MessageQueued)
            and event.recipient_key
            and event.payload.stored is not None
        ]

    def _events(self, after: int) -> Sequence[Event]:
        found: list[Event] = []
        with closing(self._server.log()) as log:
            while rows := log.read_rows(after=after, rows_max=_PAGE, bytes_max=_PAGE_BYTES):
                found += [decode_whole(row.topic, row.state, row.content) for row in rows]
                after = rows[-1].position
        return found

    async def __aenter__(self) -> Self:
        try:
            await _to_its_end(self._server.start)
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        await _to_its_end(lambda: self._server.__exit__(*error))


class AcaPyMediator:
    """An ACA-Py agent that grants mediation to any agent, and keeps nothing for the absent."""

    def __init__(self, program: Path, home: Path) -> None:
        self._agent = AcaPyAgent(program, home, "mediator", flags=MEDIATOR)

    async def invitation(self, handshake: Handshake) -> dict[str, Any]:
        """A new invitation."""
        _, invitation = await Wallet(self._agent, Webhooks(), handshake).invite()
        return invitation

    async def __aenter__(self) -> Self:
        await self._agent.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._agent.stop()


async def _to_its_end(work: Callable[[], None]) -> None:
    """Do blocking work in a thread, all of it even when cancelled: no start is left half done."""
    doing = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        await asyncio.shield(doing)
    except asyncio.CancelledError:
        await asyncio.wait([doing])
        raise


def invitation_in(url: str) -> dict[str, Any]:
    """The invitation in a URL that a wallet scans (RFC 0434, RFC 0160)."""
    query = parse_qs(urlsplit(url).query)
    (text,) = (value for name in _PARAMETERS for value in query.get(name, []))
    invitation: dict[str, Any] = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    return invitation
