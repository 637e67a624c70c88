"""Pages of records: what an answer names by version, read from the log with its contents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar, assert_never
from uuid import UUID

from actors.core.commands import WaitingAt
from actors.core.decision import ContractRefs, DeliveryRefs, MessageRefs, Refs, RequestRefs
from actors.core.replies import (
    ContractRequestsPage,
    ContractsPage,
    DeliveredMessage,
    Delivery,
    MessagesBeside,
    MessagesPage,
    OwnedContract,
    WaitingContractRequest,
    WaitingMessage,
)
from actors.host.state_cache import CachedIdentity
from eventstore.log.codec import decode_whole
from eventstore.log.content import data_of, text_of
from eventstore.log.errors import ContentMissing, CorruptRow
from eventstore.log.event_contents import content_of
from eventstore.log.event_log import EventLog
from eventstore.log.events import (
    ContractRequested,
    ContractRequested1,
    ContractStored,
    Event,
    MessageQueued,
    MessageQueued1,
)

_BESIDE_BYTES_MIN: Final = 1_048_576
"""Larger pages of messages are read beside the commands, which they would hold up for 3 ms."""
_E = TypeVar("_E", bound=Event)
_F = TypeVar("_F", bound=Event)


class _Records:
    """Reads events of a stream with their contents."""

    def __init__(
        self, log: EventLog, stream: UUID, missing: set[int], unstored: Mapping[int, Event]
    ) -> None:
        self._log = log
        self._stream = stream
        self._missing = missing
        self._unstored = unstored

    def __call__(self, versions: list[int], kind: type[_E], former: type[_F]) -> list[_E | _F]:
        """The events at these versions, each of one of these types. Raises as ``fill``."""
        stored = [version for version in versions if version not in self._unstored]
        records = self._log.read_records(self._stream, stored) if stored else {}
        found = dict(self._unstored) if len(stored) < len(versions) else {}
        for version, (row, content) in records.items():
            found[version] = decode_whole(row.topic, row.state, content)
        events: list[_E | _F] = []
        missing: list[int] = []
        for version in versions:
            event = found.get(version)
            if not isinstance(event, (kind, former)):
                raise CorruptRow(kind.__name__, f"not at version {version}")
            fact = content_of(event)
            if fact is not None and fact.stored is None:
                missing.append(version)
            events.append(event)
        if missing:
            # With the next command of the identity they leave the queue.
            self._missing.update(missing)
            raise ContentMissing
        return events


def read_messages(log: EventLog, stream: UUID, where: WaitingAt, missing: set[int]) -> MessagesPage:
    """A page of waiting messages; ``missing`` gets the versions that have no content.

    Raises: as ``PageReader.fill``.
    """
    return _messages(_Records(log, stream, missing, {}), where.versions, where.total)


def _messages(read: _Records, versions: list[int], total: int) -> MessagesPage:
    messages = [
        WaitingMessage(event.message_id, event.sender_did, data_of(event.payload))
        for event in read(versions, MessageQueued, MessageQueued1)
    ]
    return MessagesPage(messages, total)


class PageReader:
    """Reads the records of a page by stream and version."""

    def __init__(self, log: EventLog) -> None:
        """A reader over a log."""
        self._log = log

    def fill(
        self, owner: CachedIdentity, refs: Refs, unstored: Mapping[int, Event] | None = None
    ) -> MessagesPage | MessagesBeside | ContractRequestsPage | ContractsPage | Delivery:
        """The page with its content, in the order of the references.

        Or what a large one of messages is to be read by, beside the commands: one of 15 MiB takes
        40 ms. ``unstored`` are events by version that the log does not have yet.

        Raises:
            LogUnavailable: the log cannot be read.
            CorruptRow: a record is not where the state says, or has another content.
            ContentMissing: a content is not there.
        """
        read = _Records(self._log, owner.stream, owner.missing, unstored or {})
        match refs:
            case MessageRefs():
                if refs.size_bytes > _BESIDE_BYTES_MIN and unstored is None:
                    return MessagesBeside(refs.versions, refs.total)
                return _messages(read, refs.versions, refs.total)
            case RequestRefs():
                requested = read(refs.versions, ContractRequested, ContractRequested1)
                requests = [
                    WaitingContractRequest(
                        event.request_id,
                        event.sender_did,
                        text_of(event.encrypted_contract_request),
                        event.requestor_ephemeral_public_key,
                    )
                    for event in requested
                ]
                return ContractRequestsPage(requests, refs.total)
            case ContractRefs():
                stored = read(refs.versions, ContractStored, ContractStored)
                contracts = [OwnedContract(event.contract_id, event.contract) for event in stored]
                return ContractsPage(contracts, refs.total)
            case DeliveryRefs():
                envelopes = read(refs.versions, MessageQueued, MessageQueued1)
                delivered = [
                    DeliveredMessage(
                        event.message_id,
                        event.recipient_key,
                        data_of(event.payload),
                        event.at_ms,
                    )
                    for event in envelopes
                ]
                return Delivery(delivered, refs.state)
            case _:
                assert_never(refs)
