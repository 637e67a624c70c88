"""The DIDComm half of one edge: every part of it, put together."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

import msgspec
from aiohttp import hdrs, web

from actors.clock import Clock, NewId
from http_edge.config import Settings
from http_edge.didcomm.admission import Admission
from http_edge.didcomm.conversation import Conversation
from http_edge.didcomm.families import report_problem, routing
from http_edge.didcomm.families.connections import MINORS as CONNECTIONS_MINORS
from http_edge.didcomm.families.connections import Connections
from http_edge.didcomm.families.coordinate_mediation import CoordinateMediation, MediationTerms
from http_edge.didcomm.families.did_exchange import MINORS as DID_EXCHANGE_MINORS
from http_edge.didcomm.families.did_exchange import DidExchange
from http_edge.didcomm.families.discover_features import DiscoverFeatures
from http_edge.didcomm.families.out_of_band import OutOfBand
from http_edge.didcomm.families.pickup_1 import Pickup1
from http_edge.didcomm.families.pickup_2 import Pickup2
from http_edge.didcomm.families.queue_1 import Queue1
from http_edge.didcomm.families.table import Table
from http_edge.didcomm.families.trust_ping import TrustPing
from http_edge.didcomm.forwarding import Forwarding
from http_edge.didcomm.front import DidCommFront
from http_edge.didcomm.handshake import Handshake
from http_edge.didcomm.identities import Identities
from http_edge.didcomm.invitation_page import InvitationPage
from http_edge.didcomm.invitations import Invitations
from http_edge.didcomm.keys import KeyPair, service_key
from http_edge.didcomm.own_documents import OwnDocuments
from http_edge.didcomm.party import Front
from http_edge.didcomm.sockets import DidCommSockets
from http_edge.didcomm.waiting import Waiting
from http_edge.edge_report import EdgeMeasures
from http_edge.hub import Hub
from http_edge.mediator_keys import MediatorKeys
from http_edge.outbound.courier import Courier
from http_edge.rate_limits import RateLimit
from http_edge.refusal_counts import RefusalCounts

PATH: Final = "/didcomm"
"""Where envelopes are posted and sockets opened."""
_PSEUDONYM_BYTES: Final = 8


class Around(msgspec.Struct, frozen=True):
    """What the DIDComm half shares with the rest of its edge."""

    settings: Settings
    identities: Identities
    hub: Hub
    courier: Courier
    senders: RateLimit
    clock: Clock
    new_id: NewId
    refusals: RefusalCounts
    measures: EdgeMeasures


def pseudonym(keys: MediatorKeys) -> str:
    """What this mediator is known by in ``Via`` (RFC 9110 7.6.3): messages must not go in circles.

    It says no more than that two messages came through the same mediator.
    """
    digest = blake2b(service_key(keys).public, digest_size=_PSEUDONYM_BYTES)
    return f"poste-{digest.hexdigest()}"


def invitations_of(settings: Settings, key: KeyPair) -> Invitations:
    """The invitations of the mediator with these settings."""
    public = settings.didcomm.registration in {"open", "allow_list"}
    return Invitations(key, settings.didcomm.label, settings.url + PATH, public=public)


class Mediation:
    """Serves DIDComm on one edge."""

    def __init__(self, keys: MediatorKeys, around: Around) -> None:
        """Mediation under the DIDComm key that follows from ``keys``."""
        settings, didcomm = around.settings, around.settings.didcomm
        key = service_key(keys)
        waiting = Waiting(
            around.hub,
            around.identities,
            waiters_max=didcomm.waiters_max,
            per_identity_max=settings.limits.sockets_per_identity_max,
        )
        invitations = invitations_of(settings, key)
        conversation = Conversation(
            didcomm,
            key,
            _table(key, invitations, waiting, around),
            around.identities,
            Forwarding(
                around.identities,
                owners_remembered_max=didcomm.owners_remembered_max,
                outbound=around.courier.wake,
            ),
            clock=around.clock,
            new_id=around.new_id,
            senders=around.senders,
            heard_from=around.courier.heard_from,
            refusals=around.refusals,
            measures=around.measures,
        )
        self.front = DidCommFront(didcomm, conversation, around.identities, new_id=around.new_id)
        self.sockets = DidCommSockets(
            Front(
                didcomm,
                key,
                conversation,
                around.identities,
                around.hub,
                waiting,
                around.new_id,
                settings.limits.socket_buffer_bytes_max,
                settings.limits.sockets_per_identity_max,
                settings.limits.host_call_s_max,
                set(),
            )
        )
        self.outbound = around.courier.figures
        self._pseudonym = pseudonym(keys)
        self.page = InvitationPage(invitations, settings.url, clock=around.clock)

    def comes_round(self, request: web.Request) -> bool:
        """Has this message been sent out by this mediator itself?"""
        if hdrs.VIA not in request.headers:
            return False
        return any(self._pseudonym in via for via in request.headers.getall(hdrs.VIA))


def _table(key: KeyPair, invitations: Invitations, waiting: Waiting, around: Around) -> Table:
    settings, identities = around.settings.didcomm, around.identities
    clock, new_id = around.clock, around.new_id
    endpoint = around.settings.url + PATH
    own = OwnDocuments(key, endpoint, "ws" + endpoint.removeprefix("http"))
    admission = Admission(settings, invitations, identities, clock=clock)

    def handshake(minors: tuple[int, ...]) -> Handshake:
        return Handshake(
            identities, admission, own_url=endpoint, new_id=new_id, minor_max=minors[-1]
        )

    table = Table()
    taken_bytes = min(settings.message_bytes_max, around.settings.limits.body_bytes_max)
    features = DiscoverFeatures(table.families, taken_bytes, new_id)
    terms = MediationTerms(endpoint, key.public)
    table.add(
        Connections(handshake(CONNECTIONS_MINORS), own, key, clock=clock).family(),
        DidExchange(handshake(DID_EXCHANGE_MINORS), own, key).family(),
        OutOfBand(admission, new_id=new_id).family(),
        TrustPing(new_id).family(),
        *features.families(),
        *report_problem.families(),
        CoordinateMediation(identities, terms, settings, new_id).family(),
        routing.FAMILY,
        Pickup1(identities, settings, waiting, clock=clock, new_id=new_id).family(),
        Pickup2(identities, settings, edge=around.hub.edge, clock=clock, new_id=new_id).family(),
        Queue1(identities, settings, clock=clock, new_id=new_id).family(),
    )
    return table
