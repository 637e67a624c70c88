"""Wallets of DIDComm v1 and v2: everything that they can request of their mediator."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, Self

import aiohttp

from http_edge.clients.didcomm.connected_wallet import ConnectedWallet
from http_edge.clients.didcomm.connection import (
    QUEUE,
    Connection,
    Connection2,
    DidMethod2,
    endpoints_of,
    open_for,
)
from http_edge.clients.didcomm.errors import UnexpectedAnswer, UnusableInvitation
from http_edge.clients.didcomm.handshake import DidMethod, Handshake, HandshakeProtocol
from http_edge.clients.didcomm.invitation import (
    Invitation,
    Invitation2,
    fetch_invitation,
    fetch_invitation_2,
    read_invitation,
)
from http_edge.clients.didcomm.mediation import (
    MEDIATION_2,
    Mediation,
    MediationVersion,
    SpeaksMediation,
    SpeaksMediation2,
)
from http_edge.clients.didcomm.older_pickup import SpeaksOlderPickup
from http_edge.clients.didcomm.pickup import PICKUP_3, PickupVersion
from http_edge.clients.didcomm.protocol_session import check_registered
from http_edge.clients.didcomm.recipients import Recipient, Recipient2
from http_edge.clients.didcomm.transport import post
from http_edge.clients.sources import Sources
from http_edge.didcomm.envelopes.keys import KeyPair
from http_edge.didcomm.envelopes.messages import NEW_PREFIX, DidRotation, Json
from http_edge.didcomm.envelopes.v2.signed import write_from_prior

_now_ms: Final = Sources().now_ms
"""Returns the time at which a DID is given up."""


class Wallet(SpeaksMediation, ConnectedWallet, SpeaksOlderPickup):
    """A DIDComm v1 wallet at one mediator, over HTTP unless ``over`` a socket.

    ``connect`` makes it, or the caller does from a stored connection. The session stays open.
    """

    connection: Connection

    def __init__(
        self,
        connection: Connection,
        *,
        session: aiohttp.ClientSession,
        mediation: Mediation | None = None,
    ) -> None:
        super().__init__(connection, session=session)
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

    # ---- recipients

    async def new_recipient(self, *, key: KeyPair | None = None) -> Recipient:
        """Register a key for one correspondent, by default a fresh one.

        Mediation is requested first if needed. To repeat it with the same key is harmless, as after
        an answer that was lost.

        Raises:
            ProblemReported: mediation is denied, or the key is not registered.
        """
        if self.mediation is None:
            self.mediation = await self.request_mediation()
        recipient = Recipient(key or KeyPair.new(), self.mediation)
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
        pickup: PickupVersion = PICKUP_3,
        mediation: MediationVersion = MEDIATION_2,
        routing_did: str = "",
    ) -> None:
        super().__init__(connection, session=session)
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
        mediation: MediationVersion = MEDIATION_2,
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
        asking.routing_did = await asking.request_mediation(found.id)
        return asking._with(replace(connection, is_known=True))

    async def request_mediation(self, invitation_id: str = "") -> str:
        """Request mediation as ``SpeaksMediation2`` does, over HTTP and by the whole DID.

        A mediator that has ended the account may not know the short one.
        """
        whole = self._with(replace(self.connection, is_known=False))
        return await SpeaksMediation2.request_mediation(whole, invitation_id)

    async def new_recipient(
        self, method: DidMethod2 = "peer4", *, key: KeyPair | None = None
    ) -> Recipient2:
        """Register a DID of a key for one correspondent, by default of a fresh one.

        To repeat it with the same key is harmless, as after an answer that was lost.

        Raises:
            ProblemReported: the DID is not registered.
        """
        recipient = Recipient2(key or KeyPair.new(), self.routing_did, method)
        results = await self.update_recipients(add=[recipient.did])
        check_registered("DID", [changed.result for changed in results])
        return recipient

    # ---- its own DID

    async def rotate(self, key: KeyPair) -> Self:
        """Let the DID of another key speak for this wallet's account; keylist and queue stay.

        Return the wallet under its new DID, over HTTP; the mediator refuses the prior DID from then
        on. ``key`` must not have an account. Store it first: after an error that leaves the outcome
        open, only a repetition with the same key does not lose the account. The mediator closes the
        sockets on which messages of the prior DID come.

        Raises:
            ProblemReported: with ``e.p.req.not_enroll`` the rotation was refused, and this wallet
                stays as it is; with any other code it may have taken effect.
            MediatorRefused, MediatorUnreachable, UnexpectedAnswer: it may have taken effect.
        """
        new = replace(self.connection, key=key, is_known=False)
        # What only an account gets: a mediator answers a ping whatever the proof is worth.
        status = f"{self.pickup.protocol}/status-request"
        await self._with(new).request(status, "status", **_from_prior(self.connection, new.did))
        return self._with(replace(new, is_known=True))

    async def end(self) -> None:
        """End the account with keylist, queue, sockets, over HTTP; to repeat it changes nothing."""
        # By the whole DID: a mediator that has ended the account may not know the short one.
        whole = replace(self.connection, is_known=False)
        parting = {"@type": f"{NEW_PREFIX}empty/1.0/empty", **_from_prior(whole, None)}
        await self._with(whole).ask(parting, return_route="none")

    def _with(self, connection: Connection2) -> Self:
        return type(self)(
            connection,
            session=self.session,
            pickup=self.pickup,
            mediation=self.mediation_version,
            routing_did=self.routing_did,
        )


def _from_prior(given_up: Connection2, new_did: str | None) -> Json:
    """Return the proof that a wallet's DID is given up, as a member of a message."""
    own = given_up.own.by_kid[given_up.did]
    rotation = DidRotation(given_up.did, new_did, _now_ms() // 1000)
    return {"~from_prior": write_from_prior(rotation, own.signing_kid, given_up.key)}
