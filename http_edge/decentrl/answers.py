"""Replies as the protocol's JSON (DCTRL-0004 sections 7.3, 8 and 9.2)."""

from __future__ import annotations

from typing import Any, Final, assert_never

import orjson

from actors.commands import Page
from actors.replies import (
    ContractRequestsPage,
    ContractsPage,
    Done,
    MessageAccepted,
    MessagesPage,
    PublicEventAccepted,
    ReadAllowed,
    Refused,
    Registered,
    Reply,
)
from eventstore.log import PublicEventsPage, SavedEventsPage
from http_edge.decentrl.errors import Answer, refuse

_OK: Final = 200
SUCCESS: Final = Answer(_OK, orjson.dumps({"type": "SUCCESS"}))
REQUESTED: Final = Answer(_OK, orjson.dumps({"type": "SUCCESS", "code": "REQUESTED"}))


def registered(signed_contract: dict[str, Any]) -> Answer:
    """The answer to a registration: the contract with the mediator's signature (8.1)."""
    return _success(
        code="MEDIATOR_REGISTRATION_SUCCESS",
        payload={"signed_communication_contract": signed_contract},
    )


def answer(reply: Reply | SavedEventsPage | PublicEventsPage, page: Page | None) -> Answer:
    """The answer for a reply; ``page`` is what the query asked for, if it was a query."""
    match reply:
        case Refused():
            return refuse(reply.code)
        case MessageAccepted():
            return _success(pendingEventId=reply.message_id)
        case PublicEventAccepted():
            return _success(publicEventId=reply.event_id)
        case Done() | Registered() | ReadAllowed():
            return SUCCESS
        case (
            MessagesPage()
            | ContractRequestsPage()
            | ContractsPage()
            | SavedEventsPage()
            | PublicEventsPage()
        ):
            assert page is not None
            return _page(reply, page)
        case _:
            raise AssertionError(f"{type(reply).__name__} answers no command of this protocol")


def _page(
    reply: MessagesPage | ContractRequestsPage | ContractsPage | SavedEventsPage | PublicEventsPage,
    page: Page,
) -> Answer:
    match reply:
        case MessagesPage():
            return _records("pending_events", [_message(m) for m in reply.messages], reply, page)
        case ContractRequestsPage():
            requests = [
                {
                    "id": request.request_id,
                    "sender_did": request.sender_did,
                    "encrypted_contract_request": request.encrypted_contract_request,
                    "requestor_ephemeral_public_key": request.requestor_ephemeral_public_key,
                }
                for request in reply.requests
            ]
            return _records("pending_communication_contract_requests", requests, reply, page)
        case ContractsPage():
            contracts = [
                {
                    "id": contract.contract_id,
                    "signed_communication_contract": orjson.Fragment(contract.signed),
                }
                for contract in reply.contracts
            ]
            return _records("communication_contracts", contracts, reply, page)
        case SavedEventsPage():
            saved = [
                {
                    "id": event.event_id,
                    "payload": event.payload,
                    "encrypted_tags": event.encrypted_tags,
                    "timestamp": event.timestamp_s,
                }
                for event in reply.events
            ]
            return _records("events", saved, reply, page)
        case PublicEventsPage():
            public = [
                {
                    "id": event.event_id,
                    "channel_id": event.channel_id,
                    "event": event.event,
                    "tags": event.tags,
                    "timestamp": event.timestamp_s,
                    "event_signature": event.event_signature,
                }
                for event in reply.events
            ]
            return _records("events", public, reply, page)
        case _:
            assert_never(reply)


def _message(message: Any) -> dict[str, str]:
    return {
        "id": message.message_id,
        "payload": message.payload.decode(),
        "sender_did": message.sender_did,
    }


def _records(name: str, records: list[Any], reply: Any, page: Page) -> Answer:
    pagination = {"page": page.number, "page_size": page.size, "total": reply.total}
    return _success(payload={name: records, "pagination": pagination})


def _success(**members: Any) -> Answer:
    return Answer(_OK, orjson.dumps({"type": "SUCCESS", **members}))
