"""The cost of a command: one number for the work that it makes, computed from its content.

The unit is a message of 1 KiB among others: 70 us of a writer's CPU, and about three times as much
at the edge. Measured with SQLite, on the writer's thread (one machine, a median of six); the two
starred figures are derived from measurements with more tags. The units of saved and public events
exclude the bytes of their texts, which are charged like those of messages:

======================================  =========  =====
command                                   CPU, ms  units
======================================  =========  =====
message of 1 KiB, among 64 of them           0.07    1.0
message of 64 KiB                            0.42    7.3
SAVE_EVENTS of 1,000 without tags              57    801
SAVE_EVENTS of 63 with 15 tags each           *24    800
UPDATE_EVENT_TAGS of 16, from 63 to 63        *36    815
UPDATE_EVENT_TAGS of 1,000 unknown ids         14    801
a public event with 64 tags                   2.1     27
a page of 600 messages of 1 KiB               4.5    120
envelopes for one of the keys of 10,000       1.2     17
======================================  =========  =====

Storing a tag also pays for its removal, because a command that removes tags does not say how many.
The records of a page, and those that were looked through for an answer, are charged afterwards:
only the host knows them.

``cost`` is what a sender is charged, ``turn_cost`` bounds how long others may have to wait for the
command, and ``parts`` splits it into commands that other work can come between.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any, Final, TypeVar

from actors.core.commands import (
    AcknowledgeContractRequests,
    AcknowledgeMessages,
    CheckKeys,
    Command,
    DeletePublicEvents,
    DeliverMessages,
    EraseIdentity,
    ExpireRecords,
    PublishPublicEvent,
    QueryContractRequests,
    QueryContracts,
    QueryKeylist,
    QueryQueue,
    QuerySavedEvents,
    QueueEnvelopes,
    QueueMessage,
    Register,
    RemoveMessages,
    RequestContract,
    SaveContract,
    SaveEvents,
    StoreContract,
    UpdateEventTags,
    UpdateKeylist,
)
from actors.core.refusals import Refusal
from actors.core.stored_bytes import updated_tags_bytes, utf8_bytes

COSTLY: Final = 16.0
"""Above this, about a millisecond, a command travels alone and queues with other costly ones."""
_KIB: Final = 1_024
_PER_KIB: Final = 0.1
_EVENT: Final = 0.8
_TAG: Final = 0.8
"""Four index rows and their removal."""
_ID: Final = 0.01
_KEY: Final = 2.0
"""A command of its own claims the key; then the key is stored."""
_SIGNATURE: Final = 1.0
"""150 us of CPU at the edge; there are more edges than writers."""
_RECORD: Final = 0.1
_KEPT: Final = 0.2
"""A contract or a contract request of a page, of 2 KiB as usual: the writer reads and packs it."""
_LOOK: Final = 0.001
"""Testing one contract against a filter: 10,000 take 0.8 ms."""
_LISTED: Final = 0.0002
"""Counting one saved event that matches a query of one list: 200,000 take 7 ms."""
_MERGED: Final = 0.001
"""The same per list if the query merges several lists: with 16 tags 200,000 take 0.8 s."""
_PER_S: Final = 4_000.0
"""A second of the thread for histories, which counts as much in it as ``_MERGED`` charges for."""
_FREE_S: Final = 0.005
"""A page of few events takes less, on PostgreSQL too; its query pays for it."""
_OTHERS_PASSED: Final = 16.0
"""Looking for the envelopes of one recipient key, though all others of a full queue come before:
10,000 take 1.2 ms. Only the host knows how many others wait, and charges for them afterwards."""
_OTHERS_COUNTED: Final = 7.0
"""The same for a status: 0.5 ms."""
_OLD_TAGS: Final = 10.0
"""Removing the old tags of one event, if they are many."""
_EXPIRED: Final = 0.3
"""Expiring one record with its content. Steps for many identities come at once."""
_ERASED: Final = 0.2
"""Erasing one record: a step of 64 takes about 1 ms. Such a step shares a commit with the commands
of others: with a commit of its own, others waited for two commits, 2.1 instead of 1.0 to 1.5 times
as long (p50)."""
_PART: Final = 16
"""Events of one part; this many lose 64 tags each in 36 ms."""
_T = TypeVar("_T")


def cost(command: Command | None) -> float:
    """The units of a command, at least 1; a nonce without a command costs 1."""
    of = _BY_TYPE.get(type(command))
    return 1.0 if of is None else of(command)


def turn_cost(command: Command) -> float:
    """The most units that a command may take of the writer, which never reads saved events."""
    of = _TURN_BY_TYPE.get(type(command))
    return cost(command) if of is None else of(command)


def costs(command: Command) -> tuple[float, float]:
    """``cost`` and ``turn_cost``; for most commands they are equal and computed once."""
    charge, of = cost(command), _TURN_BY_TYPE.get(type(command))
    return charge, charge if of is None else of(command)


def parts(command: Command) -> list[Command]:
    """Split a command into parts that run one after the other, so that others can come between.

    If the first part is accepted, so are the later ones, unless the target ends in between.
    """
    of = _PARTS_BY_TYPE.get(type(command))
    return [command] if of is None else of(command)


def _parts_of_deletions(command: DeletePublicEvents) -> list[Command]:
    if len(command.event_ids) <= _PART:
        return [command]
    return [DeletePublicEvents(some, command.channel_id) for some in _split(command.event_ids)]


def _parts_of_updates(command: UpdateEventTags) -> list[Command]:
    updates = command.updates
    if len(updates) <= _PART:
        return [command]
    first, *rest = _split(updates)
    later_bytes = sum(updated_tags_bytes(update.encrypted_tags) for update in updates[_PART:])
    return [
        UpdateEventTags(first, later_bytes),
        *(UpdateEventTags(some, None) for some in rest),
    ]


def _split(items: list[_T]) -> list[list[_T]]:
    return [items[start : start + _PART] for start in range(0, len(items), _PART)]


def source_key(name: str) -> bytes:
    """The key that work is charged to: a DID or address hashed to 16 bytes, as DIDs may be long."""
    return hashlib.blake2b(name.encode(), digest_size=16).digest()


def size_cost(size_bytes: int) -> float:
    """The units of ``size_bytes``; the first KiB is free for every command."""
    return _PER_KIB * (size_bytes - _KIB) / _KIB if size_bytes > _KIB else 0.0


def page_cost(records: int, size_bytes: int, looked_at: int = 0) -> float:
    """The units of an answered page, in addition to those of its query.

    ``looked_at`` counts the records that were tested one by one to choose the page.
    """
    return _RECORD * records + size_cost(size_bytes) + _LOOK * looked_at


def history_cost(size_bytes: int, matching: int, tags: int) -> float:
    """The units of a page of saved events with its exact total, in addition to those of its query.

    ``matching`` events are on one list, or on those of several ``tags``. The charge is only a part
    of the work of counting them, which does not delay commands.
    """
    each = _LISTED if tags <= 1 else _MERGED * tags
    return size_cost(size_bytes) + each * matching


def time_cost(elapsed_s: float) -> float:
    """The units of a reading of saved events that took so long, whatever came of it.

    Not all that is counted for a page matches, or is known if the reading was ended.
    """
    return _PER_S * max(0.0, elapsed_s - _FREE_S)


def _save_events(command: SaveEvents) -> float:
    events = command.events
    tags = sum(len(event.encrypted_tags) for event in events)
    texts = chain.from_iterable(
        (e.sender_did, e.recipient_did, e.contract_id or "", e.payload, *e.encrypted_tags)
        for e in events
    )
    return 1 + _EVENT * len(events) + _TAG * tags + _texts_cost(texts)


def _update_event_tags(command: UpdateEventTags) -> float:
    tags = sum(len(update.encrypted_tags) for update in command.updates)
    texts = chain.from_iterable((u.event_id, *u.encrypted_tags) for u in command.updates)
    return 1 + _EVENT * len(command.updates) + _TAG * tags + _texts_cost(texts)


def _publish(command: PublishPublicEvent) -> float:
    # A tag puts a public event on half as many lists as a saved event.
    texts = (command.channel_id, command.event, command.event_signature, *command.tags)
    return 1 + _SIGNATURE + _TAG / 2 * len(command.tags) + _texts_cost(texts)


def _envelopes(command: QueueEnvelopes) -> float:
    payloads = command.payloads
    # The common case, one envelope, is spared the sum.
    size_bytes = len(payloads[0]) if len(payloads) == 1 else sum(map(len, payloads))
    return len(payloads) + size_cost(size_bytes)


def _contract(command: Register | SaveContract | StoreContract) -> float:
    contract = command.contract
    size_bytes = 0 if isinstance(contract, Refusal) else len(contract.signed)
    return 1 + 2 * _SIGNATURE + size_cost(size_bytes)


def _request(command: RequestContract) -> float:
    texts = (command.encrypted_contract_request, command.requestor_ephemeral_public_key)
    return 1 + _texts_cost(texts)


def _texts_cost(texts: Iterable[str]) -> float:
    return size_cost(utf8_bytes(texts))


def _ids(count: int) -> float:
    return 1 + _ID * count if count > 1 else 1.0


_BY_TYPE: Final[Mapping[type[Any], Callable[[Any], float]]] = {
    QueueMessage: lambda command: 1 + size_cost(len(command.payload)),
    QueueEnvelopes: _envelopes,
    RequestContract: _request,
    Register: _contract,
    SaveContract: _contract,
    StoreContract: _contract,
    SaveEvents: _save_events,
    UpdateEventTags: _update_event_tags,
    QuerySavedEvents: lambda command: (
        1 + _RECORD * command.page.size + len(command.where.encrypted_tags)
    ),
    PublishPublicEvent: _publish,
    DeletePublicEvents: lambda command: _ids(len(command.event_ids)),
    AcknowledgeMessages: lambda command: _ids(len(command.message_ids)),
    AcknowledgeContractRequests: lambda command: _ids(len(command.request_ids)),
    RemoveMessages: lambda command: _ids(len(command.message_ids)),
    DeliverMessages: lambda command: _ids(len(command.message_ids or ())),
    CheckKeys: lambda command: _KEY * len(command.keys) or 1.0,
    UpdateKeylist: lambda command: _ids(len(command.add) + len(command.remove)),
    QueryKeylist: lambda command: 1 + _ID * command.limit,
}
# Tables by type, because pattern matching is slower: each command is looked up three times.
_TURN_BY_TYPE: Final[Mapping[type[Any], Callable[[Any], float]]] = {
    UpdateEventTags: lambda command: cost(command) + _OLD_TAGS * len(command.updates),
    DeletePublicEvents: lambda command: cost(command) + _OLD_TAGS / 2 * len(command.event_ids),
    QuerySavedEvents: lambda _: 1.0,
    QueryContracts: lambda command: 1 + _KEPT * command.page.size,
    QueryContractRequests: lambda command: 1 + _KEPT * command.page.size,
    DeliverMessages: lambda command: (
        cost(command) + (0.0 if command.recipient_key is None else _OTHERS_PASSED)
    ),
    QueryQueue: lambda command: 1.0 if command.recipient_key is None else 1 + _OTHERS_COUNTED,
    EraseIdentity: lambda command: 1 + _ERASED * command.records_max,
    ExpireRecords: lambda command: 1 + _EXPIRED * command.records_max,
}
_PARTS_BY_TYPE: Final[Mapping[type[Any], Callable[[Any], list[Command]]]] = {
    UpdateEventTags: _parts_of_updates,
    DeletePublicEvents: _parts_of_deletions,
}
