"""What both handshakes have in common: the connection, the answer in its thread, the refusal.

RFC 0160 (connections 1.0) and RFC 0023 (DID exchange) differ in how an agent shows its DID
document and how the mediator shows its own. In both the key that packed the request is the agent
from then on, so it must be a key of the document: nobody connects in another's name. In both a
request may be repeated, and gets a valid answer again.
"""

from __future__ import annotations

from enum import Enum
from typing import Final
from urllib.parse import urlsplit

import msgspec

from actors.clock import NewId
from actors.commands import Connect, Connection
from actors.refusals import Refusal
from actors.replies import Done
from http_edge.didcomm.admission import Admission, NotAdmitted
from http_edge.didcomm.documents import PeerDocument
from http_edge.didcomm.handling import Asked, Outcome
from http_edge.didcomm.identities import Identities
from http_edge.didcomm.keys import base58
from http_edge.didcomm.messages import Json, Message, MessageType, reply
from http_edge.didcomm.peer_dids import peer4_short

PROBLEM_REPORT: Final = "problem_report"
"""The name in RFC 0160, RFC 0023 and RFC 0434, with an underscore (RFC 0035 has a hyphen)."""
_LABEL_CHARS_MAX: Final = 128
"""A label is for people, and nobody vouches for it; what is longer is cut."""


class Objection(Enum):
    """Why a request fails: what RFC 0160 and RFC 0023 call ``problem-code`` and ``explain``."""

    NO_DID = ("request_not_accepted", "The request names no DID.")
    UNKNOWN_DID = ("request_not_accepted", "The DID is of no kind that is supported here.")
    NO_DOCUMENT = ("request_not_accepted", "There is no DID document of this DID in the request.")
    NOT_SIGNED = ("request_not_accepted", "The DID document is not signed by a key of its own.")
    NOT_PACKED = ("request_not_accepted", "The request is not packed by a key of the DID document.")
    LEADS_BACK = ("request_not_accepted", "The DID document leads messages back to this mediator.")
    NOT_OPEN = ("request_not_accepted", "This mediator does not take new connections from you.")
    INVITATION_UNKNOWN = ("request_not_accepted", "An invitation of this mediator is needed.")
    INVITATION_EXPIRED = ("request_not_accepted", "The invitation has expired.")
    INVITATION_USED = ("request_not_accepted", "The invitation was for one use, and is used.")
    UNAVAILABLE = ("request_processing_error", "Out of service for now: send the request again.")

    @property
    def code(self) -> str:
        """The ``problem-code``."""
        return self.value[0]

    @property
    def explanation(self) -> str:
        """The ``explain``: English, for people."""
        return self.value[1]

    @property
    def refused(self) -> str:
        """What the operator is told of it (``Outcome.refused``): more than the agent is."""
        is_unknown = self is Objection.UNAVAILABLE
        return "" if is_unknown else self.name.lower().replace("_", "-")


def answer(asked: Asked, name: str, new_id: str, *, minor_max: int, **members: object) -> Json:
    """A message ``name`` in the thread of the request, with the parent thread that it named.

    ACA-Py cannot complete a DID exchange unless the response repeats the parent thread. A request
    in an unknown minor version is answered in the highest known one (RFC 0003).
    """
    message = _as_known(asked.message, minor_max)
    answered = reply(message, name, new_id, **members)
    if message.parent_thread_id:
        answered["~thread"] = {"thid": message.thread_id, "pthid": message.parent_thread_id}
    return answered


def described(code: str, explanation: str) -> Json:
    """The member ``description`` of a problem report (RFC 0035)."""
    return {"code": code, "en": explanation}


class Handshake:
    """Connects agents and refuses them, for one protocol."""

    def __init__(
        self,
        identities: Identities,
        admission: Admission,
        *,
        own_url: str,
        new_id: NewId,
        minor_max: int,
    ) -> None:
        """The handshake of a protocol with minor versions up to ``minor_max``.

        ``own_url`` is the mediator's: it is no endpoint for an agent.
        """
        self._identities = identities
        self._admission = admission
        self._own_host = urlsplit(own_url).netloc.lower()
        self._new_id = new_id
        self._minor_max = minor_max

    async def connect(self, asked: Asked, document: PeerDocument) -> Objection | None:
        """Admit and connect the agent that packed the request; what is against it, or None."""
        if asked.sender.key not in document.recipient_keys:
            return Objection.NOT_PACKED
        if asked.recipient_key in document.routing_keys or self._is_own(document.endpoint):
            # A message for it would come back to be queued for it, for ever.
            return Objection.LEADS_BACK
        admitted = await self._admission.admit(asked, asked.message.parent_thread_id)
        if isinstance(admitted, NotAdmitted):
            return Objection[admitted.name]
        label = asked.message.text("label") or ""
        connection = Connection(
            peer_did=peer4_short(document.did),
            label=label[:_LABEL_CHARS_MAX],
            endpoint=document.endpoint,
            routing_keys=list(map(base58, document.routing_keys)),
            protocol=_protocol(_as_known(asked.message, self._minor_max).type),
            invitation_id=admitted.invitation_id,
        )
        connected = await self._identities.ask(
            asked.sender.did, Connect(connection), asked.command, Done
        )
        return Objection.UNAVAILABLE if isinstance(connected, Refusal) else None

    def _is_own(self, endpoint: str) -> bool:
        return bool(endpoint) and urlsplit(endpoint).netloc.lower() == self._own_host

    def accept(self, asked: Asked, **members: object) -> Outcome:
        """The ``response`` with these members. It may wait: agents with an endpoint are sent it."""
        response = answer(asked, "response", self._new_id(), minor_max=self._minor_max, **members)
        return Outcome(reply=response)

    def refuse(self, asked: Asked, objection: Objection) -> Outcome:
        """The problem report of the protocol. It does not wait: strangers have no queue.

        Members of both forms are in it: RFC 0160 and RFC 0023 write ``problem-code`` and
        ``explain``, ACA-Py and Credo read ``description`` (RFC 0035).
        """
        members = {
            "problem-code": objection.code,
            "explain": objection.explanation,
            "description": described(objection.code, objection.explanation),
        }
        report = answer(asked, PROBLEM_REPORT, self._new_id(), minor_max=self._minor_max, **members)
        return Outcome(reply=report, may_wait=False, refused=objection.refused)


def _as_known(message: Message, minor_max: int) -> Message:
    if message.type.minor <= minor_max:
        return message
    kind = msgspec.structs.replace(message.type, minor=minor_max)
    return msgspec.structs.replace(message, type=kind)


def _protocol(kind: MessageType) -> str:
    return f"{kind.family}/{kind.major}.{kind.minor}"
