"""A wallet with its one mediator: everything that an Aries wallet can ask of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import aiohttp
import msgspec

from http_edge.clients.didcomm.connection import Connection, open_for
from http_edge.clients.didcomm.documents import QUEUE
from http_edge.clients.didcomm.errors import ProblemReported, UnexpectedAnswer
from http_edge.clients.didcomm.handshake import DidMethod, Handshake, HandshakeProtocol
from http_edge.clients.didcomm.invitation import Invitation, fetch_invitation, read_invitation
from http_edge.clients.didcomm.mediation import Mediation, SpeaksMediation
from http_edge.clients.didcomm.pickup_1 import SpeaksPickup1
from http_edge.clients.didcomm.pickup_2 import Live, SpeaksPickup2
from http_edge.clients.didcomm.protocol_session import check_problem, prepared, record_of
from http_edge.clients.didcomm.queue_1 import SpeaksQueue1
from http_edge.clients.didcomm.recipients import Recipient
from http_edge.clients.didcomm.transport import Http, Socket, Transport, open_socket, post
from http_edge.didcomm.envelopes.keys import KeyPair
from http_edge.didcomm.envelopes.messages import NEW_PREFIX, Json

_PING: Final = "trust_ping/1.0/ping"
_EVERYTHING: Final = (("protocol", "*"),)


class Disclosure(msgspec.Struct, frozen=True):
    """One feature of the mediator (RFC 0557)."""

    feature_type: str = msgspec.field(name="feature-type")
    id: str
    roles: tuple[str, ...] = ()


class Wallet(SpeaksMediation, SpeaksPickup2, SpeaksPickup1, SpeaksQueue1):
    """One mediator as the wallet sees it, over HTTP unless ``over`` a socket.

    Made by ``connect``, or of a connection that was kept. The session stays open.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        session: aiohttp.ClientSession,
        transport: Transport | None = None,
        mediation: Mediation | None = None,
    ) -> None:
        super().__init__(connection, transport or Http(connection, session))
        self.session: Final = session
        self.mediation = mediation

    @classmethod
    async def connect(  # noqa: PLR0913 - the choices of a handshake
        cls,
        invitation: Invitation | Json | str,
        *,
        session: aiohttp.ClientSession,
        handshake: HandshakeProtocol = "didexchange/1.1",
        did_method: DidMethod = "peer4",
        endpoint: str | None = None,
        label: str = "wallet",
        key: KeyPair | None = None,
    ) -> Wallet:
        """Follow an invitation: its object, its JSON text, a URL with it, or one that gives it.

        ``endpoint`` is where this wallet takes messages; None means that it fetches them.
        ``key`` is the connection's; a fresh one if it is not given.

        Raises:
            UnusableInvitation: it is no invitation.
            ProblemReported: the mediator refuses the connection.
            NotAuthentic: the answer is not proven by the key in the invitation.
            MediatorRefused, MediatorUnreachable, UnexpectedAnswer: see ``transport``.
        """
        shaking = Handshake(
            invitation=await _invitation(session, invitation),
            key=key or KeyPair.new(),
            protocol=handshake,
            did_method=did_method,
            endpoint=QUEUE if endpoint is None else endpoint,
            label=label,
        )
        posted = await post(session, shaking.invitation.endpoint, shaking.packed_request())
        answer = open_for(shaking.key, posted.body) if posted.body else None
        if answer is None:
            raise UnexpectedAnswer("the request was not answered")
        wallet = cls(shaking.accept(answer), session=session)
        await wallet.ask(shaking.completion(), return_route="none")
        return wallet

    def over(self, socket: Socket) -> Wallet:
        """The same wallet, asking over a socket."""
        return Wallet(
            self.connection, session=self.session, transport=socket, mediation=self.mediation
        )

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
            live = Live(self.connection, socket)
            if (await live.live_delivery(on=True)).live_delivery is False:
                raise UnexpectedAnswer("the mediator says that live delivery is off")
            yield live

    # ---- what needs no mediation

    async def ping(self) -> None:
        """Ask for a sign of life and get it (RFC 0048).

        Raises: ProblemReported, WalletError (see ``ProtocolSession.request``).
        """
        await self.request(_PING, "ping_response")

    async def discover(
        self, queries: Sequence[tuple[str, str]] = _EVERYTHING
    ) -> tuple[Disclosure, ...]:
        """Features by type and pattern (RFC 0557); all protocols unless others are named.

        Raises: ProblemReported, WalletError (see ``ProtocolSession.request``).
        """
        answer = await self.request(
            "discover-features/2.0/queries",
            "disclosures",
            queries=[{"feature-type": kind, "match": match} for kind, match in queries],
        )
        return record_of(answer.get("disclosures"), tuple[Disclosure, ...])

    # ---- implicit pickup

    async def implicit(self) -> bytes | None:
        """One waiting envelope by return route alone, or None; over HTTP (RFC 0092).

        Raises: ProblemReported, WalletError (see the transport).
        """
        http = Http(self.connection, self.session)
        answer = await http.exchange(prepared(_silent_ping(), "all"), raw=True)
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
            await socket.say(prepared(_silent_ping(), "all"))
            yield socket

    # ---- recipients

    async def new_recipient(self) -> Recipient:
        """A fresh key in the keylist, for one correspondent; asks for mediation where needed.

        Raises:
            ProblemReported: mediation is denied, or the key is not registered.
            WalletError: see ``ProtocolSession.request``.
        """
        if self.mediation is None:
            self.mediation = await self.request_mediation()
        recipient = Recipient(KeyPair.new(), self.mediation)
        for changed in await self.update_keylist(add=[recipient.key.public]):
            if changed.result != "success":
                raise ProblemReported(changed.result, "the key was not registered", {})
        return recipient


def _silent_ping() -> Json:
    return {"@type": NEW_PREFIX + _PING, "response_requested": False}


async def _invitation(
    session: aiohttp.ClientSession, source: Invitation | Json | str
) -> Invitation:
    if isinstance(source, Invitation):
        return source
    if isinstance(source, dict) or source.lstrip().startswith("{"):
        return read_invitation(source)
    return await fetch_invitation(session, source)
