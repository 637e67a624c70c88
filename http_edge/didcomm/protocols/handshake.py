"""Common parts of both handshakes: admission, connection, refusal, and the mediator's documents.

RFC 0160 (connections 1.0) and RFC 0023 (DID exchange) differ in how the agent and the mediator show
their DID documents. In both, the key that packed the request identifies the agent from then on, so
it must be a key of the document: no agent can connect in another's name. In both, a request may be
repeated and gets a valid answer again. Every answer repeats the parent thread: ACA-Py cannot
complete a DID exchange without it.
"""

from __future__ import annotations

from typing import Final

from actors.core.commands import Connect, Connection
from actors.core.refusals import Refusal
from actors.core.replies import Done
from http_edge.crypto.encoding import ED25519_PREFIX, multibase_encode
from http_edge.didcomm.envelopes.keys import KeyPair, base58
from http_edge.didcomm.envelopes.messages import Json, Reply
from http_edge.didcomm.envelopes.own_dids import own_endpoints
from http_edge.didcomm.envelopes.peer_dids import encode_peer2, encode_peer4, peer4_short
from http_edge.didcomm.envelopes.peer_documents import (
    KEY_ID,
    PeerDocument,
    legacy_did,
    legacy_document,
    write_services,
)
from http_edge.didcomm.protocols.admission import Admission, NotAdmitted, not_admitted
from http_edge.didcomm.protocols.own_address import OwnAddress
from http_edge.didcomm.protocols.protocol import Outcome, Request
from http_edge.listener.address_charge import charge_unproven

PROBLEM_REPORT: Final = "problem_report"
"""The name in RFC 0160, RFC 0023 and RFC 0434, with an underscore (RFC 0035 has a hyphen)."""
_LABEL_CHARS_MAX: Final = 128
"""A label is shown to persons and proves nothing; a longer one is cut."""
_CONTEXT: Final = (
    "https://www.w3.org/ns/did/v1",
    "https://w3id.org/security/suites/ed25519-2020/v1",
)


def described(code: str, explanation: str) -> Json:
    """Return the member ``description`` of a problem report (RFC 0035)."""
    return {"code": code, "en": explanation}


class MediatorDocuments:
    """The mediator's own DIDs and documents, made once from its key and its URL.

    Each document holds one key, the service key, and two DIDComm v1 services: HTTP first;
    WebSocket second, where Credo finds it for live mode. The key is written as
    ``Ed25519VerificationKey2020``, the form that both ACA-Py from 0.10 and Credo from 0.4 read.
    There is no key agreement key, because DIDComm v1 uses the signing key.
    """

    def __init__(self, key: KeyPair, url: str) -> None:
        """Make the documents with the public half of ``key``, the key of the invitations."""
        self.key = key
        self._endpoints = own_endpoints(url)
        self.services = write_services(self._endpoints)
        self.peer4 = encode_peer4(self._document())
        """The did:peer:4 in its long form, which contains its document."""
        self.peer2 = encode_peer2([key.public], self.services)
        """The same key and services as a did:peer:2."""
        self.legacy_did = legacy_did(key.public)

    def legacy_document(self) -> Json:
        """Return the document of ``legacy_did``."""
        return legacy_document(f"did:sov:{self.legacy_did}", self.key.public, self._endpoints)

    def _document(self) -> Json:
        """Return the document without the ``id`` and ``controller`` that a resolver adds."""
        return {
            "@context": list(_CONTEXT),
            "verificationMethod": [
                {
                    "id": KEY_ID,
                    "type": "Ed25519VerificationKey2020",
                    "publicKeyMultibase": multibase_encode(ED25519_PREFIX, self.key.public),
                }
            ],
            "authentication": [KEY_ID],
            "service": self.services,
        }


class HandshakeResponder:
    """Connects agents, for both protocols."""

    def __init__(self, admission: Admission, own: OwnAddress) -> None:
        """Answer handshakes of agents whose routing keys and endpoint are not our ``own``."""
        self._admission = admission
        self._own = own
        self.documents = MediatorDocuments(own.dids.key, own.endpoint)
        """The documents that the answers show."""

    async def connect(
        self, request: Request, document: PeerDocument | NotAdmitted
    ) -> NotAdmitted | None:
        """Admit and connect the agent that packed the request; return None, or the rejection.

        ``document`` is a rejection if the request shows no usable document.
        """
        if isinstance(document, NotAdmitted):
            return _charged(document)
        if not document.is_of(request.sender):
            return _charged(NotAdmitted.NOT_PACKED)
        routing_keys = list(map(base58, document.routing_keys))
        if self._own.leads_back(document.endpoint, routing_keys):
            return _charged(NotAdmitted.LEADS_BACK)
        admitted = await self._admission.admit(request, request.message.parent_thread_id)
        if isinstance(admitted, NotAdmitted):
            return admitted
        label = request.message.text("label") or ""
        kind = request.message.type
        connection = Connection(
            peer_did=peer4_short(document.did),
            label=label[:_LABEL_CHARS_MAX],
            endpoint=document.endpoint,
            routing_keys=routing_keys,
            protocol=f"{kind.family}/{kind.major}.{kind.minor}",
            invitation_id=admitted,
        )
        connected = await request.ask(request.sender.did, Connect(connection), Done)
        return not_admitted(connected) if isinstance(connected, Refusal) else None


def _charged(rejection: NotAdmitted) -> NotAdmitted:
    """Charge a handshake that ends before its admission, which charges all others."""
    charge_unproven(0)
    return rejection


def refused(rejection: NotAdmitted) -> Outcome:
    """Answer with the protocol's problem report. It does not wait: strangers have no queue.

    Without a return route the transport refuses the request, which must not look accepted.
    The report has the members of both forms: RFC 0160 and RFC 0023 define ``problem-code`` and
    ``explain``, ACA-Py and Credo read ``description`` (RFC 0035).
    """
    body: Json = {
        "problem-code": rejection.code,
        "explain": rejection.value,
        "description": described(rejection.code, rejection.value),
    }
    report = Reply(PROBLEM_REPORT, body, names_parent=True)
    return Outcome(
        reply=report, may_wait=False, refused=rejection.refused, problem=rejection.problem
    )
