"""Composition of the DIDComm half of one edge from its parts."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from http import HTTPStatus
from typing import Final

import msgspec
from aiohttp import hdrs, web

from actors.core.rate_limits import RateLimit
from actors.host.clock import Clock
from http_edge.crypto.mediator_keys import MediatorKeys, service_seed
from http_edge.didcomm.accounts import Accounts
from http_edge.didcomm.delivery.waiting import Waiting
from http_edge.didcomm.envelopes.key_agreement import PrivateKey
from http_edge.didcomm.envelopes.keys import KeyPair
from http_edge.didcomm.envelopes.own_dids import OwnDids, own_services
from http_edge.didcomm.envelopes.versions import MEDIA_TYPES, Envelopes
from http_edge.didcomm.http_endpoint import DidCommEndpoint, error_answer
from http_edge.didcomm.identities import Identities
from http_edge.didcomm.inbound import Inbound
from http_edge.didcomm.inbound_sockets import SocketDependencies
from http_edge.didcomm.invitation_page import InvitationPage
from http_edge.didcomm.outbound.pool import DeliveryWorkers
from http_edge.didcomm.protocols import notifications, pickup, push_notifications, trust_ping
from http_edge.didcomm.protocols.admission import Admission
from http_edge.didcomm.protocols.connections import Connections
from http_edge.didcomm.protocols.coordinate_mediation import FORMS as MEDIATIONS
from http_edge.didcomm.protocols.coordinate_mediation import CoordinateMediation
from http_edge.didcomm.protocols.did_exchange import DidExchange
from http_edge.didcomm.protocols.discover_features import DiscoverFeatures
from http_edge.didcomm.protocols.enrolment import Enrolment
from http_edge.didcomm.protocols.handshake import HandshakeResponder
from http_edge.didcomm.protocols.invitations import INVITATION_PATH, Invitations
from http_edge.didcomm.protocols.keylists import Keylists
from http_edge.didcomm.protocols.out_of_band import OUT_OF_BAND_2, OutOfBand
from http_edge.didcomm.protocols.own_address import OwnAddress
from http_edge.didcomm.protocols.pickup_1 import Pickup1
from http_edge.didcomm.protocols.protocol import ProtocolTable
from http_edge.didcomm.protocols.queue_1 import Queue1
from http_edge.didcomm.protocols.routing import FAMILIES as ROUTING
from http_edge.didcomm.protocols.routing import Forwarding
from http_edge.didcomm.push.notifier import PushNotifier
from http_edge.didcomm.reading import MessageReader
from http_edge.didcomm.sockets import DidCommSockets
from http_edge.didcomm.traffic import Traffic
from http_edge.didcomm.unknown_dids import AgentDids, UnknownDids
from http_edge.dispatch.hub import Hub
from http_edge.listener.routes import BodyRoute, PlainRoute, RouteGroup, SocketRoute
from http_edge.settings.settings import Settings
from http_edge.telemetry.edge_measures import EdgeMeasures
from http_edge.telemetry.refusal_counts import DIDCOMM, RefusalCounts

PATH: Final = "/didcomm"
"""Path to which agents post envelopes and open sockets."""
_PSEUDONYM_BYTES: Final = 8


class DidCommDependencies(msgspec.Struct, frozen=True):
    """Dependencies that the DIDComm half shares with the rest of its edge."""

    settings: Settings
    identities: Identities
    keylists: Keylists
    hub: Hub
    workers: DeliveryWorkers
    push: PushNotifier | None
    clock: Clock
    refusals: RefusalCounts
    measures: EdgeMeasures
    fetched: AgentDids | None
    """Fetcher of agents' DID documents, if the operator allows fetching."""
    former_urls: Sequence[str]
    """URLs that this mediator had: agents may still know it by DIDs that contain one of them."""


def pseudonym(keys: MediatorKeys) -> str:
    """Return the mediator's pseudonym for ``Via`` (RFC 9110 7.6.3), which detects message loops.

    It reveals only that two messages came through the same mediator.
    """
    digest = blake2b(KeyPair.from_seed(service_seed(keys)).public, digest_size=_PSEUDONYM_BYTES)
    return f"poste-{digest.hexdigest()}"


def invitations_of(settings: Settings, key: KeyPair) -> Invitations:
    """Return the invitations of the mediator with these settings."""
    didcomm = settings.didcomm
    return Invitations(key, didcomm.label, settings.url + PATH, public=didcomm.invites_everyone)


def own_dids_of(settings: Settings, keys: MediatorKeys, former_urls: Sequence[str] = ()) -> OwnDids:
    """Return the DIDComm v2 DIDs of the mediator with these settings, and these URLs before."""
    return OwnDids(
        KeyPair.from_seed(service_seed(keys)),
        own_services(settings.url + PATH),
        web_did=settings.mediator_did,
        # The document of this DID lists Decentrl's pre-key first, and some senders use the first.
        other_keys={"prekey": PrivateKey.of_x25519(keys.pre_private)},
        former_services=[own_services(url + PATH) for url in former_urls],
    )


