"""Enrolment of agents: grants mediation, and connects an agent that has had no handshake.

DIDComm v1 agents have connected before they ask (RFC 0160, RFC 0023). DIDComm v2 has no handshake:
the first message, a request for mediation, creates the relation. The agent states only its DID,
which the envelope proves; its endpoint and routing keys come from the DID's document. The DID is
registered as a recipient without being asked for, because the agent's senders may forward to it.

Every operation can be repeated, and changes nothing the second time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from actors.core.commands import Connection, GrantMediation
from actors.core.refusals import Refusal
from actors.core.replies import Done
from http_edge.didcomm.envelopes.agent_documents import MessagingService
from http_edge.didcomm.envelopes.messages import InvalidMember, Message, Reply
from http_edge.didcomm.envelopes.recipient_names import canonical_name
from http_edge.didcomm.identities import TO_RETRY
from http_edge.didcomm.protocols.admission import Admission, NotAdmitted
from http_edge.didcomm.protocols.keylists import Keylists
from http_edge.didcomm.protocols.own_address import OwnAddress
from http_edge.didcomm.protocols.problems import problem_of
from http_edge.didcomm.protocols.protocol import Outcome, Request, refusal

Services: TypeAlias = Callable[[Message], Awaitable[MessagingService | Refusal | None]]
"""Returns the service of a message's sender, as far as its document is known, or the refusal while
that cannot be said."""


_NO_PRIOR: Final = InvalidMember(
    "from_prior", "was not accepted; a mediate-request without it gets another account"
)


class Enrolment:
    """Grants mediation to agents that may have it."""

    def __init__(
        self,
        admission: Admission,
        keylists: Keylists,
        services: Services,
        own: OwnAddress,
    ) -> None:
        """Enrol agents, of which none can be reached by our ``own`` address."""
        self._admission = admission
        self._keylists = keylists
        self._services = services
        self._own = own

    async def grant(self, request: Request) -> Outcome | None:
        """Grant mediation to the sender; return None, or the answer that says why not.

        A sender that claims the account of a prior DID in vain gets none of its own: with that, the
        mediator would refuse the valid proof that may follow.
        """
        did = request.message.sender_did
        if request.message.is_prior_unproven:
            known = await self._admission.connection_of(request)
            if known is Refusal.NOT_CONNECTED:
                return refusal(_NO_PRIOR)
            if isinstance(known, Refusal) and known in TO_RETRY:
                return refusal(known)
        granted = await (self._enrol(request, did) if did else self._grant(request))
        if not isinstance(granted, Refusal):
            return granted
        if granted in TO_RETRY:
            return refusal(granted)
        is_connected = granted is not Refusal.NOT_CONNECTED
        return _denied(problem_of(granted).refused, is_connected=is_connected)

    async def reach(self, message: Message) -> tuple[str, list[str]] | Refusal:
        """Return endpoint and routing keys of a message's sender, from its document.

        The keys are DIDs or ids of DIDs' keys, in the order from the agent outwards. Endpoint and
        keys are empty for an agent that fetches its messages, and for an agent whose document leads
        back to this mediator. ``TEMPORARILY_UNAVAILABLE`` while the document of its own mediator
        cannot be fetched.
        """
        service = await self._services(message)
        if isinstance(service, Refusal):
            return service
        if service is None or self._own.leads_back(service.uri, service.routing_keys):
            return "", []
        # A document lists the keys from the outside inwards: the mediator reached first is first.
        return service.uri, list(reversed(service.routing_keys))

    async def _grant(self, request: Request) -> Refusal | None:
        granted = await request.ask_account(GrantMediation(), Done)
        return granted if isinstance(granted, Refusal) else None

    async def _enrol(self, request: Request, did: str) -> Outcome | Refusal | None:
        """Connect the sender, if it may be an agent of ours, and register its own DID.

        Clients without a keylist rely on the registration.
        """
        admitted = await self._admission.admit(request, request.message.parent_thread_id)
        if isinstance(admitted, NotAdmitted):
            later = admitted.to_retry
            return refusal(later) if later else _denied(admitted.refused, is_connected=False)
        reach = await self.reach(request.message)
        if isinstance(reach, Refusal):
            return reach
        endpoint, routing_keys = reach
        name = canonical_name(did)
        kind = request.message.type
        connection = Connection(
            # An edge that starts could not read the DID from its short form alone.
            peer_did=request.message.whole_did or did,
            label="",
            endpoint=endpoint,
            routing_keys=routing_keys,
            protocol=f"{kind.family}/{kind.major}.{kind.minor}",
            invitation_id=admitted,
        )
        names = [] if name is None else [name]
        return await self._keylists.enrol(request.sender.did, request.command, connection, names)


def _denied(refused: str, *, is_connected: bool) -> Outcome:
    # A stranger has no queue in which the answer could wait.
    return Outcome(Reply("mediate-deny"), may_wait=is_connected, refused=refused)
