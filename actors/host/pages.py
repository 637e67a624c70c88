"""Pages of records: what an answer names by version, read from the log with its contents.

A page is read after the commit of the transaction that asks for it, small ones of several
identities together; before it where a command of the same transaction erases from it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import accumulate, compress
from typing import Final, TypeVar, assert_never
from uuid import UUID

from actors.core.commands import WaitingAt
from actors.core.decision import ContractRefs, DeliveryRefs, MessageRefs, Refs, RequestRefs
from actors.core.refusals import Refusal
from actors.core.replies import (
    ContractRequestsPage,
    ContractsPage,
    DeliveredMessage,
    Delivery,
    MessagesBeside,
    MessagesPage,
    OwnedContract,
    Refused,
    Reply,
    WaitingContractRequest,
    WaitingMessage,
)
from actors.host.state_cache import CachedIdentity
from actors.host.transaction import Outcome, Transaction
from eventstore.log.codec import decode_whole
from eventstore.log.content import data_of, text_of
from eventstore.log.errors import ContentMissing, CorruptRow, LogError, LogUnavailable
from eventstore.log.event_contents import content_of, erased_by
from eventstore.log.event_log import EventLog, StoredRecord
from eventstore.log.events import (
    ContractRequested,
    ContractRequested1,
    ContractStored,
    Event,
    MessageQueued,
    MessageQueued1,
)

_LOG = logging.getLogger(__name__)
_BESIDE_BYTES_MIN: Final = 1_048_576
"""Larger pages of messages are read beside the commands, which they would hold up for 3 ms; one of
15 MiB takes 40 ms. So many bytes of smaller ones are read together."""
UNAVAILABLE: Final = Refused(Refusal.TEMPORARILY_UNAVAILABLE)
_E = TypeVar("_E", bound=Event)
_F = TypeVar("_F", bound=Event)


class _Records:
    """Reads events of a stream with their contents."""

    def __init__(
        self,
        log: EventLog,
        stream: UUID,
        missing: set[int],
        known: Mapping[int, Event | StoredRecord],
    ) -> None:
        self._log = log
        self._stream = stream
        self._missing = missing
        self._known = known

    def __call__(self, versions: list[int], kind: type[_E], former: type[_F]) -> list[_E | _F]:
        """The events at these versions, each of one of these types. Raises as ``fill``."""
        found = {v: self._known[v] for v in versions if v in self._known}
        unread = [version for version in versions if version not in found]
        if unread:
            found.update(self._log.read_records({self._stream: unread})[self._stream])
        events: list[_E | _F] = []
        missing: list[int] = []
        for version in versions:
            event = found.get(version)
            if isinstance(event, StoredRecord):
                event = decode_whole(event.row.topic, event.row.state, event.content)
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
    """Answers the commands of a transaction that asked for a page, by stream and version."""

    def __init__(self, log: EventLog, *, bytes_max: int) -> None:
        """A reader over a log, of pages of ``bytes_max`` in one transaction, but one at least."""
        self._log = log
        self._bytes_max = bytes_max

    def fill_before(self, transaction: Transaction, outcomes: Sequence[Outcome]) -> None:
        """Read the pages that were asked for before commands of the transaction erase from them.

        A page that cannot be read now is left to be read after the commit.
        """
        with_page = [outcome for outcome in outcomes if isinstance(outcome.reply, Refs)]
        if not with_page:
            return
        stored = transaction.stored()
        gone = {one for rows, events in stored for one in erased_by(rows, events)}
        for outcome in with_page if gone else ():
            refs, cached = outcome.reply, outcome.cached
            assert isinstance(refs, Refs)
            assert cached is not None
            if gone.isdisjoint((cached.stream, version) for version in refs.versions):
                continue
            unstored = {
                row.originator_version: event
                for rows, events in stored
                for row, event in zip(rows, events, strict=True)
                if row.originator_id == cached.stream
            }
            with suppress(LogError):
                outcome.reply = self.fill(cached, refs, unstored)

    def replies(self, transaction: Transaction, outcomes: Sequence[Outcome]) -> list[Reply]:
        """After the commit: the reply to each command of the transaction, pages filled.

        Pages are read whole: of many large ones together the last ones would fill the memory.
        """
        sums = accumulate(outcome.page_bytes for outcome in outcomes)
        fit = [
            not 0 < outcome.page_bytes < pages_bytes > self._bytes_max
            for outcome, pages_bytes in zip(outcomes, sums, strict=True)
        ]
        known = self._read_together(transaction, list(compress(outcomes, fit)))
        replies: list[Reply] = []
        for (_, submission), outcome, fits in zip(transaction.items, outcomes, fit, strict=True):
            if not isinstance(outcome.reply, Refs):
                replies.append(outcome.reply)
            elif fits:
                replies.append(self._page(transaction, outcome, submission.request_id, known))
            else:
                replies.append(UNAVAILABLE)
        return replies

    def _read_together(
        self, transaction: Transaction, outcomes: Sequence[Outcome]
    ) -> dict[UUID, dict[int, StoredRecord]]:
        """The records of small pages of several identities, by one question to the log."""
        wanted: dict[UUID, list[int]] = {}
        left_bytes = _BESIDE_BYTES_MIN
        for refs, cached in ((outcome.reply, outcome.cached) for outcome in outcomes):
            if not isinstance(refs, Refs) or cached is None or not refs.versions:
                continue
            if refs.size_bytes <= left_bytes:
                left_bytes -= refs.size_bytes
                wanted.setdefault(cached.stream, []).extend(refs.versions)
        if len(wanted) < 2 or transaction.log_failed:  # noqa: PLR2004 - what one asks is asked below
            return {}
        try:
            return self._log.read_records(wanted)
        except LogError as error:
            _failed(transaction, error, "")
            return {}

    def _page(
        self,
        transaction: Transaction,
        outcome: Outcome,
        request_id: str,
        known: Mapping[UUID, Mapping[int, StoredRecord]],
    ) -> Reply:
        refs, cached = outcome.reply, outcome.cached
        assert isinstance(refs, Refs)
        assert cached is not None
        if transaction.log_failed:
            return UNAVAILABLE
        if isinstance(refs, MessageRefs) and refs.size_bytes > _BESIDE_BYTES_MIN:
            return MessagesBeside(refs.versions, refs.total)
        try:
            return self.fill(cached, refs, known.get(cached.stream, {}))
        except LogError as error:
            _failed(transaction, error, request_id)
            return UNAVAILABLE

    def fill(
        self, owner: CachedIdentity, refs: Refs, known: Mapping[int, Event | StoredRecord]
    ) -> MessagesPage | ContractRequestsPage | ContractsPage | Delivery:
        """The page with its content, in the order of the references.

        ``known`` are events and records by version that need not be read.

        Raises:
            LogUnavailable: the log cannot be read.
            CorruptRow: a record is not where the state says, or has another content.
            ContentMissing: a content is not there.
        """
        read = _Records(self._log, owner.stream, owner.missing, known)
        match refs:
            case MessageRefs():
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


def _failed(transaction: Transaction, error: LogError, request_id: str) -> None:
    extra = {"request_id": request_id}
    _LOG.error("page cannot be read: %s", type(error).__name__, extra=extra)
    transaction.log_failed = isinstance(error, LogUnavailable)
