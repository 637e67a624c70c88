"""What a connected wallet does in either generation: sockets, live mode, pings, implicit pickup."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import aiohttp
import msgspec

from http_edge.clients.didcomm.connection import MediatorConnection
from http_edge.clients.didcomm.errors import UnexpectedAnswer
from http_edge.clients.didcomm.pickup import Live, SpeaksPickup
from http_edge.clients.didcomm.protocol_session import check_problem, prepared, record_of
from http_edge.clients.didcomm.transport import Http, Socket, Transport, open_socket
from http_edge.didcomm.envelopes.messages import NEW_PREFIX, Json

_EVERYTHING: Final = (("protocol", "*"),)


class Disclosure(msgspec.Struct, frozen=True):
    """One feature of the mediator (RFC 0557)."""

    feature_type: str = msgspec.field(name="feature-type")
    id: str
    roles: tuple[str, ...] = ()


class ConnectedWallet(SpeaksPickup):
    """One mediator as the wallet sees it, over HTTP unless over another transport.

    ``ping_protocol`` and ``ping_response`` are how its generation pings. The session stays open.
    """

    ping_protocol = "trust_ping/1.0"
    ping_response = "ping_response"

    def __init__(
        self,
        connection: MediatorConnection,
        *,
        session: aiohttp.ClientSession,
        transport: Transport | None = None,
    ) -> None:
        super().__init__(connection, transport or Http(connection, session))
        self.session: Final = session

    @asynccontextmanager
    async def socket(self) -> AsyncIterator[Socket]:
        """A WebSocket that has said nothing yet.

        Raises:
            MediatorUnreachable: it did not open.
        """
        async with open_socket(self.session, self.connection) as socket:
            yield socket

    @asynccontextmanager
    async def live(self) -> AsyncIterator[Live]:
        """A WebSocket in live mode (RFC 0685).

        Raises:
            ProblemReported, WalletError: the mediator does not turn it on.
        """
        async with self.socket() as socket:
            live = Live(self.connection, socket, self.pickup)
            if (await live.live_delivery(on=True)).live_delivery is False:
                raise UnexpectedAnswer("the mediator says that live delivery is off")
            yield live

    # ---- what needs no mediation

    async def ping(self) -> None:
        """Ask for a sign of life and get it (RFC 0048).

        Raises: ProblemReported, WalletError (see ``ProtocolSession.request``).
        """
        await self.request(f"{self.ping_protocol}/ping", self.ping_response)

    async def discover(
        self, queries: Sequence[tuple[str, str]] = _EVERYTHING
    ) -> tuple[Disclosure, ...]:
        """Features by type and pattern (RFC 0557); all protocols unless others are named.

        Raises: ProblemReported, WalletError (see ``ProtocolSession.request``).
        """
        answer = await self.request(
            "discover-features/2.0/queries",
            "disclosures|disclose",
            queries=[{"feature-type": kind, "match": match} for kind, match in queries],
        )
        return record_of(answer.get("disclosures"), tuple[Disclosure, ...])

    # ---- implicit pickup

    async def implicit(self) -> bytes | None:
        """One waiting envelope by return route alone, or None; over HTTP (RFC 0092).

        Raises: ProblemReported, WalletError (see the transport).
        """
        http = Http(self.connection, self.session)
        answer = await http.exchange(prepared(self._silent_ping(), "all"), raw=True)
        if isinstance(answer, dict):
            check_problem(answer)
            raise UnexpectedAnswer(f"{answer.get('@type')!r} came back for a silent ping")
        return answer

    @asynccontextmanager
    async def implicit_socket(self) -> AsyncIterator[Socket]:
        """A WebSocket with an open return route: whatever waits comes on it (RFC 0092).

        Raises:
            MediatorUnreachable: it did not open.
        """
        async with self.socket() as socket:
            await socket.say(prepared(self._silent_ping(), "all"))
            yield socket

    def _silent_ping(self) -> Json:
        return {"@type": f"{NEW_PREFIX}{self.ping_protocol}/ping", "response_requested": False}
