"""A connected wallet of either generation: sockets, live mode, pings, implicit pickup."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from copy import copy
from typing import Final, Literal, Self

import aiohttp
import msgspec

from http_edge.clients.didcomm.connection import MediatorConnection
from http_edge.clients.didcomm.errors import UnexpectedAnswer
from http_edge.clients.didcomm.pickup import Live, SpeaksPickup
from http_edge.clients.didcomm.protocol_session import check_problem, prepared, record_of
from http_edge.clients.didcomm.transport import Http, Socket, Transport, open_socket
from http_edge.didcomm.envelopes.messages import NEW_PREFIX, Json

PushService = Literal["fcm", "apns"]
_EVERYTHING: Final = (("protocol", "*"),)


class Disclosure(msgspec.Struct, frozen=True):
    """One feature of the mediator (RFC 0557)."""

    feature_type: str = msgspec.field(name="feature-type")
    id: str
    roles: tuple[str, ...] = ()


class PushDevice(msgspec.Struct, frozen=True):
    """The device that is notified of waiting messages."""

    token: str = msgspec.field(name="device_token")
    platform: str = msgspec.field(name="device_platform", default="")


class ConnectedWallet(SpeaksPickup):
    """A wallet connected to one mediator, over HTTP unless ``over`` a socket.

    ``ping_protocol`` and ``ping_response`` name the ping of its generation. The session stays open.
    """

    ping_protocol = "trust_ping/1.0"
    ping_response = "ping_response"

    def __init__(self, connection: MediatorConnection, *, session: aiohttp.ClientSession) -> None:
        super().__init__(connection, Http(connection, session))
        self.session: Final = session

    def over(self, transport: Transport) -> Self:
        """The same wallet over a socket."""
        wallet = copy(self)
        wallet.transport = transport
        return wallet

    def socket(self) -> AbstractAsyncContextManager[Socket]:
        """Open a WebSocket; nothing is sent on it yet.

        Raises:
            MediatorUnreachable: the socket did not open.
        """
        return open_socket(self.session, self.connection)

    @asynccontextmanager
    async def live(self) -> AsyncIterator[Live]:
        """Open a WebSocket in live mode (RFC 0685).

        Raises:
            ProblemReported, WalletError: the mediator does not turn live mode on.
        """
        async with self.socket() as socket:
            live = Live(self.connection, socket, self.pickup)
            if (await live.live_delivery(on=True)).live_delivery is False:
                raise UnexpectedAnswer("the mediator says that live delivery is off")
            yield live

    # ---- without mediation

    async def ping(self) -> None:
        """Ping the mediator and wait for its answer (RFC 0048)."""
        await self.request(f"{self.ping_protocol}/ping", self.ping_response)

    async def discover(
        self, queries: Sequence[tuple[str, str]] = _EVERYTHING
    ) -> tuple[Disclosure, ...]:
        """Query features by type and pattern (RFC 0557); by default all protocols."""
        answer = await self.request(
            "discover-features/2.0/queries",
            "disclosures|disclose",
            queries=[{"feature-type": kind, "match": match} for kind, match in queries],
        )
        return record_of(answer.get("disclosures"), tuple[Disclosure, ...])

    async def set_push_device(
        self, token: str | None, platform: str | None = None, *, service: PushService = "fcm"
    ) -> None:
        """Name the device to notify of waiting messages; None for no device (RFC 0734, RFC 0699).

        ``platform`` is for FCM alone. The device replaces the one before, whatever its service.
        """
        members = {"device_platform": platform} if service == "fcm" else {}
        kind = f"push-notifications-{service}/1.0/set-device-info"
        await self.request(kind, "ack", device_token=token, **members)

    async def push_device(self, *, service: PushService = "fcm") -> PushDevice:
        """Query the device to notify of waiting messages, at this push service.

        Raises:
            ProblemReported: there is none.
        """
        kind = f"push-notifications-{service}/1.0/get-device-info"
        return record_of(await self.request(kind, "device-info"), PushDevice)

    # ---- implicit pickup

    async def implicit(self) -> bytes | None:
        """Fetch one waiting envelope by return route alone, over HTTP (RFC 0092); None for none.

        It may be an answer of the mediator that waited; ``connection.open`` opens that.

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
        """Open a WebSocket with a return route, on which all waiting messages come (RFC 0092).

        A message leaves its queue once ``receive`` has returned it and what came with it, up to 20
        messages. What ``receive`` has not returned when the program ends, or leaves the block,
        comes again; what it has returned and the program has not processed may be lost. Live mode
        and ``drain`` keep each message until it is acknowledged.

        Raises:
            MediatorUnreachable: the socket did not open.
        """
        async with self.socket() as socket:
            await socket.say(prepared(self._silent_ping(), "all"))
            yield socket

    def _silent_ping(self) -> Json:
        return {"@type": f"{NEW_PREFIX}{self.ping_protocol}/ping", "response_requested": False}
