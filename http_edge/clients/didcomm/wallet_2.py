"""A wallet of DIDComm v2: everything that such an agent can request of its mediator."""

from __future__ import annotations

from dataclasses import replace

import aiohttp

from http_edge.clients.didcomm.connected_wallet import ConnectedWallet
from http_edge.clients.didcomm.connection_2 import (
    Connection2,
    DidMethod2,
    endpoints_of,
)
from http_edge.clients.didcomm.documents import QUEUE
from http_edge.clients.didcomm.errors import UnusableInvitation
from http_edge.clients.didcomm.invitation import Invitation2, fetch_invitation_2
from http_edge.clients.didcomm.mediation_2 import MediationVersion, SpeaksMediation2
from http_edge.clients.didcomm.pickup import PICKUP_3, PickupVersion
from http_edge.clients.didcomm.protocol_session import check_registered
from http_edge.clients.didcomm.recipients_2 import Recipient2
from http_edge.clients.didcomm.transport import Socket, Transport
from http_edge.didcomm.envelopes.keys import KeyPair


class Wallet2(SpeaksMediation2, ConnectedWallet):
    """A DIDComm v2 wallet at one mediator, over HTTP unless ``over`` a socket.

    There is no handshake: ``connect`` finds the mediator's endpoints, and the first request
    establishes the relation. ``routing_did`` is the DID that the mediator granted, or empty.
    """

    ping_protocol = "trust-ping/2.0"
    ping_response = "ping-response"

    connection: Connection2

    def __init__(
        self,
        connection: Connection2,
        *,
        session: aiohttp.ClientSession,
        transport: Transport | None = None,
        pickup: PickupVersion = PICKUP_3,
        mediation: MediationVersion = "2.0",
        routing_did: str = "",
    ) -> None:
        super().__init__(connection, session=session, transport=transport)
        self.pickup = pickup
        self.mediation_version = mediation
        self.routing_did = routing_did

    @classmethod
    async def connect(  # noqa: PLR0913 - the choices of a wallet
        cls,
        invitation: Invitation2 | str,
        *,
        session: aiohttp.ClientSession,
        did_method: DidMethod2 = "peer4",
        endpoint: str | None = None,
        pickup: PickupVersion = PICKUP_3,
        mediation: MediationVersion = "2.0",
        key: KeyPair | None = None,
    ) -> Wallet2:
        """Follow an out-of-band 2.0 invitation: its object, a URL with it, or one that returns it.

        ``endpoint`` is this wallet's own endpoint; None means that it fetches its messages. ``key``
        is the connection's, by default a fresh one. Mediation is requested at once: by this request
        the mediator learns which invitation the wallet follows.

        Raises:
            UnusableInvitation: the source is no invitation, or its DID has no key and endpoint.
            ProblemReported: the mediator denies mediation.
        """
        found = invitation
        if isinstance(found, str):
            found = await fetch_invitation_2(session, found)
        http_url, ws_url = endpoints_of(found.did)
        if not http_url:
            raise UnusableInvitation(f"{found.did} has no endpoint in its document")
        connection = Connection2(
            key or KeyPair.new(), did_method, endpoint or QUEUE, found.did, http_url, ws_url
        )
        asking = cls(connection, session=session, pickup=pickup, mediation=mediation)
        granted = await asking.request_mediation(found.id)
        return cls(
            replace(connection, is_known=True),
            session=session,
            pickup=pickup,
            mediation=mediation,
            routing_did=granted,
        )

    def over(self, socket: Socket) -> Wallet2:
        """The same wallet over a socket."""
        return Wallet2(
            self.connection,
            session=self.session,
            transport=socket,
            pickup=self.pickup,
            mediation=self.mediation_version,
            routing_did=self.routing_did,
        )

    async def new_recipient(self, method: DidMethod2 = "peer4") -> Recipient2:
        """Register a fresh DID for one correspondent.

        Raises:
            ProblemReported: the DID is not registered.
        """
        recipient = Recipient2(KeyPair.new(), self.routing_did, method)
        results = await self.update_recipients(add=[recipient.did])
        check_registered("DID", [changed.result for changed in results])
        return recipient
