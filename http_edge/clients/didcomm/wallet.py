"""A wallet of DIDComm v1: everything that an Aries wallet can request of its mediator."""

from __future__ import annotations

import aiohttp

from http_edge.clients.didcomm.connected_wallet import ConnectedWallet
from http_edge.clients.didcomm.connection import Connection, open_for
from http_edge.clients.didcomm.documents import QUEUE
from http_edge.clients.didcomm.errors import UnexpectedAnswer
from http_edge.clients.didcomm.handshake import DidMethod, Handshake, HandshakeProtocol
from http_edge.clients.didcomm.invitation import Invitation, fetch_invitation, read_invitation
from http_edge.clients.didcomm.mediation import Mediation, SpeaksMediation
from http_edge.clients.didcomm.pickup_1 import SpeaksPickup1
from http_edge.clients.didcomm.protocol_session import check_registered
from http_edge.clients.didcomm.queue_1 import SpeaksQueue1
from http_edge.clients.didcomm.recipients import Recipient
from http_edge.clients.didcomm.transport import Socket, Transport, post
from http_edge.didcomm.envelopes.keys import KeyPair
from http_edge.didcomm.envelopes.messages import Json


class Wallet(SpeaksMediation, ConnectedWallet, SpeaksPickup1, SpeaksQueue1):
    """A DIDComm v1 wallet at one mediator, over HTTP unless ``over`` a socket.

    ``connect`` makes it, or the caller does from a stored connection. The session stays open.
    """

    connection: Connection

    def __init__(
        self,
        connection: Connection,
        *,
        session: aiohttp.ClientSession,
        transport: Transport | None = None,
        mediation: Mediation | None = None,
    ) -> None:
        super().__init__(connection, session=session, transport=transport)
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
        """Follow an invitation: its object, its JSON text, a URL with it, or a URL that returns it.

        ``endpoint`` is this wallet's own endpoint; None means that it fetches its messages.
        ``key`` is the connection's, by default a fresh one. Connecting again with the same key is
        harmless, even by a single-use invitation whose answer was lost.

        Raises:
            UnusableInvitation: the source is no invitation.
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
        """The same wallet over a socket."""
        return Wallet(
            self.connection, session=self.session, transport=socket, mediation=self.mediation
        )

    # ---- recipients

    async def new_recipient(self) -> Recipient:
        """Register a fresh key for one correspondent; first request mediation if needed.

        Raises:
            ProblemReported: mediation is denied, or the key is not registered.
        """
        if self.mediation is None:
            self.mediation = await self.request_mediation()
        recipient = Recipient(KeyPair.new(), self.mediation)
        results = await self.update_keylist(add=[recipient.key.public])
        check_registered("key", [changed.result for changed in results])
        return recipient


async def _invitation(
    session: aiohttp.ClientSession, source: Invitation | Json | str
) -> Invitation:
    if isinstance(source, Invitation):
        return source
    if isinstance(source, dict) or source.lstrip().startswith("{"):
        return read_invitation(source)
    return await fetch_invitation(session, source)
