"""What both handshakes share: admission, connection, refusal, and the mediator's own documents.

RFC 0160 (connections 1.0) and RFC 0023 (DID exchange) differ in how an agent shows its DID
document and how the mediator shows its own. In both the key that packed the request is the agent
from then on, so it must be a key of the document: no agent connects in another's name. In both a
request may be repeated, and gets a valid answer again.
"""

from __future__ import annotations

from enum import Enum
from typing import Final
from urllib.parse import urlsplit

import msgspec

from actors.core.commands import Connect, Connection
from actors.core.refusals import Refusal
from actors.core.replies import Done
from http_edge.crypto.encoding import ED25519_PREFIX, multibase_encode
from http_edge.didcomm.envelopes.documents import PeerDocument
from http_edge.didcomm.envelopes.keys import KeyPair, base58
from http_edge.didcomm.envelopes.messages import Json, Reply
from http_edge.didcomm.envelopes.peer_dids import encode_peer2, encode_peer4, peer4_short
from http_edge.didcomm.identities import Identities
from http_edge.didcomm.protocols.admission import Admission, NotAdmitted
from http_edge.didcomm.protocols.protocol import Outcome, Request

PROBLEM_REPORT: Final = "problem_report"
"""The name in RFC 0160, RFC 0023 and RFC 0434, with an underscore (RFC 0035 has a hyphen)."""
_LABEL_CHARS_MAX: Final = 128
"""A label is shown to persons and proves nothing; what is longer is cut."""
LEGACY_CONTEXT: Final = "https://w3id.org/did/v1"
"""Credo refuses a document of connections 1.0 with any other."""
_CONTEXT: Final = (
    "https://www.w3.org/ns/did/v1",
    "https://w3id.org/security/suites/ed25519-2020/v1",
)
_KEY_ID: Final = "#key-1"
"""Relative; of this form in a did:peer:2 by its specification."""
_LEGACY_DID_BYTES: Final = 16
"""An unqualified did:sov is the first half of its key."""


class HandshakeRejection(Enum):
    """Why a request fails: what RFC 0160 and RFC 0023 call ``problem-code`` and ``explain``.

    Each explanation names the member that is wrong and the rule, never a value.
    """

    NO_DID = ("request_not_accepted", "The request names no DID (did, connection.DID).")
    UNKNOWN_DID = ("request_not_accepted", "The DID is of no kind that is supported here.")
    NO_DOCUMENT = (
        "request_not_accepted",
        "The request has no document of its DID (did_doc, connection.DIDDoc).",
    )
    NOT_SIGNED = ("request_not_accepted", "The DID document is not signed by a key of its own.")
    NOT_PACKED = ("request_not_accepted", "The request is not packed by a key of the DID document.")
    LEADS_BACK = ("request_not_accepted", "The DID document leads messages back to this mediator.")
    NOT_OPEN = ("request_not_accepted", "This mediator does not take new connections from you.")
    INVITATION_UNKNOWN = ("request_not_accepted", "An invitation of this mediator is needed.")
    INVITATION_EXPIRED = ("request_not_accepted", "The invitation has expired.")
    INVITATION_USED = ("request_not_accepted", "The invitation was for one use, and is used.")
    TOO_MANY = (
        "request_processing_error",
        "Too many connect at the moment: send the request again after some seconds.",
    )
    UNAVAILABLE = ("request_processing_error", "Out of service for now: send the request again.")

    @property
    def code(self) -> str:
        """The ``problem-code``."""
        return self.value[0]

    @property
    def explanation(self) -> str:
        """The ``explain``: English, for persons."""
        return self.value[1]

    @property
    def refused(self) -> str:
        """Its name for the operator (``Outcome.refused``): it says more than the agent gets."""
        is_unknown = self is HandshakeRejection.UNAVAILABLE
        return "" if is_unknown else self.name.lower().replace("_", "-")


def described(code: str, explanation: str) -> Json:
    """The member ``description`` of a problem report (RFC 0035)."""
    return {"code": code, "en": explanation}


def host_of(url: str) -> str:
    """Host and port of an endpoint as they are compared; empty where it has none."""
    return urlsplit(url).netloc.lower()


