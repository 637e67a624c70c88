"""Payload schemas: the command in a payload, or None for INVALID_COMMAND.

Rules of this file: nothing is looked up and nothing is verified here; a member that has the wrong
type refuses the whole payload; ``null`` counts as absent where a member is optional; unknown
members are ignored. Bounds come from the configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias, TypeVar

import msgspec

from actors.commands import (
    AcknowledgeContractRequests,
    AcknowledgeMessages,
    DeletePublicEvents,
    NewSavedEvent,
    Page,
    PublishPublicEvent,
    QueryContractRequests,
    QueryContracts,
    QueryMessages,
    QuerySavedEvents,
    SaveEvents,
    TagUpdate,
    UpdateEventTags,
)
from eventstore.events import Seconds
from eventstore.log import SavedEventsFilter
from http_edge.config import Limits
from http_edge.decentrl.envelope import is_number

PAGE_OFFSET_MAX: Final = 2**53 - 1


class ContractRequest(msgspec.Struct, frozen=True):
    """REQUEST_COMMUNICATION_CONTRACT as sent (8.1): what it means depends on the recipient."""

    encrypted_contract_request: str
    requestor_ephemeral_public_key: str


class ContractResponse(msgspec.Struct, frozen=True):
    """COMMUNICATION_CONTRACT_RESPONSE as sent (8.2), its signatures not yet verified."""

    signed_contract: dict[str, Any]


class ContractToSave(msgspec.Struct, frozen=True):
    """SAVE_COMMUNICATION_CONTRACT as sent (8.5), its signatures not yet verified."""

    signed_contract: dict[str, Any]


OwnCommand: TypeAlias = (
    QueryContractRequests
    | AcknowledgeContractRequests
    | QueryContracts
    | QueryMessages
    | AcknowledgeMessages
    | SaveEvents
    | QuerySavedEvents
    | UpdateEventTags
)
DirectCommand: TypeAlias = ContractRequest | ContractResponse | ContractToSave | OwnCommand
PublicCommand: TypeAlias = PublishPublicEvent | DeletePublicEvents

_Json: TypeAlias = dict[str, Any]
_C = TypeVar("_C")


class _Invalid(Exception):
    """The payload fails its schema."""


def read_direct(payload: object, limits: Limits) -> DirectCommand | None:
    """The command of a DIRECT_AUTHENTICATED payload (8.1 to 8.11)."""
    return _read(payload, limits, _DIRECT)


def read_public(payload: object, limits: Limits) -> PublicCommand | None:
    """The command of a ONE_WAY_PUBLIC payload (DCTRL-0007)."""
    return _read(payload, limits, _PUBLIC)


def _read(
    payload: object, limits: Limits, readers: Mapping[str, Callable[[_Json, Limits], _C]]
) -> _C | None:
    if not isinstance(payload, dict):
        return None
    kind = payload.get("type")
    reader = readers.get(kind) if isinstance(kind, str) else None
    if reader is None:
        return None
    try:
        return reader(payload, limits)
    except _Invalid:
        return None


def _contract_request(payload: _Json, limits: Limits) -> ContractRequest:
    return ContractRequest(
        _text(payload, "encrypted_contract_request", limits.contract_request_bytes_max),
        _text(payload, "requestor_ephemeral_public_key", limits.contract_request_bytes_max),
    )


def _contract_response(payload: _Json, _: Limits) -> ContractResponse:
    return ContractResponse(_object(payload, "signed_communication_contract"))


def _contract_to_save(payload: _Json, _: Limits) -> ContractToSave:
    return ContractToSave(_object(payload, "signed_communication_contract"))


def _query_contract_requests(payload: _Json, limits: Limits) -> QueryContractRequests:
    return QueryContractRequests(_page(payload, limits))


def _acknowledge_contract_requests(payload: _Json, limits: Limits) -> AcknowledgeContractRequests:
    return AcknowledgeContractRequests(_ids(payload, "communication_contract_ids", limits))


def _query_contracts(payload: _Json, limits: Limits) -> QueryContracts:
    where = _optional_object(payload, "filter")
    return QueryContracts(
        _page(payload, limits),
        _optional_string(where, "did"),
        _optional_number(where, "expires_at_before"),
        _optional_number(where, "expires_at_after"),
    )


def _query_messages(payload: _Json, limits: Limits) -> QueryMessages:
    where = _optional_object(payload, "filter")
    return QueryMessages(_page(payload, limits), _optional_string(where, "sender_did"))


def _acknowledge_messages(payload: _Json, limits: Limits) -> AcknowledgeMessages:
    return AcknowledgeMessages(_ids(payload, "event_ids", limits))


def _save_events(payload: _Json, limits: Limits) -> SaveEvents:
    events = _objects(payload, "events", limits.saved_events_per_command_max)
    saved = [_new_saved_event(event, limits) for event in events]
    if sum(len(event.encrypted_tags) for event in saved) > limits.tags_per_command_max:
        raise _Invalid
    return SaveEvents(saved)


def _new_saved_event(event: _Json, limits: Limits) -> NewSavedEvent:
    return NewSavedEvent(
        _did(event, "sender_did", limits),
        _did(event, "recipient_did", limits),
        _optional_string(event, "contract_id"),
        _number(event, "timestamp"),
        _text(event, "payload", limits.saved_event_bytes_max),
        _tags(event, "encrypted_tags", limits),
    )


def _query_saved_events(payload: _Json, limits: Limits) -> QuerySavedEvents:
    where = _optional_object(payload, "filter")
    unprocessed_only = where.get("unprocessed_only")
    if unprocessed_only is not None and not isinstance(unprocessed_only, bool):
        raise _Invalid
    tags = _tags(where, "encrypted_tags", limits)
    if len(set(tags)) > limits.tags_per_query_max:
        raise _Invalid
    return QuerySavedEvents(
        _page(payload, limits),
        SavedEventsFilter(
            after_timestamp_s=_optional_number(where, "after_timestamp"),
            before_timestamp_s=_optional_number(where, "before_timestamp"),
            participant_did=_optional_string(where, "participant_did"),
            encrypted_tags=tags,
            unprocessed_only=bool(unprocessed_only),
        ),
    )


def _update_event_tags(payload: _Json, limits: Limits) -> UpdateEventTags:
    updates = _objects(payload, "events", limits.saved_events_per_command_max)
    tagged = [
        TagUpdate(_string(update, "event_id"), _tags(update, "encrypted_tags", limits))
        for update in updates
    ]
    if sum(len(update.encrypted_tags) for update in tagged) > limits.tags_per_command_max:
        raise _Invalid
    return UpdateEventTags(tagged)


def _publish(payload: _Json, limits: Limits) -> PublishPublicEvent:
    return PublishPublicEvent(
        _text(payload, "channel_id", limits.tag_bytes_max),
        _text(payload, "event", limits.public_event_bytes_max),
        _tags(payload, "tags", limits),
        _number(payload, "timestamp"),
        _string(payload, "event_signature"),
        signature_valid=False,
    )


def _delete_public(payload: _Json, limits: Limits) -> DeletePublicEvents:
    if "event_ids" in payload:
        event_ids = _ids(payload, "event_ids", limits)
    elif "public_event_id" in payload:
        event_ids = [_string(payload, "public_event_id")]
    else:
        event_ids = [_string(payload, "event_id")]
    return DeletePublicEvents(event_ids, _optional_string(payload, "channel_id"))


def _page(payload: _Json, limits: Limits) -> Page:
    pagination = _optional_object(payload, "pagination")
    number = _count(pagination, "page", 0)
    size = _count(pagination, "page_size", limits.page_size_default)
    if not 1 <= size <= limits.page_size_max or number * size > PAGE_OFFSET_MAX:
        raise _Invalid
    return Page(number, size)


def _count(members: _Json, name: str, default: int) -> int:
    value = members.get(name)
    if value is None:
        return default
    # A JavaScript client may send 10.0: it is the same number there.
    if not is_number(value) or value != int(value) or value < 0:
        raise _Invalid
    return int(value)


def _string(members: _Json, name: str) -> str:
    value = members.get(name)
    if not isinstance(value, str):
        raise _Invalid
    return value


def _text(members: _Json, name: str, bytes_max: int) -> str:
    text = _string(members, name)
    if len(text.encode()) > bytes_max:
        raise _Invalid
    return text


def _optional_string(members: _Json, name: str) -> str | None:
    return None if members.get(name) is None else _string(members, name)


def _did(members: _Json, name: str, limits: Limits) -> str:
    did = _string(members, name)
    if len(did) > limits.did_bytes_max:
        raise _Invalid
    return did


def _number(members: _Json, name: str) -> Seconds:
    value = members.get(name)
    if not is_number(value):
        raise _Invalid
    return value


def _optional_number(members: _Json, name: str) -> Seconds | None:
    return None if members.get(name) is None else _number(members, name)


def _object(members: _Json, name: str) -> _Json:
    value = members.get(name)
    if not isinstance(value, dict):
        raise _Invalid
    return value


def _optional_object(members: _Json, name: str) -> _Json:
    return {} if members.get(name) is None else _object(members, name)


def _objects(members: _Json, name: str, count_max: int) -> list[_Json]:
    value = members.get(name)
    if (
        not isinstance(value, list)
        or len(value) > count_max
        or not all(isinstance(item, dict) for item in value)
    ):
        raise _Invalid
    return value


def _strings(value: object, count_max: int) -> list[str]:
    if (
        not isinstance(value, list)
        or len(value) > count_max
        or not all(isinstance(item, str) for item in value)
    ):
        raise _Invalid
    return value


def _ids(members: _Json, name: str, limits: Limits) -> list[str]:
    return _strings(members.get(name), limits.ids_per_command_max)


def _tags(members: _Json, name: str, limits: Limits) -> list[str]:
    value = members.get(name)
    if value is None:
        return []
    tags = _strings(value, limits.tags_per_event_max)
    if any(len(tag.encode()) > limits.tag_bytes_max for tag in tags):
        raise _Invalid
    return tags


_DIRECT: Final[dict[str, Callable[[_Json, Limits], DirectCommand]]] = {
    "REQUEST_COMMUNICATION_CONTRACT": _contract_request,
    "COMMUNICATION_CONTRACT_RESPONSE": _contract_response,
    "QUERY_PENDING_COMMUNICATION_CONTRACT_REQUESTS": _query_contract_requests,
    "ACKNOWLEDGE_PENDING_COMMUNICATION_CONTRACT_REQUESTS": _acknowledge_contract_requests,
    "SAVE_COMMUNICATION_CONTRACT": _contract_to_save,
    "QUERY_COMMUNICATION_CONTRACTS": _query_contracts,
    "QUERY_PENDING_EVENTS": _query_messages,
    "ACKNOWLEDGE_PENDING_EVENTS": _acknowledge_messages,
    "SAVE_EVENTS": _save_events,
    "QUERY_EVENTS": _query_saved_events,
    "UPDATE_EVENT_TAGS": _update_event_tags,
}
_PUBLIC: Final[dict[str, Callable[[_Json, Limits], PublicCommand]]] = {
    "PUBLISH_PUBLIC_EVENT": _publish,
    "DELETE_PUBLIC_EVENT": _delete_public,
}
TYPES: Final = frozenset([*_DIRECT, *_PUBLIC])
"""Every ``type`` of a payload that is known."""
