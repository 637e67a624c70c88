"""The commands of DCTRL-0004 and DCTRL-0007, one method each, but for ``send`` under their names.

``signed_command`` makes the envelope in which each command is sent (section 4).

Each method signs its command with a new nonce and the current time. After an unknown outcome an
idempotent command is signed anew and repeated; another command only if the caller passes
``repeat=True``, which can store a second copy. Units: ``*_s`` are Unix seconds.

Every method raises: CommandRefused, OutcomeUnknown, MediatorUnreachable, UnexpectedAnswer; and
MediatorUnknown if it needs the recipient's mediator and knows no address of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Final

import msgspec

from http_edge.clients.decentrl.backoff import repeated
from http_edge.clients.decentrl.identity import Identity
from http_edge.clients.decentrl.mediator import Mediator
from http_edge.clients.decentrl.records import (
    PAGE_SIZE,
    EventToSave,
    Page,
    PendingContractRequest,
    PendingEvent,
    SavedEvent,
    Seconds,
    StoredContract,
    member,
    page_of,
)
from http_edge.crypto.canonical_json import canonical
from http_edge.crypto.encoding import b64encode
from http_edge.crypto.signatures import sign


class Channel(Enum):
    """The three channels of a command header (DCTRL-0004 4.1)."""

    DIRECT_AUTHENTICATED = "DIRECT_AUTHENTICATED"
    TWO_WAY_PRIVATE = "TWO_WAY_PRIVATE"
    ONE_WAY_PUBLIC = "ONE_WAY_PUBLIC"


def signed_command(
    identity: Identity,
    channel: Channel,
    recipient_did: str,
    payload: Mapping[str, object] | str,
    *,
    now_ms: int,
    nonce: str,
) -> bytes:
    """The body of ``POST /``: header, payload and the identity's signature over both.

    Raises:
        NotCanonical: the payload holds a value that JSON cannot carry.
    """
    signable = canonical(
        {
            "header": {
                "channel": channel.value,
                "sender_did": identity.did,
                "sender_signing_key_id": identity.signing_key_id,
                "recipient_did": recipient_did,
                "timestamp": now_ms,
                "nonce": nonce,
            },
            "payload": payload,
        }
    )
    signature = b64encode(sign(identity.signing_seed, signable))
    # "signature" sorts after "header" and "payload": with it appended the text stays canonical,
    # and the signed bytes are sent as they are.
    return b'%b,"signature":"%b"}' % (signable[:-1], signature.encode())


class Commands:
    """The protocol's commands, signed by one identity and sent to its mediator."""

    def __init__(self, identity: Identity, mediator: Mediator) -> None:
        self.identity: Final = identity
        self.mediator: Final = mediator

    async def request_communication_contract(
        self,
        recipient_did: str,
        encrypted_contract_request: str,
        requestor_ephemeral_public_key: str,
        *,
        at: Mediator | None = None,
        repeat: bool = False,
        invitation: str | None = None,
    ) -> Mapping[str, object]:
        """Ask the mediator (registration) or an identity for a contract (8.1); return the answer.

        The request goes to ``at``, else to the recipient's mediator. It is repeated only with
        ``repeat``, since each forwarded request waits as a record of its own. ``invitation`` is the
        id of an invitation, for a registration with a mediator that asks for one.
        """
        members = {
            "encrypted_contract_request": encrypted_contract_request,
            "requestor_ephemeral_public_key": requestor_ephemeral_public_key,
            "invitation": invitation,
        }
        return await self._direct(
            "REQUEST_COMMUNICATION_CONTRACT",
            members,
            recipient_did=recipient_did,
            at=at,
            repeat=repeat,
        )

    async def communication_contract_response(
        self,
        recipient_did: str,
        signed_contract: Mapping[str, object],
        *,
        at: Mediator | None = None,
    ) -> None:
        """Hand a signed contract to the mediator of its other participant (8.2)."""
        members = {"signed_communication_contract": signed_contract}
        await self._direct(
            "COMMUNICATION_CONTRACT_RESPONSE", members, recipient_did=recipient_did, at=at
        )

    async def query_pending_communication_contract_requests(
        self, *, page: int = 0, page_size: int = PAGE_SIZE
    ) -> Page[PendingContractRequest]:
        """Query a page of the contract requests waiting for this identity, oldest first (8.3)."""
        name = "pending_communication_contract_requests"
        answer = await self._query(f"QUERY_{name.upper()}", {}, page, page_size)
        return page_of(answer, name, PendingContractRequest)

    async def acknowledge_pending_communication_contract_requests(
        self, request_ids: Sequence[str]
    ) -> None:
        """Drop waiting contract requests; unknown ids are ignored (8.4)."""
        # The protocol calls the ids of requests "communication_contract_ids".
        await self._direct(
            "ACKNOWLEDGE_PENDING_COMMUNICATION_CONTRACT_REQUESTS",
            {"communication_contract_ids": list(request_ids)},
        )

    async def save_communication_contract(self, signed_contract: Mapping[str, object]) -> None:
        """Store a signed contract as this identity's own (8.5)."""
        members = {"signed_communication_contract": signed_contract}
        await self._direct("SAVE_COMMUNICATION_CONTRACT", members)

    async def query_communication_contracts(
        self,
        *,
        did: str | None = None,
        expires_before_s: Seconds | None = None,
        expires_after_s: Seconds | None = None,
        page: int = 0,
        page_size: int = PAGE_SIZE,
    ) -> Page[StoredContract]:
        """Query a page of this identity's contracts, expired ones included (8.6)."""
        where = {
            "did": did,
            "expires_at_before": expires_before_s,
            "expires_at_after": expires_after_s,
        }
        answer = await self._query("QUERY_COMMUNICATION_CONTRACTS", where, page, page_size)
        return page_of(answer, "communication_contracts", StoredContract)

    async def send(
        self,
        recipient_did: str,
        payload: str,
        *,
        at: Mediator | None = None,
        repeat: bool = False,
    ) -> str:
        """Send an encrypted payload to another identity (TWO_WAY_PRIVATE, section 7).

        Return its id there. The payload goes to ``at``, else to the recipient's mediator. After an
        unknown outcome it is sent again only with ``repeat``, because the recipient may then get it
        twice.
        """
        answer = await self._issue(
            Channel.TWO_WAY_PRIVATE, recipient_did, payload, at=at, repeat=repeat
        )
        return member(answer, "pendingEventId", str)

    async def query_pending_events(
        self, *, sender_did: str | None = None, page: int = 0, page_size: int = PAGE_SIZE
    ) -> Page[PendingEvent]:
        """Query a page of the events waiting for this identity, oldest first (8.7)."""
        where = {"sender_did": sender_did}
        answer = await self._query("QUERY_PENDING_EVENTS", where, page, page_size)
        return page_of(answer, "pending_events", PendingEvent)

    async def acknowledge_pending_events(self, event_ids: Sequence[str]) -> None:
        """Remove waiting events; unknown ids are ignored (8.8)."""
        await self._direct("ACKNOWLEDGE_PENDING_EVENTS", {"event_ids": list(event_ids)})

    async def save_events(self, events: Sequence[EventToSave], *, repeat: bool = False) -> None:
        """Save storage-encrypted events, all or none (8.9). ``repeat`` can save them twice."""
        members = {"events": msgspec.to_builtins(list(events))}
        await self._direct("SAVE_EVENTS", members, repeat=repeat)

    async def query_events(  # noqa: PLR0913 - the filter of 8.10 has these members
        self,
        *,
        after_s: Seconds | None = None,
        before_s: Seconds | None = None,
        participant_did: str | None = None,
        encrypted_tags: Sequence[str] = (),
        unprocessed_only: bool = False,
        page: int = 0,
        page_size: int = PAGE_SIZE,
    ) -> Page[SavedEvent]:
        """Query a page of the identity's saved events, oldest first (8.10).

        An event has to match all filters, but only one of the tags; both times are exclusive.
        """
        where = {
            "after_timestamp": after_s,
            "before_timestamp": before_s,
            "participant_did": participant_did,
            "encrypted_tags": list(encrypted_tags) or None,
            "unprocessed_only": unprocessed_only or None,
        }
        answer = await self._query("QUERY_EVENTS", where, page, page_size)
        return page_of(answer, "events", SavedEvent)

    async def update_event_tags(self, encrypted_tags: Mapping[str, Sequence[str]]) -> None:
        """Replace the tags of saved events, by event id, and mark them processed (8.11)."""
        events = [
            {"event_id": event_id, "encrypted_tags": list(tags)}
            for event_id, tags in encrypted_tags.items()
        ]
        await self._direct("UPDATE_EVENT_TAGS", {"events": events})

    async def publish_public_event(
        self,
        channel_id: str,
        event: str,
        *,
        tags: Sequence[str],
        timestamp_s: Seconds,
        repeat: bool = False,
    ) -> str:
        """Publish an event that all readers can verify (DCTRL-0007 5); return its id."""
        signed = {
            "channel_id": channel_id,
            "event": event,
            "tags": list(tags),
            "timestamp": timestamp_s,
        }
        members = {**signed, "event_signature": self.identity.sign(signed)}
        answer = await self._direct(
            "PUBLISH_PUBLIC_EVENT", members, channel=Channel.ONE_WAY_PUBLIC, repeat=repeat
        )
        return member(answer, "publicEventId", str)

    async def delete_public_events(
        self, event_ids: Sequence[str], *, channel_id: str | None = None
    ) -> None:
        """Withdraw public events; unknown and foreign ids are ignored (DCTRL-0007 7)."""
        members = {"event_ids": list(event_ids), "channel_id": channel_id}
        await self._direct("DELETE_PUBLIC_EVENT", members, channel=Channel.ONE_WAY_PUBLIC)

    async def erase_identity(self) -> None:
        """Have the mediator erase all data of this identity; Poste's own command.

        This ends the registration. The identity may register again, and then begins anew.
        """
        await self._direct("ERASE_IDENTITY", {"did": self.identity.did}, repeat=False)

    async def _query(
        self, name: str, where: Mapping[str, object], page: int, page_size: int
    ) -> Mapping[str, object]:
        pagination = {"page": page, "page_size": page_size}
        return await self._direct(name, {"filter": _without_none(where), "pagination": pagination})

    async def _direct(
        self,
        name: str,
        members: Mapping[str, object],
        *,
        channel: Channel = Channel.DIRECT_AUTHENTICATED,
        recipient_did: str | None = None,
        at: Mediator | None = None,
        repeat: bool = True,
    ) -> Mapping[str, object]:
        """Issue a command to ``recipient_did``, by default the identity's own mediator.

        Members that are None are left out.
        """
        payload = {"type": name, **_without_none(members)}
        if recipient_did is None:
            recipient_did, at = (await self.mediator.document()).did, self.mediator
        return await self._issue(channel, recipient_did, payload, at=at, repeat=repeat)

    async def _issue(
        self,
        channel: Channel,
        recipient_did: str,
        payload: Mapping[str, object] | str,
        *,
        at: Mediator | None,
        repeat: bool,
    ) -> Mapping[str, object]:
        """Sign and send a command to ``at``, else to the mediator of ``recipient_did``."""
        sources = self.mediator.sources
        where = at or await self.mediator.of(recipient_did)

        async def once() -> Mapping[str, object]:
            command = signed_command(
                self.identity,
                channel,
                recipient_did,
                payload,
                now_ms=sources.now_ms(),
                nonce=sources.new_nonce(),
            )
            return await where.transport.post(command)

        return await repeated(once, self.mediator.backoff, sources, repeat=repeat)


def _without_none(members: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in members.items() if value is not None}