class DidCommMediator:
    """Serves DIDComm on one edge."""

    def __init__(self, keys: MediatorKeys, dependencies: DidCommDependencies) -> None:
        settings, didcomm = dependencies.settings, dependencies.settings.didcomm
        identities, clock = dependencies.identities, dependencies.clock
        self.own_dids = own_dids_of(settings, keys, dependencies.former_urls)
        own = OwnAddress(settings.url + PATH, self.own_dids)
        fetched = dependencies.fetched
        known = None if fetched is None else fetched.known
        envelopes = Envelopes(self.own_dids, lambda: clock() // 1000, known)
        waiting = Waiting(
            dependencies.hub,
            identities,
            waiters_max=didcomm.waiters_max,
            per_identity_max=settings.limits.sockets_per_identity_max,
        )
        invitations = invitations_of(settings, self.own_dids.key)
        admission = Admission(didcomm, invitations, clock=clock)
        unknown_dids = UnknownDids(identities, envelopes.seen, fetched, self.own_dids.names)
        enrolment = Enrolment(admission, dependencies.keylists, unknown_dids.service_of, own)
        inbound = _inbound(
            envelopes,
            MessageReader(didcomm, envelopes, unknown_dids),
            _table(own, admission, enrolment, waiting, dependencies),
            enrolment,
            dependencies,
        )
        self.endpoint = DidCommEndpoint(didcomm, inbound)
        self.sockets = DidCommSockets(
            SocketDependencies(
                settings,
                envelopes,
                inbound,
                identities,
                dependencies.hub,
                waiting,
            )
        )
        self._refusals, self._pseudonym = dependencies.refusals, pseudonym(keys)
        self.page = InvitationPage(invitations, settings.url, clock=clock)

    def routes(self) -> RouteGroup:
        """Return the DIDComm routes."""
        return RouteGroup(
            DIDCOMM,
            [
                BodyRoute(PATH, self.endpoint.handle, refuse=self._refuse_envelope),
                SocketRoute(PATH, self.sockets.handle, refuse=self._refuse_loop),
                PlainRoute("GET", INVITATION_PATH, self.page.handle),
            ],
        )

    def _refuse_envelope(self, request: web.Request) -> web.Response | None:
        if request.content_type in MEDIA_TYPES:
            return self._refuse_loop(request) or self.endpoint.too_large(request)
        return self._refuse_loop(request) or self._refused(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "unsupported-media-type"
        )

    def _refuse_loop(self, request: web.Request) -> web.Response | None:
        """Refuse a message that this mediator itself sent."""
        headers = request.headers
        if hdrs.VIA in headers and any(self._pseudonym in via for via in headers.getall(hdrs.VIA)):
            return self._refused(HTTPStatus.CONFLICT, "message-loop")
        return None

    def _refused(self, status: HTTPStatus, code: str) -> web.Response:
        self._refusals.count(DIDCOMM, "", code)
        return error_answer(status, code)


def _inbound(
    envelopes: Envelopes,
    reader: MessageReader,
    table: ProtocolTable,
    enrolment: Enrolment,
    dependencies: DidCommDependencies,
) -> Inbound:
    settings, didcomm = dependencies.settings, dependencies.settings.didcomm
    identities, clock, rates = dependencies.identities, dependencies.clock, settings.rates
    return Inbound(
        didcomm,
        envelopes,
        reader,
        table,
        identities,
        Forwarding(
            identities,
            owners_remembered_max=didcomm.owners_remembered_max,
            outbound=dependencies.workers.wake,
            push=None if dependencies.push is None else dependencies.push.wake,
        ),
        accounts=Accounts(
            identities,
            dependencies.keylists,
            enrolment.reach,
            accounts_remembered_max=didcomm.accounts_remembered_max,
        ),
        traffic=Traffic(
            identities,
            idle_agents_s=settings.retention.idle_agents_s,
            remembered_max=didcomm.accounts_remembered_max,
            clock=clock,
        ),
        clock=clock,
        senders=RateLimit(rates.per_sender_per_s, burst_s=rates.burst_s, keys_max=rates.keys_max),
        sender_seen=dependencies.workers.sender_seen,
        refusals=dependencies.refusals,
        measures=dependencies.measures,
    )


def _table(
    own: OwnAddress,
    admission: Admission,
    enrolment: Enrolment,
    waiting: Waiting,
    dependencies: DidCommDependencies,
) -> ProtocolTable:
    settings, clock, push = dependencies.settings.didcomm, dependencies.clock, dependencies.push
    handshake = HandshakeResponder(admission, own)
    table = ProtocolTable()
    taken_bytes = min(settings.message_bytes_max, dependencies.settings.limits.body_bytes_max)
    features = DiscoverFeatures(table.families, taken_bytes)
    table.add(
        Connections(handshake, clock=clock).family(),
        DidExchange(handshake).family(),
        OutOfBand(admission).family(),
        OUT_OF_BAND_2,
        *trust_ping.families(),
        *features.families(),
        *notifications.families(),
        *(
            CoordinateMediation(form, enrolment, dependencies.keylists, own, settings).family()
            for form in MEDIATIONS
        ),
        *ROUTING,
        Pickup1(settings, waiting, clock=clock).family(),
        *(
            pickup.Pickup(form, settings, edge=dependencies.hub.edge, clock=clock).family()
            for form in pickup.FORMS
        ),
        Queue1(settings, clock=clock).family(),
        *push_notifications.families(push.channels if push else ()),
    )
    return table
