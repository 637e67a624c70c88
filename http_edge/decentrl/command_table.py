"""The table of the protocol's commands, one row each: payload, recipient, meaning, answer.

``TABLE`` at the end is the protocol (DCTRL-0004 sections 7 and 8, DCTRL-0007). Above it are the
payloads, the functions that turn them into commands, and those that turn replies into answers.
Commands about contracts, which need checks of their own, are in ``contracts``.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
import orjson

from actors.core.commands import (
    AcknowledgeContractRequests,
    AcknowledgeMessages,
    DeletePublicEvents,
    EraseIdentity,
    NewSavedEvent,
    Page,
    PublishPublicEvent,
    QueryContractRequests,
    QueryContracts,
    QueryMessages,
    QuerySavedEvents,
    QueueMessage,
    SaveEvents,
    TagUpdate,
    UpdateEventTags,
)
from actors.core.erasure import OWNER
from actors.core.refusals import Refusal
from actors.core.replies import (
    ContractRequestsPage,
    ContractsPage,
    MessageAccepted,
    MessagesPage,
    PublicEventAccepted,
)
from eventstore.log.event_log import SavedEventsFilter, SavedEventsPage
from http_edge.crypto.signatures import verify_object
from http_edge.decentrl.answers import Answer, Rejected, always, records, success
from http_edge.decentrl.contracts import (
    RequestPayload,
    SignedContract,
    request_contract,
    respond_contract,
    save_contract,
)
from http_edge.decentrl.payloads import (
    PUBLIC_EVENT_BYTES,
    SAVED_EVENT_BYTES,
    SAVED_EVENTS,
    TAG_BYTES,
    Did,
    Id,
    Ids,
    PageRequest,
    PayloadInvalid,
    Seconds,
    Tags,
    page_of,
)
from http_edge.decentrl.validator import (
    Addressee,
    CommandRequest,
    CommandRow,
    CommandTable,
    ValidatedCommand,
)

# ---- answers


_DONE: Final = always(success())
_REQUESTED: Final = always(success(code="REQUESTED"))
_ERASED: Final = always(success(code="ERASED"))


# ---- messages: section 7, 8.7, 8.8


def _queue_message(request: CommandRequest, payload: str) -> ValidatedCommand:
    message = QueueMessage(request.envelope.sender_did, payload.encode())
    return ValidatedCommand(request.envelope.recipient_did, message, request.answer)


def _message_accepted(reply: MessageAccepted, _: Page | None) -> Answer:
    return success(pendingEventId=reply.message_id)


class _MessagesFilter(msgspec.Struct, frozen=True):
    sender_did: Did | None = None


class QueryPendingEvents(msgspec.Struct, frozen=True):
    """The sender's waiting messages (8.7)."""

    filter: _MessagesFilter | None = None
    pagination: PageRequest | None = None


def _query_messages(request: CommandRequest, payload: QueryPendingEvents) -> ValidatedCommand:
    page = page_of(payload.pagination, request.settings.limits)
    where = payload.filter or _MessagesFilter()
    return request.own(QueryMessages(page, where.sender_did), page=page)


def _messages(reply: MessagesPage, page: Page | None) -> Answer:
    messages = [
        {
            "id": message.message_id,
            "payload": message.payload.decode(),
            "sender_did": message.sender_did,
        }
        for message in reply.messages
    ]
    return records("pending_events", messages, reply.total, page)


class AcknowledgePendingEvents(msgspec.Struct, frozen=True):
    """Messages to remove (8.8)."""

    event_ids: Ids


def _acknowledge_messages(
    request: CommandRequest, payload: AcknowledgePendingEvents
) -> ValidatedCommand:
    return request.own(AcknowledgeMessages(payload.event_ids))


# ---- contracts: 8.3, 8.4, 8.6


class QueryPendingContractRequests(msgspec.Struct, frozen=True):
    """The sender's waiting contract requests (8.3)."""

    pagination: PageRequest | None = None


def _query_requests(
    request: CommandRequest, payload: QueryPendingContractRequests
) -> ValidatedCommand:
    page = page_of(payload.pagination, request.settings.limits)
    return request.own(QueryContractRequests(page), page=page)


def _contract_requests(reply: ContractRequestsPage, page: Page | None) -> Answer:
    requests = [
        {
            "id": request.request_id,
            "sender_did": request.sender_did,
            "encrypted_contract_request": request.encrypted_contract_request,
            "requestor_ephemeral_public_key": request.requestor_ephemeral_public_key,
        }
        for request in reply.requests
    ]
    return records("pending_communication_contract_requests", requests, reply.total, page)


class AcknowledgePendingContractRequests(msgspec.Struct, frozen=True):
    """Requests to remove (8.4); the protocol calls their ids contract ids."""

    communication_contract_ids: Ids


def _acknowledge_requests(
    request: CommandRequest, payload: AcknowledgePendingContractRequests
) -> ValidatedCommand:
    return request.own(AcknowledgeContractRequests(payload.communication_contract_ids))


