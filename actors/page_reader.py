"""Fills pages from the log: the state knows where each record stands, the log has the content."""

from __future__ import annotations

from typing import TypeVar, assert_never
from uuid import UUID

from actors.decision import ContractRefs, DeliveryRefs, MessageRefs, Refs, RequestRefs
from actors.replies import (
    ContractRequestsPage,
    ContractsPage,
    DeliveredMessage,
    Delivery,
    MessagesPage,
    OwnedContract,
    WaitingContractRequest,
    WaitingMessage,
)
from eventstore.codec import decode
from eventstore.errors import CorruptRow
from eventstore.events import ContractRequested, ContractStored, Event, MessageQueued
from eventstore.log import EventLog

_E = TypeVar("_E", bound=Event)


class PageReader:
    """Reads the records of a page by stream and version."""

    def __init__(self, log: EventLog) -> None:
        """A reader over a log."""
        self._log = log

    def fill(
        self, stream: UUID, refs: Refs
    ) -> MessagesPage | ContractRequestsPage | ContractsPage | Delivery:
        """The page with its content, in the order of the references.

        Raises:
            LogUnavailable: the log cannot be read.
            CorruptRow: a record is not where the state says.
        """
        match refs:
            case MessageRefs():
                queued = self._read(stream, refs.versions, MessageQueued)
                messages = [
                    WaitingMessage(event.message_id, event.sender_did, event.payload)
                    for event in queued
                ]
                return MessagesPage(messages, refs.total)
            case RequestRefs():
                requested = self._read(stream, refs.versions, ContractRequested)
                requests = [
                    WaitingContractRequest(
                        event.request_id,
                        event.sender_did,
                        event.encrypted_contract_request,
                        event.requestor_ephemeral_public_key,
                    )
                    for event in requested
                ]
                return ContractRequestsPage(requests, refs.total)
            case ContractRefs():
                stored = self._read(stream, refs.versions, ContractStored)
                contracts = [OwnedContract(event.contract_id, event.contract) for event in stored]
                return ContractsPage(contracts, refs.total)
            case DeliveryRefs():
                envelopes = self._read(stream, refs.versions, MessageQueued)
                delivered = [
                    DeliveredMessage(
                        event.message_id, event.recipient_key, event.payload, event.at_ms
                    )
                    for event in envelopes
                ]
                return Delivery(delivered, refs.state)
            case _:
                assert_never(refs)

    def _read(self, stream: UUID, versions: list[int], kind: type[_E]) -> list[_E]:
        rows = self._log.read_versions(stream, versions) if versions else {}
        events: list[_E] = []
        for version in versions:
            row = rows.get(version)
            event = None if row is None else decode(row.topic, row.state)
            if not isinstance(event, kind):
                raise CorruptRow(kind.__name__, f"not at version {version}")
            events.append(event)
        return events