class MediatorDocuments:
    """The mediator's own DIDs and documents, made once from its key and its two endpoints.

    All hold one key, the service key, and two services of DIDComm v1: HTTP first, because ACA-Py
    takes the first that it can send to; WebSocket second, where Credo finds it for live mode. The
    key is an ``Ed25519VerificationKey2020``: of the ways to write it, the one that ACA-Py from 0.10
    and Credo from 0.4 both read. There is no key agreement key; in DIDComm v1 the signing key
    serves.
    """

    def __init__(self, key: KeyPair, http_url: str, ws_url: str) -> None:
        """Documents with the public half of ``key``."""
        self._key = key.public
        self._endpoints = (http_url, ws_url)
        self.peer4 = encode_peer4(self._document())
        """The did:peer:4 in its long form, which resolves by itself."""
        self.peer2 = encode_peer2([self._key], self._services())
        """The same as did:peer:2."""
        self.legacy_did = base58(self._key[:_LEGACY_DID_BYTES])
        """The unqualified DID of connections 1.0; its document has to come with it."""

    def legacy_document(self) -> Json:
        """The DIDDoc of ``legacy_did`` (RFC 0160), as agents of that time write theirs."""
        did = f"did:sov:{self.legacy_did}"
        key_id = f"{did}#1"
        return {
            "@context": LEGACY_CONTEXT,
            "id": did,
            "publicKey": [
                {
                    "id": key_id,
                    "type": "Ed25519VerificationKey2018",
                    "controller": did,
                    "publicKeyBase58": base58(self._key),
                }
            ],
            "authentication": [{"type": "Ed25519SignatureAuthentication2018", "publicKey": key_id}],
            "service": [
                {
                    "id": f"{did};{name}",
                    "type": "IndyAgent",
                    "priority": priority,
                    "recipientKeys": [base58(self._key)],
                    "routingKeys": [],
                    "serviceEndpoint": endpoint,
                }
                for priority, (name, endpoint) in enumerate(
                    zip(("indy", "indy1"), self._endpoints, strict=True)
                )
            ],
        }

    def _document(self) -> Json:
        """Without ``id`` and ``controller``, which a did:peer:4 adds when it is resolved."""
        return {
            "@context": list(_CONTEXT),
            "verificationMethod": [
                {
                    "id": _KEY_ID,
                    "type": "Ed25519VerificationKey2020",
                    "publicKeyMultibase": multibase_encode(ED25519_PREFIX, self._key),
                }
            ],
            "authentication": [_KEY_ID],
            "service": self._services(),
        }

    def _services(self) -> list[Json]:
        return [
            {
                "id": f"#didcomm-{priority}",
                "type": "did-communication",
                "priority": priority,
                "recipientKeys": [_KEY_ID],
                "routingKeys": [],
                "serviceEndpoint": endpoint,
            }
            for priority, endpoint in enumerate(self._endpoints)
        ]


class HandshakeResponder:
    """Connects agents and refuses them, for one protocol."""

    def __init__(
        self,
        identities: Identities,
        admission: Admission,
        *,
        own_key: bytes,
        own_url: str,
        minor_max: int,
    ) -> None:
        """The handshake of a protocol with minor versions up to ``minor_max``.

        ``own_key`` and ``own_url`` are the mediator's: no routing key and no endpoint for an agent.
        """
        self._identities = identities
        self._admission = admission
        self._own_key = own_key
        self._own_host = host_of(own_url)
        self._minor_max = minor_max

    async def connect(self, request: Request, document: PeerDocument) -> HandshakeRejection | None:
        """Admit and connect the agent that packed the request; what is against it, or None."""
        if not document.is_of(request.sender):
            return HandshakeRejection.NOT_PACKED
        if self._own_key in document.routing_keys or self._is_own(document.endpoint):
            # A message for it would come back to be queued for it, for ever.
            return HandshakeRejection.LEADS_BACK
        admitted = await self._admission.admit(request, request.message.parent_thread_id)
        if isinstance(admitted, NotAdmitted):
            return HandshakeRejection[admitted.name]
        label = request.message.text("label") or ""
        kind = request.message.type.capped(self._minor_max)
        connection = Connection(
            peer_did=peer4_short(document.did),
            label=label[:_LABEL_CHARS_MAX],
            endpoint=document.endpoint,
            routing_keys=list(map(base58, document.routing_keys)),
            protocol=f"{kind.family}/{kind.major}.{kind.minor}",
            invitation_id=admitted.invitation_id,
        )
        connected = await self._identities.ask(
            request.sender.did, Connect(connection), request.command, Done
        )
        return HandshakeRejection.UNAVAILABLE if isinstance(connected, Refusal) else None

    def _is_own(self, endpoint: str) -> bool:
        return bool(endpoint) and host_of(endpoint) == self._own_host

    def accept(self, response: Reply) -> Outcome:
        """The ``response``. It may wait: agents with an endpoint are sent it."""
        return Outcome(reply=self._in_thread(response))

    def refuse(self, rejection: HandshakeRejection) -> Outcome:
        """The problem report of the protocol. It does not wait: strangers have no queue.

        Members of both forms are in it: RFC 0160 and RFC 0023 write ``problem-code`` and
        ``explain``, ACA-Py and Credo read ``description`` (RFC 0035).
        """
        body: Json = {
            "problem-code": rejection.code,
            "explain": rejection.explanation,
            "description": described(rejection.code, rejection.explanation),
        }
        report = self._in_thread(Reply(PROBLEM_REPORT, body))
        return Outcome(reply=report, may_wait=False, refused=rejection.refused)

    def _in_thread(self, reply: Reply) -> Reply:
        """ACA-Py cannot complete a DID exchange unless the response repeats the parent thread."""
        return msgspec.structs.replace(reply, minor_max=self._minor_max, names_parent=True)