class _ContractsFilter(msgspec.Struct, frozen=True):
    did: Did | None = None
    expires_at_before: Seconds | None = None
    expires_at_after: Seconds | None = None


class QueryCommunicationContracts(msgspec.Struct, frozen=True):
    """The sender's contracts (8.6)."""

    filter: _ContractsFilter | None = None
    pagination: PageRequest | None = None


def _query_contracts(
    request: CommandRequest, payload: QueryCommunicationContracts
) -> ValidatedCommand:
    page = page_of(payload.pagination, request.settings.limits)
    where = payload.filter or _ContractsFilter()
    query = QueryContracts(page, where.did, where.expires_at_before, where.expires_at_after)
    return request.own(query, page=page)


def _contracts(reply: ContractsPage, page: Page | None) -> Answer:
    contracts = [
        {
            "id": contract.contract_id,
            "signed_communication_contract": orjson.Fragment(contract.signed),
        }
        for contract in reply.contracts
    ]
    return records("communication_contracts", contracts, reply.total, page)


# ---- saved events: 8.9 to 8.11


class _EventToSave(msgspec.Struct, frozen=True):
    sender_did: Did
    recipient_did: Did
    timestamp: Seconds
    payload: Annotated[str, SAVED_EVENT_BYTES]
    contract_id: Id | None = None
    encrypted_tags: Tags | None = None


class SaveEventsPayload(msgspec.Struct, frozen=True):
    """Events for the sender's own history (8.9)."""

    events: Annotated[list[_EventToSave], SAVED_EVENTS]


def _save_events(request: CommandRequest, payload: SaveEventsPayload) -> ValidatedCommand:
    events = [
        NewSavedEvent(
            event.sender_did,
            event.recipient_did,
            event.contract_id,
            event.timestamp,
            event.payload,
            event.encrypted_tags or [],
        )
        for event in payload.events
    ]
    _check_tags(request, sum(len(event.encrypted_tags) for event in events))
    return request.own(SaveEvents(events))


class _EventsFilter(msgspec.Struct, frozen=True):
    after_timestamp: Seconds | None = None
    before_timestamp: Seconds | None = None
    participant_did: Did | None = None
    encrypted_tags: Tags | None = None
    unprocessed_only: bool | None = None


class QueryEvents(msgspec.Struct, frozen=True):
    """The sender's own history (8.10)."""

    filter: _EventsFilter | None = None
    pagination: PageRequest | None = None


def _query_events(request: CommandRequest, payload: QueryEvents) -> ValidatedCommand:
    limits = request.settings.limits
    page = page_of(payload.pagination, limits)
    given = payload.filter or _EventsFilter()
    tags = given.encrypted_tags or []
    if len(set(tags)) > limits.tags_per_query_max:
        raise PayloadInvalid(
            f"payload.filter.encrypted_tags: has more than {limits.tags_per_query_max} tags"
        )
    where = SavedEventsFilter(
        after_timestamp_s=given.after_timestamp,
        before_timestamp_s=given.before_timestamp,
        participant_did=given.participant_did,
        encrypted_tags=tags,
        unprocessed_only=bool(given.unprocessed_only),
    )
    return request.own(QuerySavedEvents(page, where), page=page)


def _saved_events(reply: SavedEventsPage, page: Page | None) -> Answer:
    events = [
        {
            "id": event.event_id,
            "payload": event.payload,
            "encrypted_tags": event.encrypted_tags,
            "timestamp": event.timestamp_s,
        }
        for event in reply.events
    ]
    return records("events", events, reply.total, page)


class _NewTags(msgspec.Struct, frozen=True):
    event_id: Id
    encrypted_tags: Tags


class UpdateEventTagsPayload(msgspec.Struct, frozen=True):
    """New tags for saved events (8.11)."""

    events: Annotated[list[_NewTags], SAVED_EVENTS]


def _update_tags(request: CommandRequest, payload: UpdateEventTagsPayload) -> ValidatedCommand:
    updates = [TagUpdate(event.event_id, event.encrypted_tags) for event in payload.events]
    _check_tags(request, sum(len(update.encrypted_tags) for update in updates))
    return request.own(UpdateEventTags(updates))


def _check_tags(request: CommandRequest, tags: int) -> None:
    tags_max = request.settings.limits.tags_per_command_max
    if tags > tags_max:
        raise PayloadInvalid(f"payload.events: have more than {tags_max} tags together")


# ---- erasure: an extension of this mediator


class EraseIdentityPayload(msgspec.Struct, frozen=True):
    """The sender's own DID again, so that no other command is taken for an erasure."""

    did: Did


def _erase_identity(request: CommandRequest, payload: EraseIdentityPayload) -> ValidatedCommand:
    if payload.did != request.envelope.sender_did:
        raise PayloadInvalid("payload.did: is not the sender's own")
    records_max = request.settings.retention.records_per_step_max
    return request.own(EraseIdentity(OWNER, records_max), rejection=_NOT_ITS_OWN)


_NOT_ITS_OWN: Final = Rejected(
    Refusal.INVALID_COMMAND,
    "header.sender_did: speaks for the account of another DID in DIDComm, which has to end first, "
    "or was given up for another DID",
)


