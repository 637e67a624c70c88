"""Pages of records: an answer names records by version; this reads them with their contents.

The host reads a page after the commit of the transaction that asks for it, and small pages of
several identities together. It reads a page before the commit if a command of the same transaction
erases records of the page.

A record whose content is damaged is left out, and stays: only the operator can put it back, and the
others need not wait for that. A page of such records alone cannot be read; the host passes over it
if it is a delivery.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import accumulate, compress
from typing import TypeVar, assert_never
from uuid import UUID

from actors.core.decision import (
    TOGETHER_BYTES_MAX,
    ContractRefs,
    DeliveryRefs,
    MessageRefs,
    Refs,
    RequestRefs,
)
from actors.core.replies import (
    UNAVAILABLE,
    ContractRequestsPage,
    ContractsPage,
    DeliveredMessage,
    Delivery,
    MessagesBeside,
    MessagesPage,
    OwnedContract,
    Reply,
    WaitingContractRequest,
    WaitingMessage,
)
from actors.core.submissions import WaitingAt
from actors.host.log_outage import reason
from actors.host.state_cache import CachedIdentity
from actors.host.transaction import Outcome, Transaction
from eventstore.log.codec import decode_whole
from eventstore.log.content import data_of, text_of
from eventstore.log.errors import ContentMissing, CorruptRow, LogError, LogUnavailable
from eventstore.log.event_contents import content_of, erased_by
from eventstore.log.event_log import LogReader, StoredRecord
from eventstore.log.events import AnyContractRequested, AnyMessageQueued, ContractStored, Event

_LOG = logging.getLogger(__name__)
_E = TypeVar("_E", bound=Event)


class _Records:
    """Reads the events of one stream with their contents."""

    def __init__(
        self,
        log: LogReader,
        stream: UUID,
        missing: set[int],
        damaged: set[int],
        known: Mapping[int, Event | StoredRecord],
    ) -> None:
        self._log = log
        self._stream = stream
        self._missing = missing
        self._damaged = damaged
        self._known = known

    def __call__(self, versions: list[int], kind: type[_E]) -> list[_E]:
        """Read the events at these versions, each of this type. Raises as ``fill``."""
        found = {v: self._known[v] for v in versions if v in self._known}
        unread = [version for version in versions if version not in found]
        if unread:
            found.update(self._log.read_records({self._stream: unread})[self._stream])
        events: list[_E] = []
        missing: list[int] = []
        damage: CorruptRow | None = None
        for version in versions:
            event = found.get(version)
            if isinstance(event, StoredRecord):
                try:
                    event = decode_whole(event.row.topic, event.row.state, event.content)
                except CorruptRow as error:
                    _LOG.error("left out: %s/%d: %s", self._stream, version, reason(error))
                    self._damaged.add(version)
                    damage = error
                    continue
            if not isinstance(event, kind):
                raise CorruptRow(kind.__name__, f"not at version {version}")
            fact = content_of(event)
            if fact is not None and fact.stored is None:
                missing.append(version)
            events.append(event)
        if missing:
            # The identity's next command removes them from the queue.
            self._missing.update(missing)
            raise ContentMissing
        if damage is not None and not events:
            raise damage
        return events


def read_messages(
    log: LogReader, stream: UUID, where: WaitingAt, missing: set[int], damaged: set[int]
) -> MessagesPage:
    """Read a page of waiting messages; ``missing`` gets the versions that have no content.

    ``damaged`` gets the versions that are left out because their content is damaged.

    The page is the rest of it: other commands may have removed messages since it was decided.

    Raises: as ``PageReader.fill``.
    """
    read, versions = _Records(log, stream, missing, damaged, {}), where.versions
    try:
        events = read(versions, AnyMessageQueued)
    except ContentMissing:
        present = [version for version in versions if version not in missing]
        events = read(present, AnyMessageQueued)
    messages = [
        WaitingMessage(
            event.message_id,
            event.sender_did,
            data_of(event.payload),
            event.recipient_key,
            event.at_ms,
        )
        for event in events
    ]
    return MessagesPage(messages, where.total - len(missing))


def _messages(read: _Records, versions: list[int], total: int) -> MessagesPage:
    messages = [
        WaitingMessage(event.message_id, event.sender_did, data_of(event.payload))
        for event in read(versions, AnyMessageQueued)
    ]
    return MessagesPage(messages, total)


class PageReader:
    """Fills the pages that commands of a transaction have asked for."""

    def __init__(self, log: LogReader, *, bytes_max: int) -> None:
        """A reader of at most ``bytes_max`` of pages per transaction, but at least one page."""
        self._log = log
        self._bytes_max = bytes_max

    def fill_before(self, transaction: Transaction, outcomes: Sequence[Outcome]) -> None:
        """Before the commit: read the pages from which commands of the transaction erase.

        A page that cannot be read now is read after the commit.
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
        """After the commit: the reply to each command of the transaction, with pages filled.

        Pages are read whole, so those beyond ``bytes_max`` are refused: they would fill the memory.
        Pages that are read later do not count.
        """
        _put_beside(outcomes)
        sizes = [outcome.page_bytes for outcome in outcomes]
        fit = [
            not 0 < page_bytes < pages_bytes > self._bytes_max
            for page_bytes, pages_bytes in zip(sizes, accumulate(sizes), strict=True)
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
        """Read the records of small pages of several identities with one query to the log."""
        wanted: dict[UUID, list[int]] = {}
        left_bytes = TOGETHER_BYTES_MAX
        for refs, cached in ((outcome.reply, outcome.cached) for outcome in outcomes):
            if not isinstance(refs, Refs) or cached is None or not refs.versions:
                continue
            if refs.size_bytes <= left_bytes:
                left_bytes -= refs.size_bytes
                wanted.setdefault(cached.stream, []).extend(refs.versions)
        if len(wanted) < 2 or transaction.log_failed:  # noqa: PLR2004 - ``fill`` reads a single one
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
        try:
            return self.fill(cached, refs, known.get(cached.stream, {}))
        except LogError as error:
            _failed(transaction, error, request_id)
            return UNAVAILABLE

    def fill(
        self, owner: CachedIdentity, refs: Refs, known: Mapping[int, Event | StoredRecord]
    ) -> MessagesPage | ContractRequestsPage | ContractsPage | Delivery:
        """Fill a page with its records, in the order of the references.

        ``known`` has events and records by version that need not be read.

        Raises:
            LogUnavailable: the log cannot be read.
            CorruptRow: a record is not where the state says, or all have a wrong content.
            ContentMissing: a record's content is missing.
        """
        read = _Records(self._log, owner.stream, owner.missing, owner.damaged, known)
        match refs:
            case MessageRefs():
                return _messages(read, refs.versions, refs.total)
            case RequestRefs():
                requested = read(refs.versions, AnyContractRequested)
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
                stored = read(refs.versions, ContractStored)
                contracts = [OwnedContract(event.contract_id, event.contract) for event in stored]
                return ContractsPage(contracts, refs.total)
            case DeliveryRefs():
                envelopes = read(refs.versions, AnyMessageQueued)
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


def _put_beside(outcomes: Sequence[Outcome]) -> None:
    """Let the edges read the pages of messages that are too large for one transaction."""
    for outcome in outcomes:
        match outcome.reply if outcome.is_beside else None:
            case MessageRefs(versions, total):
                outcome.reply = MessagesBeside(versions, total)
            case DeliveryRefs(versions, _, state):
                outcome.reply = Delivery([], state, versions)
            case _:
                pass


def _failed(transaction: Transaction, error: LogError, request_id: str) -> None:
    extra = {"request_id": request_id}
    _LOG.error("cannot read a page: %s", reason(error), extra=extra)
    transaction.log_failed = isinstance(error, LogUnavailable)
