"""Coordinate mediation of a mediator in this process, in any of its versions."""

from __future__ import annotations

from typing import Final

from http_edge.didcomm.envelopes.keys import KeyPair, did_key
from http_edge.didcomm.envelopes.own_dids import OwnDids, own_services
from http_edge.didcomm.envelopes.versions import Envelopes
from http_edge.didcomm.protocols.admission import Admission
from http_edge.didcomm.protocols.coordinate_mediation import (
    CoordinateMediation,
    MediationForm,
)
from http_edge.didcomm.protocols.enrolment import Enrolment
from http_edge.didcomm.protocols.invitations import Invitations
from http_edge.didcomm.protocols.keylists import Keylists
from http_edge.didcomm.protocols.own_address import OwnAddress
from http_edge.didcomm.protocols.protocol import Family
from http_edge.didcomm.unknown_dids import UnknownDids
from http_edge.settings.settings import DidComm
from tests.unit.didcomm.requests import NOW_MS, Agents

ENDPOINT: Final = "https://mediator.example/didcomm"
SERVICE: Final = KeyPair.from_seed((9_999).to_bytes(32, "big"))
SERVICE_KEY: Final = SERVICE.public
OWN_DID: Final = did_key(SERVICE_KEY)
SETTINGS: Final = {"keylist_keys_max": 12, "keylist_updates_max": 10, "keylist_page_max": 5}
OWN_DIDS: Final = OwnDids(SERVICE, own_services(ENDPOINT))
OWN: Final = OwnAddress(ENDPOINT, OWN_DIDS)


def mediation_family(form: MediationForm, agents: Agents, **settings: object) -> Family:
    """The family of one version, over the identities ``agents``."""
    read = DidComm.model_validate({**SETTINGS, **settings})
    invitations = Invitations(SERVICE, "Poste", ENDPOINT)
    admission = Admission(read, invitations, clock=lambda: NOW_MS)
    keylists = Keylists(agents, keys_max=read.keylist_keys_max, command_s_max=100)
    envelopes = Envelopes(OWN_DIDS)
    service_of = UnknownDids(agents, envelopes.seen, None).service_of
    enrolment = Enrolment(admission, keylists, service_of, OWN)
    return CoordinateMediation(form, enrolment, keylists, OWN, read).family()