# ---- public events: DCTRL-0007


class PublishPublicEventPayload(msgspec.Struct, frozen=True):
    """A signed event for all readers (section 5)."""

    channel_id: Annotated[str, TAG_BYTES]
    event: Annotated[str, PUBLIC_EVENT_BYTES]
    timestamp: Seconds
    event_signature: str
    tags: Tags | None = None


def _publish(request: CommandRequest, payload: PublishPublicEventPayload) -> ValidatedCommand:
    tags = payload.tags or []
    # The event's own signature, which readers verify without this mediator.
    signed = {
        "channel_id": payload.channel_id,
        "event": payload.event,
        "tags": tags,
        "timestamp": payload.timestamp,
    }
    valid = verify_object(request.public_key, signed, payload.event_signature)
    command = PublishPublicEvent(
        payload.channel_id,
        payload.event,
        tags,
        payload.timestamp,
        payload.event_signature,
        signature_valid=valid,
    )
    return request.own(command, rejection=None if valid else _EVENT_NOT_SIGNED)


_EVENT_NOT_SIGNED: Final = Rejected(
    Refusal.INVALID_SIGNATURE,
    "payload.event_signature: does not verify over channel_id, event, tags and timestamp",
)


def _public_event_accepted(reply: PublicEventAccepted, _: Page | None) -> Answer:
    return success(publicEventId=reply.event_id)


class DeletePublicEventPayload(msgspec.Struct, frozen=True):
    """Events to withdraw (section 7): ``event_ids``, or else one id under either other name."""

    event_ids: Ids | None = None
    public_event_id: str | None = None
    event_id: str | None = None
    channel_id: str | None = None


def _delete_public(request: CommandRequest, payload: DeletePublicEventPayload) -> ValidatedCommand:
    ids = payload.event_ids
    if ids is None:
        one = payload.event_id if payload.public_event_id is None else payload.public_event_id
        if one is None:
            raise PayloadInvalid("payload.public_event_id: is missing")
        ids = [one]
    return request.own(DeletePublicEvents(ids, payload.channel_id))


# ---- the table

_TO_ANY, _TO_RESOLVED, _TO_MEDIATOR = Addressee.ANY, Addressee.RESOLVED, Addressee.MEDIATOR

DIRECT: Final = {
    "REQUEST_COMMUNICATION_CONTRACT": CommandRow(
        RequestPayload, _TO_ANY, request_contract, _REQUESTED
    ),
    "COMMUNICATION_CONTRACT_RESPONSE": CommandRow(SignedContract, _TO_ANY, respond_contract, _DONE),
    "QUERY_PENDING_COMMUNICATION_CONTRACT_REQUESTS": CommandRow(
        QueryPendingContractRequests, _TO_MEDIATOR, _query_requests, _contract_requests
    ),
    "ACKNOWLEDGE_PENDING_COMMUNICATION_CONTRACT_REQUESTS": CommandRow(
        AcknowledgePendingContractRequests, _TO_MEDIATOR, _acknowledge_requests, _DONE
    ),
    "SAVE_COMMUNICATION_CONTRACT": CommandRow(SignedContract, _TO_MEDIATOR, save_contract, _DONE),
    "QUERY_COMMUNICATION_CONTRACTS": CommandRow(
        QueryCommunicationContracts, _TO_MEDIATOR, _query_contracts, _contracts
    ),
    "QUERY_PENDING_EVENTS": CommandRow(
        QueryPendingEvents, _TO_MEDIATOR, _query_messages, _messages
    ),
    "ACKNOWLEDGE_PENDING_EVENTS": CommandRow(
        AcknowledgePendingEvents, _TO_MEDIATOR, _acknowledge_messages, _DONE
    ),
    "SAVE_EVENTS": CommandRow(SaveEventsPayload, _TO_MEDIATOR, _save_events, _DONE),
    "QUERY_EVENTS": CommandRow(QueryEvents, _TO_MEDIATOR, _query_events, _saved_events),
    "UPDATE_EVENT_TAGS": CommandRow(UpdateEventTagsPayload, _TO_MEDIATOR, _update_tags, _DONE),
    "ERASE_IDENTITY": CommandRow(EraseIdentityPayload, _TO_MEDIATOR, _erase_identity, _ERASED),
}
PUBLIC: Final = {
    "PUBLISH_PUBLIC_EVENT": CommandRow(
        PublishPublicEventPayload, _TO_MEDIATOR, _publish, _public_event_accepted
    ),
    "DELETE_PUBLIC_EVENT": CommandRow(
        DeletePublicEventPayload, _TO_MEDIATOR, _delete_public, _DONE
    ),
}
TABLE: Final[CommandTable] = {
    "TWO_WAY_PRIVATE": CommandRow(str, _TO_RESOLVED, _queue_message, _message_accepted),
    "DIRECT_AUTHENTICATED": DIRECT,
    "ONE_WAY_PUBLIC": PUBLIC,
}
TYPES: Final = frozenset([*DIRECT, *PUBLIC])
"""Every known ``type`` of a payload."""
